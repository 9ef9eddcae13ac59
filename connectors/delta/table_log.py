"""Reads the log of a Delta table without Spark.

A job reads the logs of its tables before it decides anything; a cold Spark would take ten seconds for two files.
Follows Delta's protocol ("Delta Transaction Log Protocol", Checkpoints and Action Reconciliation): the newest complete
checkpoint, then each commit after it; the last transaction of each application and the last metadata count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from popstream.wire.base_errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["DataFile", "DataFiles", "TableLog", "read_data_files", "read_table_log", "require_table_log"]

Reconciled = TypeVar("Reconciled")

_COMMIT = re.compile(r"(\d{20})\.json")
# Classic checkpoints in one file or several, and version 2, whose name has an id. The actions read here are in the
# file itself.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")


class TableLog(msgspec.Struct, frozen=True, kw_only=True):
    """A table at its newest version.

    Attributes:
        version: The newest version.
        schema: JSON of Spark's StructType.
        properties: Properties of the table.
        txns: The last `txnVersion` by `txnAppId`.
    """

    version: int
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


class DataFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a table at its newest version.

    Attributes:
        version: The newest version.
        protocol: Required reader and writer versions.
        schema: JSON of Spark's StructType.
        files: The files, in no particular order.
    """

    version: int
    protocol: tuple[int, int]
    schema: str
    files: list[DataFile]


def require_table_log(table: Path) -> TableLog:
    """Return the log of the table in this folder.

    Raises:
        Unavailable: There is no table, for example because a volume is not mounted.
        Corrupt: As in `read_table_log`.
    """
    log = read_table_log(table)
    if log is None:
        message = f"there is no table at {table}"
        raise Unavailable(message, subject=table.name)
    return log


def read_table_log(table: Path) -> TableLog | None:
    """Return the log of the table in this folder, or None when there is no table.

    Raises:
        Corrupt: A commit is missing, a file cannot be read, or there is no commit or checkpoint to start from.
    """
    return _newest(table, ("txn", "metaData"), _table_log)


def read_data_files(table: Path) -> DataFiles | None:
    """Return the data files of the table in this folder, or None when there is no table.

    Raises:
        Corrupt: As in `read_table_log`.
    """
    return _newest(table, ("protocol", "metaData", "add", "remove"), _data_files)


def _newest(
    table: Path, wanted: Sequence[str], reconciled: Callable[[Path, int, Iterator[dict[str, Any]]], Reconciled]
) -> Reconciled | None:
    """Return the result of `reconciled` for the actions of the wanted kinds, or None when there is no table."""
    commits, checkpoints = _found(table / "_delta_log")
    newest = max([*commits, *checkpoints], default=None)
    if newest is None:
        return None
    problem = ""
    # An unreadable checkpoint can be replaced by the commits before it, as long as their files exist.
    for begin in sorted([-1, *checkpoints], reverse=True):
        missing = [version for version in range(begin + 1, newest + 1) if version not in commits]
        if missing:
            problem = problem or f"the log of {table.name} lacks version {missing[0]}, and has {newest}"
            continue
        try:
            after = [commits[version] for version in range(begin + 1, newest + 1)]
            return reconciled(table, newest, _actions(checkpoints.get(begin, []), after, wanted))
        except Corrupt as error:
            problem = problem or error.message
    message = f"{problem}: bring it back from a copy, or move the table away and run `popstream restore`"
    raise Corrupt(message, subject=table.name)


def _table_log(table: Path, version: int, actions: Iterator[dict[str, Any]]) -> TableLog:
    txns: dict[str, int] = {}
    metadata: dict[str, Any] | None = None
    for action in actions:
        if (txn := action.get("txn")) is not None:
            txns[txn["appId"]] = txn["version"]
        metadata = action.get("metaData") or metadata
    metadata = _required(metadata, table, "metaData")
    properties = dict(metadata.get("configuration") or {})
    return TableLog(version=version, schema=metadata["schemaString"], properties=properties, txns=txns)


def _data_files(table: Path, version: int, actions: Iterator[dict[str, Any]]) -> DataFiles:
    files: dict[str, DataFile] = {}
    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    for action in actions:
        protocol = action.get("protocol") or protocol
        metadata = action.get("metaData") or metadata
        if (add := action.get("add")) is not None:
            files[add["path"]] = DataFile(
                path=add["path"],
                size=add["size"],
                modification_ms=add["modificationTime"],
                partition_values=dict(add["partitionValues"]),
                stats=add.get("stats"),
            )
        elif (remove := action.get("remove")) is not None:
            files.pop(remove["path"], None)
    protocol = _required(protocol, table, "protocol")
    schema = _required(metadata, table, "metaData")["schemaString"]
    versions = (protocol["minReaderVersion"], protocol["minWriterVersion"])
    return DataFiles(version=version, protocol=versions, schema=schema, files=list(files.values()))


def _required(action: dict[str, Any] | None, table: Path, what: str) -> dict[str, Any]:
    if action is None:
        message = f"the log of {table.name} lacks the action {what}"
        raise Corrupt(message, subject=table.name)
    return action


def _found(log: Path) -> tuple[dict[int, Path], dict[int, list[Path]]]:
    """Return commits and complete checkpoints by version."""
    commits: dict[int, Path] = {}
    parts: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in log.iterdir() if log.is_dir() else ():
        if commit := _COMMIT.fullmatch(path.name):
            commits[int(commit[1])] = path
        elif checkpoint := _CHECKPOINT.fullmatch(path.name):
            parts[int(checkpoint[1]), int(checkpoint[3] or 1)].append(path)
    return commits, {version: files for (version, wanted), files in parts.items() if len(files) >= wanted}


def _actions(checkpoint: Iterable[Path], commits: Iterable[Path], wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path in (*checkpoint, *commits):
        try:
            yield from _lines(path) if path.suffix == ".json" else _rows(path, wanted)
        except (msgspec.DecodeError, pa.ArrowException, OSError) as error:
            message = f"{path} cannot be read: {error}"
            raise Corrupt(message, subject=str(path)) from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        yield msgspec.json.decode(line)


def _rows(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    for row in file.read(columns=[name for name in wanted if name in file.schema_arrow.names]).to_pylist():
        if row.get("metaData") is not None:  # pyarrow returns a map as pairs
            row["metaData"]["configuration"] = dict(row["metaData"]["configuration"] or [])
        yield row
