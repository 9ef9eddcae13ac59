"""Writes audit rows from the outbox to Delta: the rows of a span of micro-batches in one commit, each exactly once.

```
outbox   seq 3   4   5 | 6   7   8   9      v = 5, read from Delta
                       └── one commit, txn = (<pipeline>/<table>/<state_epoch>, 9)
```

Each table is an `ExactlyOnceTable` whose versions are apply_seq.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from connectors.delta.erased_values import RejectedHeads
from connectors.delta.exactly_once import NOTHING, ExactlyOnceTable
from connectors.delta.replayed_rows import Covered
from connectors.delta.rows import completed_rows, in_pieces
from connectors.delta.tables import AUDIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["AuditFlusher"]


class AuditFlusher:
    """Writes outbox slices to the audit tables. One per state; not thread-safe for one table.

    Args:
        spark: Session with Delta.
        root: Folder of the tables.
        pipeline: Name of the pipeline: first part of the transaction's id.
        state_epoch: Identity of the RocksDB state whose `apply_seq` counts.
        ops_topic_id: Kafka's id of the ops topic, for the column of that name.
        covered: After a restore: by table and partition, the Kafka offset below which the table has all rows.
        compared_from: By table and partition, the Kafka offset below which existing rows are not compared.
        restores_known: By table, the version up to which a restore has handled every RESTORE.
        rejected_heads: What is kept of the values in `rejected`; the outbox has their heads until then.
        durable: Return from `flush` only when the commit survives a power loss. Without it outbox entries must be kept
            until something else makes the commit durable.
        require_ownership: Raises if another job may write to the tables now. Called before each commit.

    Raises:
        Invalid: A table has other columns than this version writes.

    Attributes:
        tables: The tables by name. The caller compares their versions with the state.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        pipeline: str,
        state_epoch: str,
        *,
        ops_topic_id: str,
        covered: Mapping[str, Mapping[int, int]] | None = None,
        compared_from: Mapping[str, Mapping[int, int]] | None = None,
        restores_known: Mapping[str, int] | None = None,
        durable: bool = True,
        rejected_heads: RejectedHeads = RejectedHeads.WHOLE,
        require_ownership: Callable[[], None] = lambda: None,
    ) -> None:
        """Create missing tables and read the versions of each."""
        self._state_epoch = state_epoch
        self._ops_topic_id = ops_topic_id
        self._rejected_heads = rejected_heads
        self._in_doubt: set[str] = set()
        """Tables whose versions are read again before the next flush."""
        ends, loose = covered or {}, compared_from or {}
        self._covered = {
            name: Covered(spark, root, name, ops_topic_id, ends.get(name), loose.get(name)) for name in AUDIT_TABLES
        }
        # Where versions that committed through Spark wrote files first; a killed one has left some.
        shutil.rmtree(root / ".scratch", ignore_errors=True)
        self.tables = {
            name: ExactlyOnceTable(
                spark,
                root,
                table,
                pipeline,
                state_epoch,
                restores_known=(restores_known or {}).get(name),
                durable=durable,
                require_ownership=require_ownership,
            )
            for name, table in AUDIT_TABLES.items()
        }

    @property
    def verified_rows(self) -> int:
        """Rows that were recomputed after a restore and equal those in the tables."""
        return sum(covered.verified_rows for covered in self._covered.values())

    @property
    def table_checkpoint_failures(self) -> list[str]:
        """A sentence for each table of whose log the last checkpoint could not be written."""
        failures = [table.table_checkpoint_failure for table in self.tables.values()]
        return [failure for failure in failures if failure is not None]

    def delivered(self, table: str) -> int:
        """Return v: the rows of all apply_seq up to this one are in the table; -1: none."""
        return self.tables[table].delivered

    def committed(self) -> dict[str, int]:
        """Return the last committed apply_seq by table, for tables with a commit."""
        return {name: table.committed for name, table in self.tables.items() if table.committed != NOTHING}

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        """Write the rows of apply_seq (v, upto] in one commit; return their number.

        Slices up to the v that was read at the start are left out: a killed predecessor wrote them. Without rows
        nothing is committed, and the table counts as delivered up to `upto` until the process ends.

        Args:
            table: Name of an audit table.
            slices: (apply_seq, bytes of `encode_rows`), by ascending apply_seq.
            upto: Last apply_seq of the span, with or without rows.

        Raises:
            Fenced: Another job has committed since the tables were read, or owns the prefix now.
            Corrupt: A slice cannot be read, or the table was RESTOREd.
            Unavailable: It is not known whether this job owns the prefix.
        """
        writer = self.tables[table]
        if table in self._in_doubt:
            writer.reopen()
            self._in_doubt.discard(table)
        try:
            rows = writer.append(self._rows(table, _undelivered(slices, writer, upto)), upto)
        except Exception:
            # Only the log knows whether the commit happened, and the next span may be cut differently.
            self._in_doubt = set(self.tables)
            raise
        writer.skip(upto)
        return rows

    def _rows(self, table: str, slices: Iterator[tuple[int, bytes]]) -> Iterator[pa.Table]:
        """Yield the rows of the slices in pieces, so that memory does not grow with the span.

        Rows that the table had before a restore are compared with the recomputed ones, and left out.
        """
        covered = self._covered[table]
        known_pieces: list[pa.Table] = []
        for piece in in_pieces(
            completed_rows(table, slices, self._state_epoch, self._ops_topic_id, self._rejected_heads)
        ):
            known, fresh = covered.split(piece)
            if known.num_rows:
                known_pieces.append(known)
            if fresh.num_rows:
                yield fresh
        if known_pieces:  # all at once: rows of one record may be in two pieces
            covered.verify(pa.concat_tables(known_pieces))


def _undelivered(
    slices: Iterable[tuple[int, bytes]], writer: ExactlyOnceTable, upto: int
) -> Iterator[tuple[int, bytes]]:
    last = NOTHING
    for seq, data in slices:
        assert last <= seq <= upto, f"apply_seq {seq} comes after {last} in a span that ends at {upto}"
        last = seq
        if seq > writer.delivered:
            yield seq, data
        else:
            # This process knows its own commits: passing their rows again means that apply_seq went back.
            assert seq <= writer.delivered_when_opened, f"apply_seq {seq} was committed by this process already"
