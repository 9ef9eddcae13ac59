"""Reads Delta's commit files and makes them durable.

Delta and Spark issue no fsync on a local file system (measured, with a positive control), so a power loss may lose a
commit or leave an empty file. An outbox entry may be deleted only when the commit with its rows is on the disk,
together with everything that a reader of the table needs: commit file, data files, checkpoints, Hadoop's checksum
files (a stale one makes valid data unreadable) and the folders that contain them.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from connectors.delta.damage import how_to_repair
from connectors.delta.log.actions import CommitInfo, read_actions
from popstream.wire.base_errors import Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Commit",
    "commit_file",
    "commits_after",
    "commits_back_from",
    "commits_up_from",
    "read_commit",
    "sync",
    "sync_commits",
    "sync_up_to",
]


WRITTEN_BACK_AFTER_S = 600.0
"""Linux writes back what is older than half a minute; this leaves it time."""


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int


_decode_stats = msgspec.json.Decoder(_Stats).decode


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of a Delta table.

    Attributes:
        version: Version of the table that the commit made.
        operation: Delta's name of the operation.
        txns: Last `txnVersion` by `txnAppId`.
        added_paths: Files with rows that the commit added.
        added_rows: Rows in these files.
        removed_paths: Files that the commit removed.
        changes_table: It changes columns, properties, or the required reader and writer versions.
        restored_version: For a RESTORE: the version that was restored.
    """

    version: int
    operation: str
    txns: dict[str, int]
    added_paths: list[str]
    added_rows: int
    removed_paths: list[str]
    changes_table: bool
    restored_version: int | None = None


def read_commit(table: Path, version: int) -> Commit | None:
    """Read one commit; None: its file was deleted (Delta deletes files that a checkpoint covers after 7 days).

    Raises:
        Corrupt: The file cannot be read.
    """
    file = commit_file(table, version)
    try:
        actions = read_actions(file)
    except FileNotFoundError:
        return None
    except Corrupt as error:
        message = f"{error.message}: {how_to_repair(table.name)}"
        raise Corrupt(message, subject=error.subject) from error
    info = next((action.commit_info for action in actions if action.commit_info is not None), CommitInfo())
    added = [action.add for action in actions if action.add is not None]
    try:
        restored = (info.operation_parameters or {}).get("version") if info.operation == "RESTORE" else None
        return Commit(
            version=version,
            restored_version=None if restored is None else int(restored),
            operation=info.operation,
            txns={action.txn.app_id: action.txn.version for action in actions if action.txn is not None},
            added_paths=[unquote(add.path) for add in added],
            removed_paths=[unquote(action.remove.path) for action in actions if action.remove is not None],
            changes_table=any(action.meta_data is not None or action.protocol is not None for action in actions),
            added_rows=sum(_decode_stats(add.stats).num_records for add in added if add.stats),
        )
    except (*DECODE_ERRORS, ValueError, TypeError) as error:
        message = f"the log of {table.name} is damaged: {file} cannot be read: {error}: {how_to_repair(table.name)}"
        raise Corrupt(message, subject=table.name) from error


def commits_back_from(table: Path, version: int) -> Iterator[Commit]:
    """Yield the commits from `version` downwards, as far as their files exist."""
    for number in range(version, -1, -1):
        commit = read_commit(table, number)
        if commit is None:
            return
        yield commit


def commits_up_from(table: Path, version: int) -> list[Commit]:
    """Return the commits above `version`, in order, up to the first missing one."""
    numbers = itertools.count(version + 1)
    return list(iter(lambda: read_commit(table, next(numbers)), None))


def commits_after(table: Path, version: int) -> list[Commit]:
    """Return the commits above `version`, in order, for all files that exist: the first ones may be deleted."""
    versions = sorted(int(file.stem) for file in (table / "_delta_log").glob("[0-9]" * 20 + ".json"))
    commits = (read_commit(table, found) for found in versions if found > version)
    return [commit for commit in commits if commit is not None]


def sync_commits(table: Path, commits: Iterable[Commit]) -> None:
    """Make `commits` durable: when this returns, they survive a power loss.

    A missing data file was compacted and vacuumed meanwhile: its rows are in a later commit, which is synced too.
    """
    log = table / "_delta_log"
    files = {log / "_last_checkpoint"}
    for commit in commits:
        files |= {table / path for path in commit.added_paths}
        files |= {log / f"{commit.version:020d}{suffix}" for suffix in (".json", ".crc", ".checkpoint.parquet")}
    folders = {file.parent for file in files} | {table, table.parent}
    for file in sorted(files | {_checksum_of(file) for file in files}):
        sync(file)
    for folder in sorted(folders):
        sync(folder)


def sync_up_to(table: Path, version: int) -> None:
    """Make a version durable: its commit, and those before it that the system may not have written back yet.

    For a commit that removes files of this version: else a power loss may take the commit that says which rows are
    delivered, and leave the rows. Writers that do not sync, as Spark, may have made several.
    """
    oldest_s = time.time() - WRITTEN_BACK_AFTER_S
    young = itertools.takewhile(lambda commit: _written_s(table, commit) > oldest_s, commits_back_from(table, version))
    sync_commits(table, [*young] or [*itertools.islice(commits_back_from(table, version), 1)])


def _written_s(table: Path, commit: Commit) -> float:
    try:
        return commit_file(table, commit.version).stat().st_mtime
    except FileNotFoundError:  # Delta deletes what a checkpoint covers
        return 0.0


def commit_file(table: Path, version: int) -> Path:
    """Return the file of a commit, whether or not it exists."""
    return table / "_delta_log" / f"{version:020d}.json"


def _checksum_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power loss. Does nothing for a missing file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
