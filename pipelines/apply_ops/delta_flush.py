"""Audit rows from the outbox to Delta, beside the stream: latency does not pay for small files."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import structlog

from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.outbox import Entry, EntryKind, Outbox
from pipelines.apply_ops.outbox_entries import read_slice
from pipelines.failpoints import failpoint

__all__ = ["Flush", "TableSink"]

_log = structlog.get_logger(__name__)

_GROUP_BYTES_MAX = 24 * 1024 * 1024


class TableSink(Protocol):
    """Takes the rows of spans of micro-batches, each table exactly once (`AuditFlusher`)."""

    def delivered(self, table: str) -> int:
        """The rows of all apply_seq up to this one are in the table; -1 when none are."""

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        """Commit the rows of the span that ends at `upto`; how many they were."""


class Flush:
    """Writes the rows of all micro-batches since the last time.

    Args:
        outbox: Where the rows wait.
        flusher: Writes a span of them to one table in one commit.
        applied_seq: The last apply_seq that was written.
    """

    def __init__(self, outbox: Outbox, flusher: TableSink, *, applied_seq: Callable[[], int]) -> None:
        self._outbox = outbox
        self._flusher = flusher
        self._applied_seq = applied_seq
        committed = min(flusher.delivered(table) for table in AUDIT_TABLES)
        # What a killed predecessor had committed, but not noted, leaves the outbox too.
        outbox.delivered([entry.key for entry in outbox.undelivered(EntryKind.AUDIT, upto_seq=committed)])
        # Not `committed`: a table without any rows has no commit.
        first = next(iter(outbox.undelivered(EntryKind.AUDIT)), None)
        self._seq = applied_seq() if first is None else first.apply_seq - 1
        self.flushed_rows = 0

    @property
    def delivered_seq(self) -> int:
        """The rows of every micro-batch up to this one are in Delta."""
        return self._seq

    def flush(self) -> None:
        """Bring every table up to the last micro-batch that was written."""
        while (upto := self._span()) > self._seq:
            failpoint("flush_begin")
            started = time.perf_counter()
            entries = list(self._outbox.undelivered(EntryKind.AUDIT, self._seq, upto))
            slices = [(entry.apply_seq, *read_slice(entry.value)) for entry in entries]
            rows = 0
            for table in AUDIT_TABLES:
                rows += self._flusher.flush(table, ((seq, data) for seq, name, data in slices if name == table), upto)
                failpoint("flush")
            self._outbox.delivered(entry.key for entry in entries)
            self._seq = upto
            self.flushed_rows += rows
            _log.debug("flushed", upto=upto, rows=rows, seconds=round(time.perf_counter() - started, 3))

    def _span(self) -> int:
        """The last apply_seq of the next commit: not more than fits in memory."""
        size = 0
        last = self._seq
        applied = self._applied_seq()
        for entry in self._waiting(applied):
            size += len(entry.value)
            if size > _GROUP_BYTES_MAX and entry.apply_seq > last + 1:
                return entry.apply_seq - 1
            last = max(last, entry.apply_seq - 1)
        return applied

    def _waiting(self, applied: int) -> Iterator[Entry]:
        return self._outbox.undelivered(EntryKind.AUDIT, self._seq, applied)
