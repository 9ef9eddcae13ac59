"""From the outbox to Delta: the rows of a span of micro-batches in one commit, each row exactly once.

```
outbox   seq 3   4   5 | 6   7   8   9      v = 5, read from Delta
                       └── one commit, txn = (<pipeline>/<table>/<state_epoch>, 9)
```

Each table is an `ExactlyOnceTable` whose versions are apply_seq.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.delta.covered import Covered
from connectors.delta.exactly_once import NOTHING, ExactlyOnceTable
from connectors.delta.rows import decode_rows, in_pieces
from connectors.delta.tables import AUDIT_TABLES, arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["AuditFlusher"]

_MS_PER_DAY: Final = 86_400_000


class AuditFlusher:
    """Writes outbox slices to the audit tables. One per state, and not from two threads for one table.

    Args:
        spark: Session with Delta.
        root: Folder that holds the tables.
        pipeline: Name of the pipeline: first part of the transaction's id.
        state_epoch: Life of the RocksDB state whose `apply_seq` counts.
        ops_topic_id: Kafka's id of the ops topic, for the column of that name.
        covered: By table and partition, the Kafka offset below which its rows are there already: after a restore.
        compared_from: By table and partition, the Kafka offset below which those need not be as they are recomputed.
        restores_known: By table, the version up to which a restore has dealt with what a RESTORE took.
        durable: Return from `flush` only when the commit would survive a power loss. Without it outbox entries must be
            kept until something else has made sure.

    Raises:
        Invalid: a table has other columns than this version writes.

    Attributes:
        tables: By name; what they hold is for the caller to compare with the state.
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
    ) -> None:
        """Create missing tables and read from each what it holds already."""
        self._spark = spark
        self._state_epoch = state_epoch
        self._ops_topic_id = ops_topic_id
        self._in_doubt: set[str] = set()
        """Tables to be read anew before the next flush."""
        ends, loose = covered or {}, compared_from or {}
        self._covered = {
            name: Covered(spark, root, name, ops_topic_id, ends.get(name, {}), loose.get(name, {}))
            for name in AUDIT_TABLES
        }
        # What a killed predecessor was about to write; it is in the outbox.
        shutil.rmtree(root / ".scratch", ignore_errors=True)
        self._scratch = root / ".scratch" / secrets.token_hex(8)
        self.tables = {
            name: ExactlyOnceTable(
                spark,
                root,
                table,
                pipeline,
                state_epoch,
                restores_known=(restores_known or {}).get(name),
                durable=durable,
            )
            for name, table in AUDIT_TABLES.items()
        }

    @property
    def verified_rows(self) -> int:
        """Rows that were recomputed after a restore, and were as the tables have them."""
        return sum(covered.verified_rows for covered in self._covered.values())

    def delivered(self, table: str) -> int:
        """v: the rows of all apply_seq up to this one are in the table; -1 when none are."""
        return self.tables[table].delivered

    def committed(self) -> dict[str, int]:
        """By table, the last apply_seq that Delta has a commit of, if there is one."""
        return {name: table.committed for name, table in self.tables.items() if table.committed != NOTHING}

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        """Write the rows of apply_seq (v, upto] in one commit; return how many rows that were.

        Slices at or below the v that was read at start are left out: a killed predecessor has written them. Without
        rows nothing is committed, and the table counts as delivered to `upto` until the process ends.

        Args:
            table: Name of an audit table.
            slices: (apply_seq, bytes of `encode_rows`), by ascending apply_seq.
            upto: Last apply_seq of the span, also when it has no rows.

        Raises:
            Fenced: another writer committed for the same state.
            Corrupt: a slice cannot be read, or the table was RESTOREd.
        """
        writer = self.tables[table]
        if table in self._in_doubt:
            writer.reopen()
            self._in_doubt.discard(table)
        scratch = self._scratch / f"{table}.parquet"
        scratch.parent.mkdir(parents=True, exist_ok=True)
        try:
            rows = self._write_scratch(table, _undelivered(slices, writer, upto), scratch)
            if rows:
                frame = self._spark.read.schema(spark_schema(AUDIT_TABLES[table])).parquet(str(scratch)).coalesce(1)
                writer.append(frame, upto, rows)
        except Exception:
            # Whether the commit happened is known to Delta alone, and the next span may be cut at another place.
            self._in_doubt = set(self.tables)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                scratch.unlink()
        writer.skip(upto)
        return rows

    def _write_scratch(self, table: str, slices: Iterator[tuple[int, bytes]], scratch: Path) -> int:
        """Write the slices as one parquet file, in pieces, so that memory does not grow with the span.

        Rows that the table has since before a restore are compared with those, and left out.
        """
        rows = 0
        covered = self._covered[table]
        known_pieces: list[pa.Table] = []
        with pq.ParquetWriter(
            scratch, arrow_schema(AUDIT_TABLES[table]), compression="lz4", write_statistics=False
        ) as writer:
            for piece in in_pieces(self._completed(table, seq, data) for seq, data in slices):
                known, fresh = covered.split(piece)
                if known.num_rows:
                    known_pieces.append(known)
                if fresh.num_rows:
                    writer.write_table(fresh)
                rows += fresh.num_rows
        if known_pieces:  # all at once: rows of one record may be in two pieces
            covered.verify(pa.concat_tables(known_pieces))
        return rows

    def _completed(self, table: str, seq: int, data: bytes) -> pa.Table:
        """The rows of one slice with the columns that are not in the outbox."""
        rows = decode_rows(table, [data])
        count = rows.num_rows
        added = {
            "apply_seq": pa.repeat(pa.scalar(seq, pa.int64()), count),
            "state_epoch": pa.repeat(self._state_epoch, count),
            "ops_topic_id": pa.repeat(self._ops_topic_id, count),
            "op_date": pc.divide(rows["now_ms"], _MS_PER_DAY).cast(pa.int32()).cast(pa.date32()),
        }
        schema = arrow_schema(AUDIT_TABLES[table])
        return pa.table([added[name] if name in added else rows[name] for name in schema.names], schema=schema)


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
            # Our own commits are known: asking again for their rows means that apply_seq went back.
            assert seq <= writer.delivered_when_opened, f"apply_seq {seq} was committed by this process already"
