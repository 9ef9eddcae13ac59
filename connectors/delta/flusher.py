"""From the outbox to Delta: the rows of a span of micro-batches in one commit, each row exactly once.

```
outbox   seq 3   4   5 | 6   7   8   9      v = 5, read from Delta
                       └── one commit, txn = (<pipeline>/<table>/<state_epoch>, 9)
```

Delta remembers the last `txnVersion` of each `txnAppId` in the commit that carries it, so "written" and "known to be
written" are one fact. A writer that was killed between commit and note finds v in the table and leaves out what it
covers, however the span is cut the second time. Two traps, both met in tests: Delta *skips in silence* a version at
or below v, so nothing is handed to it that is not above; and RESTORE brings back old rows but not the old v, so it is
looked for.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from delta.exceptions import ConcurrentTransactionException

from connectors.delta.commits import Commit, commits_back_from, read_commit, sync_commits
from connectors.delta.rows import decode_rows
from connectors.delta.store import ensure_table, newest_versions
from connectors.delta.tables import AUDIT_TABLES, arrow_schema, spark_schema, table_path
from connectors.errors import Corrupt, Fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["AuditFlusher"]

_ROWS_PER_WRITE: Final = 131_072
_MS_PER_DAY: Final = 86_400_000
_NOTHING: Final = -1


class _Position(msgspec.Struct):
    """What is known of one table.

    Args:
        delivered: v.
        delivered_when_opened: v as it was read from Delta when this process began.
        committed: The transaction's version in Delta; v may be above it by spans without rows.
        version: Table version that was last looked at.
    """

    delivered: int
    delivered_when_opened: int
    committed: int
    version: int


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
        Corrupt: a table was RESTOREd.
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
        self._root = root
        self._pipeline = pipeline
        self._state_epoch = state_epoch
        self._ops_topic_id = ops_topic_id
        self._durable = durable
        # Marks our commits. Another writer with the same transaction id would make Delta skip ours without a word.
        self._token = secrets.token_hex(8)
        self._scratch = root / ".scratch"
        # What a killed predecessor was about to write; it is in the outbox.
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._positions: dict[str, _Position] = {}
        for table in AUDIT_TABLES.values():
            ensure_table(spark, root, table)
            self._positions[table.name] = self._open(table.name)

    def delivered(self, table: str) -> int:
        """v: the rows of all apply_seq up to this one are in the table; -1 when none are."""
        return self._positions[table].delivered

    def require_not_ahead(self, applied_seq: int) -> None:
        """Check at start that no table holds rows of decisions that the state does not know.

        Raises:
            Corrupt: one does; the state was restored, or lost its last writes, without a new state epoch. Its new
                decisions would get numbers that Delta has seen, and be skipped in silence.
        """
        ahead = [
            f"{name}: {position.delivered}"
            for name, position in self._positions.items()
            if position.delivered > applied_seq
        ]
        if ahead:
            message = (
                f"Delta holds rows of later decisions than the state, which ends at apply_seq {applied_seq}: restore it"
            )
            raise Corrupt(message, subject=self._state_epoch, details=ahead)

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
        position = self._positions[table]
        scratch = self._scratch / self._token / f"{table}.parquet"
        scratch.parent.mkdir(parents=True, exist_ok=True)
        try:
            rows = self._write_scratch(table, _undelivered(slices, position, upto), scratch)
            if rows:
                self._commit(table, scratch, upto, rows)
        except Exception:
            # Whether the commit happened is known to Delta alone.
            self._positions[table] = self._open(table)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                scratch.unlink()
        position.delivered = max(position.delivered, upto)
        return rows

    def _app_id(self, table: str) -> str:
        return f"{self._pipeline}/{table}/{self._state_epoch}"

    def _open(self, table: str) -> _Position:
        version, committed = self._newest(table)
        path = table_path(self._root, table)
        # Each of our commits was synced before the next: only the newest may not be, and what others did since.
        recent: list[Commit] = []
        for commit in commits_back_from(path, version):
            recent.append(commit)
            if any(app_id.startswith(f"{self._pipeline}/{table}/") for app_id in commit.txns):
                break
        if committed != _NOTHING:
            _refuse_restored(table, recent)
        if self._durable:
            sync_commits(path, recent)
        return _Position(delivered=committed, delivered_when_opened=committed, committed=committed, version=version)

    def _newest(self, table: str) -> tuple[int, int]:
        version, committed = newest_versions(self._spark, table_path(self._root, table), self._app_id(table))
        return version, _NOTHING if committed is None else committed

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

    def _commit(self, table: str, scratch: Path, version: int, rows: int) -> None:
        position = self._positions[table]
        assert version > position.delivered, f"{table}: Delta would skip version {version}, it has {position.delivered}"
        path = table_path(self._root, table)
        if self._newest(table)[1] != position.committed:
            raise self._fenced(table, version)
        try:
            self._append(table, scratch, version)
        except ConcurrentTransactionException as error:
            raise self._fenced(table, version) from error
        newest, _ = self._newest(table)
        commits = [
            commit for number in range(position.version + 1, newest + 1) if (commit := read_commit(path, number))
        ]
        ours = [commit for commit in commits if self._app_id(table) in commit.txns]
        if [commit.user_metadata for commit in ours] != [self._token]:
            raise self._fenced(table, version)
        assert ours[0].added_rows == rows, f"{table}: wrote {ours[0].added_rows} rows of {rows}"
        _refuse_restored(table, commits)
        if self._durable:
            sync_commits(path, commits)
        position.version, position.committed = newest, version

    def _append(self, table: str, scratch: Path, version: int) -> None:
        frame = self._spark.read.schema(spark_schema(AUDIT_TABLES[table])).parquet(str(scratch)).coalesce(1)
        writer = frame.write.format("delta").mode("append").option("userMetadata", self._token)
        writer = writer.option("txnAppId", self._app_id(table)).option("txnVersion", version)
        writer.save(str(table_path(self._root, table)))

    def _fenced(self, table: str, version: int) -> Fenced:
        message = f"another process writes to {table} for the same state (at apply_seq {version}): stop this one"
        return Fenced(message, subject=table)


def _undelivered(slices: Iterable[tuple[int, bytes]], position: _Position, upto: int) -> Iterator[tuple[int, bytes]]:
    last = _NOTHING
    for seq, data in slices:
        assert last <= seq <= upto, f"apply_seq {seq} comes after {last} in a span that ends at {upto}"
        last = seq
        if seq > position.delivered:
            yield seq, data
        else:
            # Our own commits are known: asking again for their rows means that apply_seq went back.
            assert seq <= position.delivered_when_opened, f"apply_seq {seq} was committed by this process already"


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


def _refuse_restored(table: str, commits: Iterable[Commit]) -> None:
    if any(commit.operation == "RESTORE" for commit in commits):
        message = (
            f"{table} was RESTOREd after our last commit: rows are gone that Delta still counts as written, and it"
            " would skip them in silence. Restore the state too, with a new state epoch"
        )
        raise Corrupt(message, subject=table)
