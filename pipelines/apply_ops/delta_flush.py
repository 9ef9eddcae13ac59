"""Writes audit rows from the outbox to Delta, at intervals, independently of the micro-batches: fewer, larger files."""

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import EntryKind
from pipelines.failpoints import failpoint
from pipelines.laps import Lap, OnLap, ignore_lap

__all__ = ["DeltaFlush", "TableSink"]

_log = structlog.get_logger(__name__)

_COMMIT_BYTES_MAX = 24 * 1024 * 1024


class TableSink(Protocol):
    """Writes rows to the audit tables, each exactly once (`AuditFlusher`)."""

    def delivered(self, table: str) -> int:
        """Return the apply_seq up to which all rows are in the table; -1 if there are none."""

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        """Commit the (apply_seq, Arrow slice) pairs up to `upto`, and return the number of rows."""


class DeltaFlush:
    """Flushes the rows of all micro-batches since the last flush.

    Args:
        outbox: Holds the rows.
        sink: Writes them.
        applied_seq: Returns the last apply_seq that is written.
        on_lap: Is told of each flush that had rows to write.
    """

    def __init__(
        self,
        outbox: Outbox,
        sink: TableSink,
        *,
        applied_seq: Callable[[], int],
        on_lap: OnLap = ignore_lap,
    ) -> None:
        self._outbox = outbox
        self._sink = sink
        self._applied_seq = applied_seq
        self._on_lap = on_lap
        committed = min(sink.delivered(table) for table in AUDIT_TABLES)
        # Committed by an earlier process that was killed before the outbox noted it.
        outbox.delivered([entry.key for entry in outbox.undelivered(EntryKind.AUDIT, upto_seq=committed)])
        # Not `committed`, which is -1 as long as one of the tables never got a row.
        first = next(iter(outbox.undelivered(EntryKind.AUDIT)), None)
        self._delivered_seq = applied_seq() if first is None else first.apply_seq - 1
        self.flushed_rows = 0

    @property
    def delivered_seq(self) -> int:
        """The apply_seq up to which all rows are in Delta."""
        return self._delivered_seq

    def flush(self) -> None:
        """Commit the rows of all micro-batches that are written, in as many commits as memory requires."""
        while (upto := self._next_commit_end()) > self._delivered_seq:
            failpoint("flush_begin")
            with Lap("flush", self._on_lap) as lap:
                rows = self._commit(upto, lap)
            _log.debug("flushed", upto=upto, rows=rows, seconds=round(lap.seconds, 3))

    def _commit(self, upto: int, lap: Lap) -> int:
        """Commit the rows up to an apply_seq, and return their number."""
        entries = list(self._outbox.undelivered(EntryKind.AUDIT, self._delivered_seq, upto))
        slices = [(entry.apply_seq, *read_slice(entry.value)) for entry in entries]
        lap.facts = {"apply_seq": upto, "bytes": sum(len(data) for _, _, data in slices)}
        rows = 0
        for table in AUDIT_TABLES:
            rows += self._sink.flush(table, ((seq, data) for seq, name, data in slices if name == table), upto)
            failpoint("flush")
        lap.facts["rows"] = rows
        self._outbox.delivered(entry.key for entry in entries)
        self._delivered_seq = upto
        self.flushed_rows += rows
        return rows

    def _next_commit_end(self) -> int:
        """Return the last apply_seq of the next commit: as many micro-batches as `_COMMIT_BYTES_MAX` allows."""
        size = 0
        last = self._delivered_seq
        applied = self._applied_seq()
        for entry in self._outbox.undelivered(EntryKind.AUDIT, self._delivered_seq, applied):
            size += len(entry.value)
            if size > _COMMIT_BYTES_MAX and entry.apply_seq > last + 1:
                return entry.apply_seq - 1
            last = max(last, entry.apply_seq - 1)
        return applied
