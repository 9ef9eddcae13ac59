"""Units to the Delta table `consume_queue`, beside the stream: written by Spark tasks from the frames that made them.

```
outbox   spans of build_seq 3   4   5 | 6   7   8        v = 5, read from Delta
frames                                  6   7   8        kept by Spark until they are written
```

After a kill there are no frames: then the units of the spans are read from the store, which has every one of them.
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
from popstream.wire.failures import Corrupt

__all__ = ["UnitFlush"]

_log = structlog.get_logger(__name__)

PIPELINE = "build_consume_queue"
# Cached columns of a unit take about 60 bytes of the JVM's heap, and go to disk when it is short.
KEPT_ROWS_MAX = 4_000_000
# One commit has so many rows, and those of the WriteBatch in which they are reached.
GROUP_ROWS = 1_000_000
BEHIND_S = 10.0
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
        builder: Whose units they are.
        outbox: The builder's, with the spans.
        interval_s: Longer: fewer, larger files and an older table.
        on_failure: Called once with what ended the thread.

    Attributes:
        loop: The thread; whoever makes this starts and stops it.
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
        self._flushing = threading.Lock()
        if self._table.delivered > builder.built.build_seq:
            message = (
                "Delta holds units of later WriteBatches than the builder's store, which ends at"
                f" {builder.built.build_seq}: it is from a backup; run `popstream restore`"
            )
            raise Corrupt(message, subject=builder.built.state_epoch)
        self._lock = threading.Lock()
        """Of `_frames`."""
        self._frames: dict[int, tuple[DataFrame, int]] = {}
        self._behind_until_s = 0.0
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
        """The units of every WriteBatch of the builder up to this one are in Delta."""
        return self._table.delivered

    def postpone(self) -> None:
        """The builder has much to read just now: messages go first, their rows can wait a little."""
        self._behind_until_s = time.monotonic() + BEHIND_S

    def keep(self, build_seq: int, frame: DataFrame, rows: int) -> None:
        """Take over a cached frame with the units of a WriteBatch; without room it goes, and the store serves."""
        with self._lock:
            kept_rows = sum(count for _, count in self._frames.values())
            has_room = kept_rows + rows <= KEPT_ROWS_MAX or not self._frames
            if has_room:
                self._frames[build_seq] = (frame, rows)
        if not has_room:
            frame.unpersist()
        if kept_rows + rows >= KEPT_ROWS_MAX // 2:
            self.loop.hurry()

    def flush(self) -> None:
        """Bring the table up to the last WriteBatch of the builder; one call at a time."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        if self._is_in_doubt:
            self._table.reopen()
            self._is_in_doubt = False
            self._note_committed()
        while (upto := self._builder.built.build_seq) > self._table.delivered:
            started = time.perf_counter()
            entries = list(_group(self._outbox.undelivered(EntryKind.UNIT_SPANS, self._table.delivered, upto)))
            if entries:
                upto = entries[-1].apply_seq
                try:
                    rows = self._table.append(*self._frame_of(entries, upto))
                except Exception:
                    # Whether the commit happened is known to Delta alone.
                    self._is_in_doubt = True
                    raise
                failpoint("unit_flush")
                self._outbox.delivered(entry.key for entry in entries)
                self.flushed_rows += rows
                _log.debug("units_flushed", upto=upto, rows=rows, seconds=round(time.perf_counter() - started, 3))
            self._forget(upto)
            self._table.skip(upto)

    def _note_committed(self) -> None:
        """What a killed predecessor had committed and not noted, or we ourselves in a flush that raised."""
        committed = self._outbox.undelivered(EntryKind.UNIT_SPANS, upto_seq=self._table.delivered)
        self._outbox.delivered([entry.key for entry in committed])
        self._forget(self._table.delivered)

    def _is_due(self) -> bool:
        """Not while the builder is behind the log, as long as there is room for what it brings."""
        with self._lock:
            kept_rows = sum(count for _, count in self._frames.values())
            return time.monotonic() >= self._behind_until_s or kept_rows >= KEPT_ROWS_MAX // 2

    def _forget(self, upto: int) -> None:
        with self._lock:
            done = [self._frames.pop(seq) for seq in list(self._frames) if seq <= upto]
        for frame, _ in done:
            frame.unpersist()

    def _frame_of(self, entries: Sequence[Entry], upto: int) -> tuple[DataFrame, int, int]:
        """The rows of the entries with all columns of the table, their version, and how many they must be."""
        with self._lock:
            kept = {seq: frame for seq, (frame, _) in self._frames.items()}
        spans = [(entry.apply_seq, span) for entry in entries for span in read_spans(entry)]
        expected = sum(span.unit_count for seq, span in spans if seq in kept)
        # With their build_seq: a topic that was made again has the same offsets in two of them.
        frames = [
            kept[entry.apply_seq].withColumn("build_seq", f.lit(entry.apply_seq).cast("bigint"))
            for entry in entries
            if entry.apply_seq in kept
        ]
        stored = [_numbered(self._stored(span), seq) for seq, span in spans if seq not in kept]
        if stored:
            table = pa.concat_tables(stored)
            expected += table.num_rows
            frames.append(self._spark.createDataFrame(table))
        units = functools.reduce(DataFrame.unionByName, frames)
        files = 1 + expected // ROWS_PER_FILE
        return self._completed(units, spans).coalesce(files), upto, expected

    def _stored(self, span: UnitSpan) -> pa.Table:
        """The units of a span from the store: what has left the log, or is of a topic that is gone, is not there."""
        queue = (span.topic, span.queue_id)
        with self._builder.lock:
            record = self._builder.queues.get(queue)
            if record is None or record.topic_id != span.topic_id:
                return UNIT_SCHEMA.empty_table()
            units = units_between(record, self._builder.get(queue), span.first_offset, span.end_offset)
        if len(units) < span.unit_count:
            _log.warning("units_gone", topic=span.topic, queue_id=span.queue_id, count=span.unit_count - len(units))
        return table_of(queue, units)

    def _completed(self, units: DataFrame, spans: Sequence[tuple[int, UnitSpan]]) -> DataFrame:
        """With what the tasks do not know: the span that a unit is of, and its message base."""
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


def _numbered(units: pa.Table, build_seq: int) -> pa.Table:
    return units.append_column("build_seq", pa.repeat(pa.scalar(build_seq, pa.int64()), units.num_rows))


def _group(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The first entries, as many as one commit may have."""
    rows = 0
    for entry in entries:
        if rows > GROUP_ROWS:
            return
        rows += sum(span.unit_count for span in read_spans(entry))
        yield entry
