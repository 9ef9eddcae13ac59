"""Adds a commit to the log of a Delta table, without Spark.

```
.<random>.commit  ── synced ──> link to 00000000000000000042.json, the first version that is free
```

It has a checksum of this version and of itself (commit_checksum.py), so it is written anew for each version that is
tried.

A link fails if its name exists, in any process, so a commit made here never replaces another. Spark, on a local disk,
looks whether the file exists and then renames over it, with a lock that holds within one JVM only (`HDFSLogStore`): a
Spark of somebody else, in the moment between its look and its rename, may replace a commit made here. Storage without
hard links is refused by the start of a job (`pipelines.process.preflight`).
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from connectors.delta.log.commit_checksum import with_checksum
from connectors.delta.log.commits import Commit, commit_file, commits_after, commits_up_from, sync, sync_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from connectors.delta.log.table_log import DataFile

__all__ = ["add_action", "commit_info", "remove_action", "txn_action", "write_commit"]


def write_commit(
    table: Path,
    read_version: int,
    actions: Iterable[Mapping[str, Any]],
    examine: Callable[[Commit], None],
    *,
    durable: bool = True,
) -> int:
    """Make `actions` the first free version after `read_version`, and return that version.

    Args:
        table: Folder of the table.
        read_version: A version that exists, or existed.
        actions: The lines of the commit, of which the first one is that of `commit_info`. Their data files are on the
            disk.
        examine: Called with each commit after `read_version`, in order, before one is made on top of it. Raises if
            there must be none.
        durable: Make the commits after `read_version`, and this one, survive a power loss.

    Raises:
        Corrupt: A commit in between cannot be read.
        OSError: The disk is full, for example. The commit may be there nevertheless, as when the folder cannot be
            synced: data files of an error are deleted by `deleted_unless_committed` alone.
    """
    log = table / "_delta_log"
    version = _linked_after(table, read_version, list(actions), examine, durable=durable)
    # What a power loss has left of a lost commit with this version: Hadoop would compare this one with it.
    (log / f".{version:020d}.json.crc").unlink(missing_ok=True)
    if durable:
        sync(log)
    return version


def commit_info(read_version: int, operation: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the action that says who made a commit, and how."""
    info = {"timestamp": int(time.time() * 1000), "operation": operation, "readVersion": read_version, **fields}
    return {"commitInfo": {**info, "engineInfo": "popstream"}}


def add_action(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    """Return the action that adds a file to the table. `data_change`: its rows are not those of removed files."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": file.partition_values,
            "size": file.size,
            "modificationTime": file.modification_ms,
            "dataChange": data_change,
            "stats": file.stats,
        }
    }


def remove_action(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    """Return the action that removes a file from the table. `data_change`: its rows are in no other file then."""
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": int(time.time() * 1000),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": file.partition_values,
            "size": file.size,
        }
    }


def txn_action(app_id: str, version: int) -> dict[str, Any]:
    """Return the action that sets the last `txnVersion` of an application."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": int(time.time() * 1000)}}


def _linked_after(
    table: Path, version: int, actions: list[Mapping[str, Any]], examine: Callable[[Commit], None], *, durable: bool
) -> int:
    while True:
        for commit in _commits_since(table, version):
            examine(commit)
            if durable:
                sync_commits(table, [commit])
            version = commit.version
        data = with_checksum(version + 1, actions, _empty_up_to(table, version))
        try:
            _link(data, commit_file(table, version + 1), durable=durable)
        except FileExistsError:
            continue
        return version + 1


def _link(data: bytes, commit: Path, *, durable: bool) -> None:
    """Make a commit, whole. Raises FileExistsError if there is one of this version."""
    unnamed = commit.with_name(f".{secrets.token_hex(16)}.commit")
    try:
        unnamed.write_bytes(data)
        if durable:
            sync(unnamed)
        os.link(unnamed, commit)
    finally:
        unnamed.unlink(missing_ok=True)


def _empty_up_to(table: Path, version: int) -> list[int]:
    """Return the versions from this one downwards whose commits are empty."""
    files = itertools.takewhile(_is_empty, (commit_file(table, number) for number in range(version, -1, -1)))
    return [int(file.stem) for file in files]


def _is_empty(file: Path) -> bool:
    try:
        return file.stat().st_size == 0
    except FileNotFoundError:  # deleted after a week
        return False


def _commits_since(table: Path, version: int) -> list[Commit]:
    """Return the commits after `version`.

    Delta deletes files that a checkpoint covers after 7 days. Then the next version looks free, and is not.
    """
    if commit_file(table, version).exists():
        return commits_up_from(table, version)
    return commits_after(table, version)
