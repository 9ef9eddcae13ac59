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

from connectors.delta.exactly_once import NOTHING, ExactlyOnceTable
from connectors.delta.rows import decode_rows
from connectors.delta.tables import AUDIT_TABLES, arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["AuditFlusher"]

_ROWS_PER_WRITE: Final = 131_072
_MS_PER_DAY: Final = 86_400_000


class AuditFlusher:
    """Writes outbox slices to the audit tables. One per state, and not from two threads for one table.

    Args:
        spark: Session with Delta.
        root: Folder that holds the tables.
        pipeline: Name of the pipeline: first part of the transaction's id.
        state_epoch: Life of the RocksDB state whose `apply_seq` counts.
        ops_topic_id: Kafka's id of the ops topic, for the column of that name.
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
        durable: bool = True,
    ) -> None:
        """Create missing tables and read from each what it holds already."""
        self._spark = spark
        self._state_epoch = state_epoch
        self._ops_topic_id = ops_topic_id
        # What a killed predecessor was about to write; it is in the outbox.
        shutil.rmtree(root / ".scratch", ignore_errors=True)
        self._scratch = root / ".scratch" / secrets.token_hex(8)
        self.tables = {
            name: ExactlyOnceTable(spark, root, table, pipeline, state_epoch, durable=durable)
            for name, table in AUDIT_TABLES.items()
        }

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
        scratch = self._scratch / f"{table}.parquet"
        scratch.parent.mkdir(parents=True, exist_ok=True)
        try:
            rows = self._write_scratch(table, _undelivered(slices, writer, upto), scratch)
            if rows:
                frame = self._spark.read.schema(spark_schema(AUDIT_TABLES[table])).parquet(str(scratch)).coalesce(1)
                writer.append(frame, upto, rows)
        except Exception:
            # Whether the commit happened is known to Delta alone.
            writer.reopen()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                scratch.unlink()
        writer.skip(upto)
        return rows

    def _write_scratch(self, table: str, slices: Iterator[tuple[int, bytes]], scratch: Path) -> int:
        """Write the slices as one parquet file, in pieces, so that memory does not grow with the span."""
        rows = 0
        with pq.ParquetWriter(
            scratch, arrow_schema(AUDIT_TABLES[table]), compression="lz4", write_statistics=False
        ) as writer:
            for piece in _pieces(self._completed(table, seq, data) for seq, data in slices):
                writer.write_table(piece)
                rows += piece.num_rows
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


def _pieces(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables to pieces of at least 131,072 rows but for the last: a row group each."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        if count >= _ROWS_PER_WRITE:
            yield pa.concat_tables(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
