"""A Delta table to which the rows of each version are committed exactly once, without Spark.

```
rows ──> Parquet files below the table, synced ──> one commit: txn (txnAppId, v), add, add ...
```

Each commit stores its `txnVersion` v by `txnAppId`, so rows and the fact that they are written become durable together;
likewise how many rows there are by now, and what is in them (row_totals.py). A writer that was killed after its commit
finds v in the table and leaves out the rows up to v, even if it cuts spans differently. Each commit is made on top of
commits that were looked at: none of another writer of the same state, and no RESTORE, which brings back old rows but
not the old v. What Spark has to do with the table is to make it, and to write checkpoints of its log. docs/adr/0011 has
the reasons.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from connectors.delta.data_files import write_data_files
from connectors.delta.log.commits import (
    Commit,
    commit_file,
    commits_back_from,
    read_commit,
    sync_commits,
)
from connectors.delta.log.table_log import checkpoint_damage, require_table_log
from connectors.delta.log.transactions import app_id, versions_by_epoch
from connectors.delta.log.uncommitted_files import deleted_unless_committed
from connectors.delta.log.write_commit import add_action, commit_info, txn_action, write_commit
from connectors.delta.row_totals import RowTotalsWriter
from connectors.delta.spark_errors import SPARK_ERRORS
from connectors.delta.store import TABLE_CHECKPOINT_INTERVAL, ensure_table, require_appendable, write_table_checkpoint
from connectors.delta.tables import Table, table_path
from connectors.java_errors import first_line
from popstream.wire.base_errors import RESTORE, Corrupt, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from connectors.delta.log.table_log import DataFile

__all__ = ["NOTHING", "ExactlyOnceTable"]

NOTHING: Final = -1

_log = structlog.get_logger(__name__)


class ExactlyOnceTable:
    """One table with one writer and ascending versions. Not thread-safe.

    Args:
        spark: Session with Delta.
        root: Folder of the tables.
        table: The table; it is created when it is missing.
        pipeline: Name of the pipeline: first part of the transaction's id.
        state_epoch: Identity of the RocksDB state that counts the versions.
        restores_known: Version of the table up to which a restore has handled every RESTORE.
        durable: Return from `append` only when the commit survives a power loss. Without it the caller must keep the
            rows until something else makes the commit durable.
        require_ownership: Raises if another job may write to the table now. Called before data files are written, and
            again right before the commit, because a process may be frozen meanwhile.

    Attributes:
        delivered: v: the rows of all versions up to this one are in the table; -1: none.
        delivered_when_opened: v as read from Delta when this process began.
        committed: The last version with a commit. Lower than v after versions without rows.
        versions: The last version of each state epoch, as Delta stores them.
        was_restored: The table was RESTOREd and no restore has handled it: rows may be missing that Delta counts as
            written.
        table_checkpoint_failure: Why the last checkpoint of the log that this process was to write could not be
            written; None: it was, or none was due.
        written_since: State epochs that have written rows after the restore that began this one, and before its first
            rows: they are not known to it.

    Raises:
        Invalid: The table has other columns than this version writes, or a feature for which rows cannot be appended
            without Spark.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        table: Table,
        pipeline: str,
        state_epoch: str,
        *,
        restores_known: int | None = None,
        durable: bool = True,
        require_ownership: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the table if it is missing, and read its versions."""
        self.name = table.name
        self._table = table
        self._spark = spark
        self._root = root
        self._path = table_path(root, table.name)
        self._pipeline = pipeline
        self._state_epoch = state_epoch
        self._app_id = app_id(pipeline, table.name, state_epoch)
        self._restores_known = restores_known
        self._durable = durable
        self._require_ownership = require_ownership
        self.table_checkpoint_failure: str | None = None
        ensure_table(spark, root, table)
        self._read()

    def reopen(self) -> None:
        """Read the versions again: after a failed commit only Delta knows whether it happened.

        Raises:
            Corrupt: The table was RESTOREd.
        """
        self._read()
        self.require_not_restored()

    def require_not_restored(self) -> None:
        """Raise Corrupt if the table was RESTOREd after the last commit of this state."""
        if self.was_restored:
            raise self._restored()

    def _read(self) -> None:
        log = require_table_log(self._path)
        version, self.versions = log.version, versions_by_epoch(log.txns, self._pipeline, self.name)
        # Each commit was synced before the next: only the newest one, and later commits of others, may not be durable.
        history = commits_back_from(self._path, version)
        recent = self._down_to_a_commit_of_a_job(history)
        self.committed = self.versions.get(self._state_epoch, NOTHING)
        # A state without rows in this table, and without a restore, cannot miss rows.
        counts_on_rows = self.committed != NOTHING or self._restores_known is not None
        self.was_restored = counts_on_rows and self._has_unknown_restore(recent)
        self.written_since = self._others_since_restore(recent)
        if recent and self._app_id in recent[-1].txns:
            # A RESTORE between the last check and our commit is below that commit.
            below = self._down_to_a_commit_of_a_job(history)
            self.was_restored |= bool(below) and self._app_id in below[-1].txns and self._has_unknown_restore(below)
        if self._durable:
            sync_commits(self._path, recent)
        self.delivered = self.delivered_when_opened = self.committed
        self._totals = RowTotalsWriter(
            self.name, self._state_epoch, log.txns, self.committed, was_restored=_has_restore(recent)
        )
        self._version = version
        self._own_commit: tuple[int, int] | None = None
        """Identity of the file of this process's last commit."""

    def append(self, pieces: Iterable[pa.Table], version: int) -> int:
        """Commit the rows of versions (v, `version`], and return their number. Without rows nothing is committed.

        Args:
            pieces: The rows, with the columns of the table.
            version: Above v.

        Raises:
            Fenced: Another job has committed since the table was read, or owns the prefix now.
            Corrupt: The table was RESTOREd, its log is damaged, or the new files do not have all rows.
            Unavailable: It is not known whether this job owns the prefix.
            Invalid: Somebody has changed the table so that rows cannot be appended.
            OSError: The disk is full, for example.
        """
        self._require_ownership()
        self._require_own_commit()
        self._totals.discard()
        counted = _Counted(pieces, self._count)
        files = write_data_files(self._path, self._table, counted, durable=self._durable)
        if not files:
            return 0
        before = self._version
        with deleted_unless_committed(self._path, before, [file.path for file in files]):
            self._require_all_rows(files, counted.rows)
            assert version > self.delivered, f"{self.name}: {version} is delivered, the table has {self.delivered}"
            self._require_ownership()
            committed = write_commit(
                self._path,
                before,
                self._actions(files, counted.rows, version),
                lambda commit: self._require_compatible(commit, version),
                durable=self._durable,
            )
        self._totals.committed()
        self._version, self.committed, self.delivered = committed, version, version
        self._own_commit = _identity(commit_file(self._path, committed))
        if committed // TABLE_CHECKPOINT_INTERVAL > before // TABLE_CHECKPOINT_INTERVAL:
            self._write_table_checkpoint()
        return counted.rows

    def skip(self, version: int) -> None:
        """Count the table as delivered up to `version`, which has no rows. Nothing is committed."""
        self.delivered = max(self.delivered, version)

    def _count(self, rows: pa.Table) -> None:
        if self._table.partitioned_by is not None:
            self._totals.add(rows, self._table.partitioned_by)

    def _actions(self, files: list[DataFile], rows: int, version: int) -> Iterator[dict[str, object]]:
        yield commit_info(
            self._version,
            "WRITE",
            operationParameters={"mode": "Append", "partitionBy": "[]"},
            isolationLevel="Serializable",
            isBlindAppend=True,
            operationMetrics={
                "numFiles": str(len(files)),
                "numOutputRows": str(rows),
                "numOutputBytes": str(sum(file.size for file in files)),
            },
        )
        for app, last in {self._app_id: version, **self._totals.txns()}.items():
            yield txn_action(app, last)
        for file in files:
            yield add_action(file, data_change=True)

    def _require_all_rows(self, files: Sequence[DataFile], rows: int) -> None:
        """Raise if files do not have the rows that were written to them, by their footers."""
        found = sum(file.rows for file in files)
        if found != rows:
            message = (
                f"the new files of {self.name} have {found} rows, and {rows} were written: nothing was committed; start"
                " the job again"
            )
            raise Corrupt(message, subject=self.name)

    def _require_compatible(self, commit: Commit, version: int) -> None:
        """Raise if rows of this state must not follow a commit of somebody else."""
        if versions_by_epoch(commit.txns, self._pipeline, self.name):
            state = "the same state" if self._app_id in commit.txns else "another state"
            message = f"another process writes to {self.name} for {state} (at apply_seq {version}): stop this one"
            raise Fenced(message, subject=self.name)
        if commit.operation == "RESTORE":
            raise self._restored()
        if commit.changes_table:
            require_appendable(self._path, self._table)

    def _require_own_commit(self) -> None:
        """Raise if the last commit of this process was replaced, as a Spark in another process may do."""
        try:
            found = _identity(commit_file(self._path, self._version))
        except FileNotFoundError:
            return  # Delta deletes commits that a checkpoint covers, after a week
        if self._own_commit not in (None, found):
            message = f"another process has replaced version {self._version} of {self.name}, with rows of it: {RESTORE}"
            raise Corrupt(message, subject=self.name)

    def _write_table_checkpoint(self) -> None:
        """Let Spark write a checkpoint. Without one, readers only read more commits."""
        try:
            write_table_checkpoint(self._spark, self._path)
            commit = read_commit(self._path, self._version) if self._durable else None
        except (*SPARK_ERRORS, Corrupt) as error:
            damage = None
            with contextlib.suppress(OSError):  # such as too many open files, which Spark may have met as well
                damage = checkpoint_damage(self._path)  # Spark needs the one before, and does not always name it
            reason = first_line(error) if damage is None else damage.message
            self.table_checkpoint_failure = (
                f"no checkpoint of the log of {self.name} was written at version {self._version}: {reason}"
            )
            _log.warning("no_checkpoint_written", table=self.name, version=self._version, error=reason)
            return
        self.table_checkpoint_failure = None
        if commit is not None:
            sync_commits(self._path, [commit])

    def _down_to_a_commit_of_a_job(self, history: Iterator[Commit]) -> list[Commit]:
        found = []
        for commit in history:
            found.append(commit)
            if versions_by_epoch(commit.txns, self._pipeline, self.name):
                break
        return found

    def _has_unknown_restore(self, commits: Iterable[Commit]) -> bool:
        known = NOTHING if self._restores_known is None else self._restores_known
        return _has_restore(commit for commit in commits if commit.version > known)

    def _others_since_restore(self, recent: list[Commit]) -> set[str]:
        if not recent or self._restores_known is None or recent[-1].version <= self._restores_known:
            return set()
        return {*versions_by_epoch(recent[-1].txns, self._pipeline, self.name)} - {self._state_epoch}

    def _restored(self) -> Corrupt:
        message = (
            f"{self.name} was RESTOREd after the last commit of the job: rows are missing that Delta still counts as"
            f" written: {RESTORE}"
        )
        return Corrupt(message, subject=self.name)


def _has_restore(commits: Iterable[Commit]) -> bool:
    return any(commit.operation == "RESTORE" for commit in commits)


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns  # the number alone is given to the next file


class _Counted:
    """Tables that are counted as they are read."""

    def __init__(self, pieces: Iterable[pa.Table], count: Callable[[pa.Table], None]) -> None:
        self._pieces = pieces
        self._count = count
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for piece in self._pieces:
            self.rows += piece.num_rows
            self._count(piece)
            yield piece
