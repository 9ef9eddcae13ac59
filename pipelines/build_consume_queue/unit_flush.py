"""Writes units to the Delta table `consume_queue`, independently of the micro-batches.

```
outbox   spans of build_seq 3   4   5 | 6   7   8        v = 5, read from Delta
frames                                  6       8        of large micro-batches, cached by Spark until written
```

Spark tasks write the cached frames. The units of spans without a frame, as after a kill, are read from the store.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import structlog
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from broker_state.consume_queue import units_between
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.apply_ops.outbox import Entry, EntryKind, Outbox
from pipelines.build_consume_queue.builder import Builder, UnitSpan, read_spans
from pipelines.build_consume_queue.unit_columns import UNIT_SCHEMA, table_of
from pipelines.failpoints import failpoint
from pipelines.loops.retry_loop import RetryLoop
from popstream.wire.base_errors import Corrupt

__all__ = ["UnitFlush"]

_log = structlog.get_logger(__name__)

PIPELINE = "build_consume_queue"
KEPT_ROWS_MAX = 4_000_000
"""Rows in cached frames. A row takes about 60 bytes of the JVM's heap; Spark spills them to disk when it is short."""

COMMIT_ROWS = 1_000_000
"""A commit ends with the WriteBatch in which it reaches this number of rows."""

POSTPONED_S = 10.0
ROWS_PER_FILE = 500_000

_SPANS = (
    "build_seq bigint, topic string, queue_id int, topic_id string, queue_type string, first_offset bigint,"
    " end_offset bigint, span_message_base bigint, unit_count bigint"
)


class UnitFlush:
    """Writes the units of all micro-batches since the last flush in one commit, every `interval_s`.

    Args:
        spark: The session.
        root: Folder of the Delta tables.
        builder: The builder, whose units are written.
        outbox: The builder's outbox, with the spans.
        interval_s: A longer interval makes fewer and larger files, and an older table.
        on_failure: Called once with the error that ended the thread.

    Attributes:
        loop: The thread; the caller starts and stops it.
        flushed_rows: Rows written since the start.

    Raises:
        Corrupt: The table was RESTOREd, or has units that the store does not have.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        builder: Builder,
        outbox: Outbox,
        *,
        interval_s: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._spark = spark
        self._builder = builder
        self._outbox = outbox
        self._table = ExactlyOnceTable(spark, root, CONSUME_QUEUE, PIPELINE, builder.built.state_epoch)
        self._table.require_not_restored()
        self._flush_lock = threading.Lock()
        if self._table.delivered > builder.built.build_seq:
            message = (
                "Delta holds units of later WriteBatches than the builder's store, which ends at"
                f" {builder.built.build_seq}: the store is an old copy; run `popstream restore`"
            )
            raise Corrupt(message, subject=builder.built.state_epoch)
        self._frames_lock = threading.Lock()
        self._frames: dict[int, tuple[DataFrame, int]] = {}
        self._postponed_until_s = 0.0
        self.flushed_rows = 0
        self._is_in_doubt = False
        self._note_committed()
        self.loop = RetryLoop(
            "unit_flush",
            interval_s,
            self.flush,
            on_failure,
            self._is_due,
            problem_prefix="Delta does not take rows of consume_queue",
        )

    @property
    def delivered_seq(self) -> int:
        """The build_seq up to which all units are in Delta."""
        return self._table.delivered

    def postpone(self) -> None:
        """Delay the next flush, because the builder has a large micro-batch to read."""
        self._postponed_until_s = time.monotonic() + POSTPONED_S

    def keep(self, build_seq: int, frame: DataFrame, rows: int) -> None:
        """Keep a cached frame with the units of a WriteBatch, or drop it if there is no room."""
        with self._frames_lock:
            kept_rows = sum(count for _, count in self._frames.values())
            has_room = kept_rows + rows <= KEPT_ROWS_MAX or not self._frames
            if has_room:
                self._frames[build_seq] = (frame, rows)
        if not has_room:
            frame.unpersist()
        if kept_rows + rows >= KEPT_ROWS_MAX // 2:
            self.loop.hurry()

    def flush(self) -> None:
        """Write the units of all WriteBatches to the table; concurrent calls wait for each other."""
        with self._flush_lock:
            self._flush()

    def _flush(self) -> None:
        if self._is_in_doubt:
            self._table.reopen()
            self._is_in_doubt = False
            self._note_committed()
        while (upto := self._builder.built.build_seq) > self._table.delivered:
            started = time.perf_counter()
            entries = list(_first_entries(self._outbox.undelivered(EntryKind.UNIT_SPANS, self._table.delivered, upto)))
            if entries:
                upto = entries[-1].apply_seq
                try:
                    rows = self._table.append(*self._frame_of(entries, upto))
                except Exception:
                    # The commit may have succeeded: read the version from Delta before the next one.
                    self._is_in_doubt = True
                    raise
                failpoint("unit_flush")
                self._outbox.delivered(entry.key for entry in entries)
                self.flushed_rows += rows
                _log.debug("units_flushed", upto=upto, rows=rows, seconds=round(time.perf_counter() - started, 3))
            self._forget(upto)
            self._table.skip(upto)

    def _note_committed(self) -> None:
        """Note spans that are committed and not noted, by a process that was killed or a flush that raised."""
        committed = self._outbox.undelivered(EntryKind.UNIT_SPANS, upto_seq=self._table.delivered)
        self._outbox.delivered([entry.key for entry in committed])
        self._forget(self._table.delivered)

    def _is_due(self) -> bool:
        """Return whether a flush may run now: not while it is postponed, unless the cached frames need room."""
        with self._frames_lock:
            kept_rows = sum(count for _, count in self._frames.values())
            return time.monotonic() >= self._postponed_until_s or kept_rows >= KEPT_ROWS_MAX // 2

    def _forget(self, upto: int) -> None:
        with self._frames_lock:
            done = [self._frames.pop(seq) for seq in list(self._frames) if seq <= upto]
        for frame, _ in done:
            frame.unpersist()

    def _frame_of(self, entries: Sequence[Entry], upto: int) -> tuple[DataFrame, int, int]:
        """Return the rows of the entries with all columns of the table, their version, and the expected row count."""
        with self._frames_lock:
            kept = {seq: frame for seq, (frame, _) in self._frames.items()}
        spans = [(entry.apply_seq, span) for entry in entries for span in read_spans(entry)]
        expected = sum(span.unit_count for seq, span in spans if seq in kept)
        # With build_seq, because a recreated topic has the same offsets in two WriteBatches.
        frames = [
            kept[entry.apply_seq].withColumn("build_seq", f.lit(entry.apply_seq).cast("bigint"))
            for entry in entries
            if entry.apply_seq in kept
        ]
        stored = [_with_build_seq(self._stored(span), seq) for seq, span in spans if seq not in kept]
        if stored:
            table = pa.concat_tables(stored)
            expected += table.num_rows
            frames.append(self._spark.createDataFrame(table))
        units = functools.reduce(DataFrame.unionByName, frames)
        files = 1 + expected // ROWS_PER_FILE
        return self._complete(units, spans).coalesce(files), upto, expected

    def _stored(self, span: UnitSpan) -> pa.Table:
        """Read the units of a span from the store, which has none that left the log or whose topic was deleted."""
        queue = (span.topic, span.queue_id)
        with self._builder.lock:
            record = self._builder.queues.get(queue)
            if record is None or record.topic_id != span.topic_id:
                return UNIT_SCHEMA.empty_table()
            units = units_between(record, self._builder.get(queue), span.first_offset, span.end_offset)
        if len(units) < span.unit_count:
            _log.warning("units_missing", topic=span.topic, queue_id=span.queue_id, count=span.unit_count - len(units))
        return table_of(queue, units)

    def _complete(self, units: DataFrame, spans: Sequence[tuple[int, UnitSpan]]) -> DataFrame:
        """Add the columns that Spark's tasks do not know: those of the unit's span, and its message base."""
        rows = [(seq, *msgspec.structs.astuple(span)) for seq, span in spans]
        known = f.broadcast(self._spark.createDataFrame(rows, _SPANS))
        base: Column = f.col("queue_offset")
        inner_count = f.lit(1)
        if any(span.queue_type == "batch" for _, span in spans):
            is_batch = f.col("queue_type") == "batch"
            before = (
                Window.partitionBy("build_seq", "topic", "queue_id")
                .orderBy("queue_offset")
                .rowsBetween(Window.unboundedPreceding, -1)
            )
            counted = f.col("span_message_base") + f.coalesce(f.sum("inner_count").over(before), f.lit(0))
            base = f.when(is_batch, counted).otherwise(base)
            inner_count = f.when(is_batch, f.col("inner_count")).otherwise(inner_count)
        is_within = (units["queue_offset"] >= known["first_offset"]) & (units["queue_offset"] < known["end_offset"])
        joined = units.join(known, ["build_seq", "topic", "queue_id"]).where(is_within)
        completed = joined.withColumns(
            {
                "message_base": base,
                "inner_count": inner_count,
                "state_epoch": f.lit(self._builder.built.state_epoch),
                "store_date": f.to_date(f.timestamp_millis("store_time_ms")),
            }
        )
        return completed.select(*(column.name for column in CONSUME_QUEUE.columns))


def _with_build_seq(units: pa.Table, build_seq: int) -> pa.Table:
    return units.append_column("build_seq", pa.repeat(pa.scalar(build_seq, pa.int64()), units.num_rows))


def _first_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the first entries, until they have the rows of one commit."""
    rows = 0
    for entry in entries:
        if rows > COMMIT_ROWS:
            return
        rows += sum(span.unit_count for span in read_spans(entry))
        yield entry
