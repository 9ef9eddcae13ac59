"""A Delta table to which the rows of each version are committed exactly once.

Each commit stores its `txnVersion` v by `txnAppId`, so rows and the fact that they are written become durable together.
A writer that was killed after its commit finds v in the table and leaves out the rows up to v, even if it cuts spans
differently. Delta has two traps, both covered by tests: it silently skips a version at or below v, so only higher
versions are passed to it; and RESTORE brings back old rows but not the old v, so a RESTORE is looked for.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from delta.exceptions import ConcurrentTransactionException
from delta.tables import DeltaTable

from connectors.delta.log.commits import Commit, commits_after, commits_back_from, commits_up_from, sync_commits
from connectors.delta.log.transactions import app_id, known_versions, versions_by_epoch
from connectors.delta.spark_errors import require_undamaged
from connectors.delta.store import ensure_table
from connectors.delta.tables import Table, table_path
from popstream.wire.base_errors import RESTORE, Corrupt, Fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NOTHING", "ExactlyOnceTable"]

NOTHING: Final = -1


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

    Attributes:
        delivered: v: the rows of all versions up to this one are in the table; -1: none.
        delivered_when_opened: v as read from Delta when this process began.
        committed: The last version with a commit. Lower than v after versions without rows.
        versions: The last version of each state epoch, as Delta stores them.
        was_restored: The table was RESTOREd and no restore has handled it: rows may be missing that Delta counts as
            written.

    Raises:
        Invalid: The table has other columns than this version writes.
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
    ) -> None:
        """Create the table if it is missing, and read its versions."""
        self.name = table.name
        self._spark = spark
        self._root = root
        self._path = table_path(root, table.name)
        self._pipeline = pipeline
        self._state_epoch = state_epoch
        self._app_id = app_id(pipeline, table.name, state_epoch)
        self._restores_known = restores_known
        self._durable = durable
        # Marks the commits of this process. Another writer with the same transaction id would make Delta skip ours.
        self._token = secrets.token_hex(8)
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
        version, self.versions = known_versions(self._root, self.name, self._pipeline)
        # Each commit was synced before the next: only the newest one, and later commits of others, may not be durable.
        history = commits_back_from(self._path, version)
        recent = self._down_to_a_commit_of_a_job(history)
        self.committed = self.versions.get(self._state_epoch, NOTHING)
        # A state without rows in this table, and without a restore, cannot miss rows.
        counts_on_rows = self.committed != NOTHING or self._restores_known is not None
        self.was_restored = counts_on_rows and self._has_unknown_restore(recent)
        if recent and self._app_id in recent[-1].txns:
            # A RESTORE between the last check and our commit is below that commit.
            below = self._down_to_a_commit_of_a_job(history)
            self.was_restored |= bool(below) and self._app_id in below[-1].txns and self._has_unknown_restore(below)
        if self._durable:
            sync_commits(self._path, recent)
        self.delivered = self.delivered_when_opened = self.committed
        self._version = version

    def append(self, frame: DataFrame, version: int, rows: int | None = None) -> int:
        """Commit the rows of versions (v, `version`], and return their number.

        Args:
            frame: The rows, with the columns of the table.
            version: Above v.
            rows: Expected number of rows, if known.

        Raises:
            Fenced: Another writer committed for the same state.
            Corrupt: The table was RESTOREd, accepted another number of rows, or a file of it is damaged.
        """
        assert version > self.delivered, f"{self.name}: Delta would skip version {version}, it has {self.delivered}"
        foreign = self._fresh_commits()
        if any(self._app_id in commit.txns for commit in foreign):
            raise self._fenced(version)
        if _has_restore(foreign):
            raise self._restored()
        try:
            with require_undamaged(self._path):
                self._save(frame, version)
        except ConcurrentTransactionException as error:
            raise self._fenced(version) from error
        # In a table without commits for a week, the next commit files may be deleted.
        commits = self._fresh_commits() or commits_after(self._path, self._version)
        ours = [commit for commit in commits if self._app_id in commit.txns]
        if [commit.user_metadata for commit in ours] != [self._token]:
            raise self._fenced(version)
        added = ours[0].added_rows
        if rows not in (None, added):
            raise self._taken_back(ours[0], rows)
        if _has_restore(commits):
            raise self._restored()
        if self._durable:
            sync_commits(self._path, commits)
        self._version, self.committed, self.delivered = commits[-1].version, version, version
        return added

    def skip(self, version: int) -> None:
        """Count the table as delivered up to `version`, which has no rows. Nothing is committed."""
        self.delivered = max(self.delivered, version)

    def _save(self, frame: DataFrame, version: int) -> None:
        writer = frame.write.format("delta").mode("append").option("userMetadata", self._token)
        writer = writer.option("txnAppId", self._app_id).option("txnVersion", version)
        writer.save(str(self._path))

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

    def _fresh_commits(self) -> list[Commit]:
        """Return the commits since the last look. Read from the log itself, because Delta would run Spark jobs."""
        return commits_up_from(self._path, self._version)

    def _fenced(self, version: int) -> Fenced:
        message = f"another process writes to {self.name} for the same state (at apply_seq {version}): stop this one"
        return Fenced(message, subject=self.name)

    def _taken_back(self, commit: Commit, rows: int | None) -> Corrupt:
        """Undo a commit with too few rows, whose rows the next start would all count as delivered."""
        DeltaTable.forPath(self._spark, str(self._path)).restoreToVersion(commit.version - 1)
        message = (
            f"{self.name} has taken {commit.added_rows} rows of {rows} in version {commit.version},"
            f" which was undone: {RESTORE}"
        )
        return Corrupt(message, subject=self.name)

    def _restored(self) -> Corrupt:
        message = (
            f"{self.name} was RESTOREd after the last commit of the job: rows are missing that Delta still counts as"
            f" written, and would silently skip: {RESTORE}"
        )
        return Corrupt(message, subject=self.name)


def _has_restore(commits: Iterable[Commit]) -> bool:
    return any(commit.operation == "RESTORE" for commit in commits)
