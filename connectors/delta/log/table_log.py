"""Reads the log of a Delta table without Spark.

A job reads the logs of its tables before it decides anything; a cold Spark would take ten seconds for two files.
Follows Delta's protocol ("Delta Transaction Log Protocol", Checkpoints and Action Reconciliation): the newest complete
checkpoint, then each commit after it; the last transaction of each application and the last metadata count.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

import msgspec

from connectors.delta.damage import how_to_repair
from connectors.delta.log.actions import Action, MetaData, Protocol, read_actions
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "READER_VERSION_MAX",
    "DataFile",
    "DataFiles",
    "TableLog",
    "checkpoint_damage",
    "checkpoints_of",
    "newest_version",
    "read_data_files",
    "read_table_log",
    "require_readable",
    "require_table_log",
]

READER_VERSION_MAX: Final = 1
"""Above it a row of a file may be none of the table, or have its columns under other names."""

Reconciled = TypeVar("Reconciled")
Found = TypeVar("Found")

_COMMIT = re.compile(r"(\d{20})\.json")
# Classic checkpoints in one file or several, and version 2, whose name has an id. The actions read here are in the
# file itself.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")


class TableLog(msgspec.Struct, frozen=True, kw_only=True):
    """A table at its newest version.

    Attributes:
        version: The newest version.
        protocol: What readers and writers need.
        schema: JSON of Spark's StructType.
        properties: Properties of the table.
        txns: The last `txnVersion` by `txnAppId`.
    """

    version: int
    protocol: Protocol
    schema: str
    properties: dict[str, str]
    txns: dict[str, int]


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with rows of a table.

    Attributes:
        path: Path below the table's folder, percent-encoded as in the log.
        size: Size in bytes.
        modification_ms: When its rows were written, ms since 1970.
        partition_values: Values by column, as text.
        stats: Statistics of its rows, as JSON.
    """

    path: str
    size: int
    modification_ms: int
    partition_values: dict[str, str | None]
    stats: str | None

    @property
    def relative_path(self) -> str:
        """Its path below the table's folder, as the file system has it."""
        return unquote(self.path)

    @property
    def rows(self) -> int:
        """Number of its rows by the statistics; 0: they do not say."""
        return int(msgspec.json.decode(self.stats or "{}").get("numRecords", 0))


class DataFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a table at a version.

    Attributes:
        version: The version.
        protocol: What readers and writers need.
        schema: JSON of Spark's StructType.
        files: The files, in no particular order.
        txns: The last `txnVersion` by `txnAppId`.
    """

    version: int
    protocol: Protocol
    schema: str
    files: list[DataFile]
    txns: dict[str, int]


def require_table_log(table: Path, version: int | None = None) -> TableLog:
    """Return the log of the table in this folder, up to a version (None: the newest).

    Raises:
        Unavailable: There is no table, for example because a volume is not mounted.
        Corrupt: As in `read_table_log`.
    """
    log = read_table_log(table, version)
    if log is None:
        message = f"there is no table at {table}"
        raise Unavailable(message, subject=table.name)
    return log


def read_table_log(table: Path, version: int | None = None) -> TableLog | None:
    """Return the log of the table in this folder, up to a version (None: the newest), or None when there is no table.

    Raises:
        Corrupt: A commit is missing, a file cannot be read, or there is no commit or checkpoint to start from.
    """
    return _reconciled(table, version, ("txn", "protocol", "metaData"), _table_log)


def read_data_files(table: Path, version: int | None = None) -> DataFiles | None:
    """Return the data files of the table in this folder at a version (None: the newest), or None if there is no table.

    Raises:
        Corrupt: As in `read_table_log`.
    """
    return _reconciled(table, version, ("txn", "protocol", "metaData", "add", "remove"), _data_files)


def require_readable(table: Path, found: DataFiles) -> None:
    """Refuse a table whose files alone do not say which rows it has.

    Raises:
        Invalid: It needs a reader version of Delta above `READER_VERSION_MAX`.
    """
    wanted = found.protocol.min_reader_version
    if wanted > READER_VERSION_MAX:
        message = (
            f"{table.name} needs reader version {wanted} of Delta: without Spark its files can neither be read nor be"
            " written again"
        )
        raise Invalid(message, subject=table.name)


def newest_version(table: Path) -> int:
    """Return the version of the newest commit of a table; -1: there is none."""
    commits, _ = _found(table / "_delta_log")
    return max(commits, default=-1)


def checkpoints_of(table: Path) -> list[tuple[int, list[Path]]]:
    """Return the complete checkpoints of a table by version, the oldest first, with their files."""
    _, checkpoints = _found(table / "_delta_log")
    return sorted(checkpoints.items())


def checkpoint_damage(table: Path) -> Corrupt | None:
    """Return what is damaged in the newest checkpoint, or None. Delta needs it even if all commits before it exist."""
    _, checkpoints = _found(table / "_delta_log")
    newest = checkpoints[max(checkpoints)] if checkpoints else []
    try:
        for _ in _actions(newest, [], ("txn", "protocol", "metaData", "add", "remove")):
            pass
    except Corrupt as error:
        message = f"{error.message}: {how_to_repair(table.name)}"
        return Corrupt(message, subject=table.name)
    return None


def _reconciled(
    table: Path,
    version: int | None,
    wanted: Sequence[str],
    reconcile: Callable[[Path, int, Iterator[Action]], Reconciled],
) -> Reconciled | None:
    """Return the result of `reconcile` for the actions of the wanted kinds, or None when there is no table."""
    commits, checkpoints = _found(table / "_delta_log", version)
    newest = max([*commits, *checkpoints], default=None)
    if newest is None:
        return None
    problem = ""
    if newest not in commits:  # Delta deletes old commits, and never the newest
        problem = f"the log of {table.name} lacks version {newest}, and has a checkpoint of it"
        checkpoints = {}
    # An unreadable checkpoint can be replaced by the commits before it, as long as their files exist.
    for begin in sorted([-1, *checkpoints], reverse=True):
        missing = [version for version in range(begin + 1, newest + 1) if version not in commits]
        if missing:
            problem = problem or f"the log of {table.name} lacks version {missing[0]}, and has {newest}"
            continue
        try:
            after = [commits[version] for version in range(begin + 1, newest + 1)]
            return reconcile(table, newest, _actions(checkpoints.get(begin, []), after, wanted))
        except Corrupt as error:
            problem = problem or error.message
    message = f"{problem}: {how_to_repair(table.name)}"
    raise Corrupt(message, subject=table.name)


def _table_log(table: Path, version: int, actions: Iterator[Action]) -> TableLog:
    txns: dict[str, int] = {}
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    for action in actions:
        if action.txn is not None:
            txns[action.txn.app_id] = action.txn.version
        protocol = action.protocol or protocol
        metadata = action.meta_data or metadata
    metadata = _required(metadata, table, "metaData")
    return TableLog(
        version=version,
        protocol=_required(protocol, table, "protocol"),
        schema=metadata.schema_string,
        properties=dict(metadata.configuration or {}),
        txns=txns,
    )


def _data_files(table: Path, version: int, actions: Iterator[Action]) -> DataFiles:
    files: dict[str, DataFile] = {}
    txns: dict[str, int] = {}
    protocol: Protocol | None = None
    metadata: MetaData | None = None
    for action in actions:
        protocol = action.protocol or protocol
        metadata = action.meta_data or metadata
        if action.txn is not None:
            txns[action.txn.app_id] = action.txn.version
        elif (add := action.add) is not None:
            files[add.path] = DataFile(
                path=add.path,
                size=add.size,
                modification_ms=add.modification_time,
                partition_values=dict(add.partition_values),
                stats=add.stats,
            )
        elif action.remove is not None:
            files.pop(action.remove.path, None)
    return DataFiles(
        version=version,
        protocol=_required(protocol, table, "protocol"),
        schema=_required(metadata, table, "metaData").schema_string,
        files=list(files.values()),
        txns=txns,
    )


def _required(action: Found | None, table: Path, what: str) -> Found:
    if action is None:
        message = f"the log of {table.name} lacks the action {what}"
        raise Corrupt(message, subject=table.name)
    return action


def _found(log: Path, upto: int | None = None) -> tuple[dict[int, Path], dict[int, list[Path]]]:
    """Return commits and complete checkpoints by version, up to one of them (None: all)."""
    commits: dict[int, Path] = {}
    parts: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in log.iterdir() if log.is_dir() else ():
        if commit := _COMMIT.fullmatch(path.name):
            commits[int(commit[1])] = path
        elif checkpoint := _CHECKPOINT.fullmatch(path.name):
            parts[int(checkpoint[1]), int(checkpoint[3] or 1)].append(path)
    end = math.inf if upto is None else upto
    return (
        {version: path for version, path in commits.items() if version <= end},
        {version: files for (version, wanted), files in parts.items() if len(files) >= wanted and version <= end},
    )


def _actions(checkpoint: Iterable[Path], commits: Iterable[Path], wanted: Sequence[str]) -> Iterator[Action]:
    for path in (*checkpoint, *commits):
        try:
            yield from read_actions(path, wanted)
        except FileNotFoundError as error:  # deleted since it was listed
            message = f"{path} cannot be read: {error}"
            raise Corrupt(message, subject=str(path)) from error
