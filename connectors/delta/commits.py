"""Delta's commit files, read and made durable.

Nobody else does it: Delta and Spark issue no fsync on a local file system (measured, with a positive control). After
a power loss a commit may be missing, or be an empty file. An outbox entry may go only when the commit that holds its
rows is on the disk, with everything in between that a reader of the table needs: commit file, data files,
checkpoints, Hadoop's checksum sidecars (a stale one makes good data unreadable) and the folders that name them.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Commit", "commits_after", "commits_back_from", "commits_up_from", "read_commit", "sync", "sync_commits"]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What this project needs to know of one commit of a Delta table."""

    version: int
    operation: str
    user_metadata: str | None
    txns: dict[str, int]
    added_paths: list[str]
    added_rows: int
    removed_paths: list[str]
    changes_table: bool
    """Its columns, its properties, or what a reader or writer must know."""
    restored_version: int | None = None
    """Of a RESTORE: the version that the table went back to."""


def read_commit(table: Path, version: int) -> Commit | None:
    """Read one commit, or None when its file is gone (Delta removes what a checkpoint covers after 7 days)."""
    try:
        lines = _commit_file(table, version).read_bytes().splitlines()
    except FileNotFoundError:
        return None
    actions = [msgspec.json.decode(line) for line in lines]
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    added = [action["add"] for action in actions if "add" in action]
    restored = infos[0].get("operationParameters", {}).get("version") if infos else None
    is_restore = bool(infos) and infos[0]["operation"] == "RESTORE"
    return Commit(
        version=version,
        restored_version=int(restored) if is_restore and restored is not None else None,
        operation=infos[0]["operation"] if infos else "",
        user_metadata=infos[0].get("userMetadata") if infos else None,
        txns={action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action},
        added_paths=[unquote(add["path"]) for add in added],
        removed_paths=[unquote(action["remove"]["path"]) for action in actions if "remove" in action],
        changes_table=any("metaData" in action or "protocol" in action for action in actions),
        added_rows=sum(msgspec.json.decode(add["stats"])["numRecords"] for add in added if add.get("stats")),
    )


def commits_back_from(table: Path, version: int) -> Iterator[Commit]:
    """Commits from `version` downwards, as far as their files are kept."""
    for number in range(version, -1, -1):
        commit = read_commit(table, number)
        if commit is None:
            return
        yield commit


def commits_up_from(table: Path, version: int) -> list[Commit]:
    """Commits above `version`, upwards, until one is missing."""
    numbers = itertools.count(version + 1)
    return list(iter(lambda: read_commit(table, next(numbers)), None))


def commits_after(table: Path, version: int) -> list[Commit]:
    """Commits above `version`, upwards, by the files that there are: the first may be gone."""
    versions = sorted(int(file.stem) for file in (table / "_delta_log").glob("[0-9]" * 20 + ".json"))
    commits = (read_commit(table, found) for found in versions if found > version)
    return [commit for commit in commits if commit is not None]


def sync_commits(table: Path, commits: Iterable[Commit]) -> None:
    """Make `commits` durable: return only when a power loss cannot take them away.

    A data file that is missing was compacted and vacuumed meanwhile: its rows are in a later commit, which is synced
    too.
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


def _commit_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def _checksum_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def sync(path: Path) -> None:
    """Return only when a power loss cannot take the file, or the names in the folder, away; no file: nothing to do."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
