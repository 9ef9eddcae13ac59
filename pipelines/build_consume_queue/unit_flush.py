"""Writes units to the Delta table `consume_queue`, independently of the micro-batches.

```
outbox   spans of build_seq 3   4   5 | 6   7   8        v = 5, read from Delta
                                        └──────── units of the spans, read from the store: one commit
```
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from broker_state.consume_queue import Units, units_between
from connectors.delta.all_columns import with_all_columns
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.rows import in_pieces
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue import PIPELINE
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_records import UnitSpan, read_spans
from pipelines.build_units.unit_tables import delta_rows, store_dates
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.failpoints import failpoint
from pipelines.laps import Lap, OnLap, ignore_lap
from pipelines.loops.retry_loop import RetryLoop
from popstream.wire.base_errors import Corrupt

__all__ = ["UnitFlush"]

_log = structlog.get_logger(__name__)

COMMIT_ROWS = 1_000_000
"""A commit ends with the WriteBatch in which it reaches this number of rows."""


class UnitFlush:
    """Writes the units of all micro-batches since the last flush in one commit, every `interval_s`.

    Args:
        spark: The session.
        root: Folder of the Delta tables.
        builder: The builder, whose units are written.
        outbox: The builder's outbox, with the spans.
        interval_s: A longer interval makes fewer and larger files, and an older table.
        on_failure: Called once with the error that ended the thread.
        on_lap: Is told of each flush that had rows to write.
        require_ownership: Raises if another job may write to the table now. Called before each commit.

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
        on_lap: OnLap = ignore_lap,
        require_ownership: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_lap = on_lap
        self._spark = spark
        self._builder = builder
        self._outbox = outbox
        self._table = ExactlyOnceTable(
            spark, root, CONSUME_QUEUE, PIPELINE, builder.built.state_epoch, require_ownership=require_ownership
        )
        self._table.require_not_restored()
        self._flush_lock = threading.Lock()
        if self._table.delivered > builder.built.build_seq:
            message = (
                "Delta holds units of later WriteBatches than the builder's store, which ends at"
                f" {builder.built.build_seq}: the store is an old copy; run `popstream restore`"
            )
            raise Corrupt(message, subject=builder.built.state_epoch)
        self.flushed_rows = 0
        self._is_in_doubt = False
        self._note_committed()
        self.loop = RetryLoop(
            "unit-flush",
            interval_s,
            self.flush,
            on_failure,
            problem_prefix="Delta does not take rows of consume_queue",
        )

    @property
    def delivered_seq(self) -> int:
        """The build_seq up to which all units are in Delta."""
        return self._table.delivered

    @property
    def table_checkpoint_failure(self) -> str | None:
        """Why the last checkpoint of the table's log could not be written; None: it was, or none was due."""
        return self._table.table_checkpoint_failure

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
            entries = list(_first_entries(self._outbox.undelivered(EntryKind.UNIT_SPANS, self._table.delivered, upto)))
            if entries:
                upto = entries[-1].apply_seq
                try:
                    with Lap("flush_units", self._on_lap) as lap:
                        lap.facts["build_seq"] = upto
                        lap.facts["rows"] = rows = self._table.append(in_pieces(self._rows(entries)), upto)
                except Exception:
                    # The commit may have succeeded: read the version from the log before the next one.
                    self._is_in_doubt = True
                    raise
                failpoint("unit_flush")
                self._outbox.delivered(entry.key for entry in entries)
                self.flushed_rows += rows
                _log.debug("units_flushed", upto=upto, rows=rows, seconds=round(lap.seconds, 3))
            self._table.skip(upto)

    def _note_committed(self) -> None:
        """Note spans that are committed and not noted, by a process that was killed or a flush that raised."""
        committed = self._outbox.undelivered(EntryKind.UNIT_SPANS, upto_seq=self._table.delivered)
        self._outbox.delivered([entry.key for entry in committed])

    def _rows(self, entries: Sequence[Entry]) -> Iterator[pa.Table]:
        """Yield the rows of each entry, with all columns of the table."""
        for entry in entries:
            # Of all its spans at once: a few messages in each of many queues are the rule.
            rows = pa.concat_tables(self._rows_of(span) for span in read_spans(entry))
            count = rows.num_rows
            added = {
                "build_seq": pa.repeat(pa.scalar(entry.apply_seq, pa.int64()), count),
                "state_epoch": pa.repeat(self._builder.built.state_epoch, count),
                "store_date": store_dates(rows),
            }
            yield with_all_columns(CONSUME_QUEUE, rows, added)

    def _rows_of(self, span: UnitSpan) -> pa.Table:
        """Read the units of a span from the store, which has none that left the log or whose topic was deleted."""
        queue = (span.topic, span.queue_id)
        with self._builder.lock:
            record = self._builder.queues.get(queue)
            if record is None or record.topic_id != span.topic_id:
                return delta_rows(queue, span.topic_id, span.queue_type, Units.of([]))
            units = units_between(record, self._builder.get(queue), span.first_offset, span.end_offset)
        if len(units) < span.unit_count:
            _log.warning("units_missing", topic=span.topic, queue_id=span.queue_id, count=span.unit_count - len(units))
        return delta_rows(queue, span.topic_id, span.queue_type, units)


def _first_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the first entries, until they have the rows of one commit."""
    rows = 0
    for entry in entries:
        if rows > COMMIT_ROWS:
            return
        rows += sum(span.unit_count for span in read_spans(entry))
        yield entry
