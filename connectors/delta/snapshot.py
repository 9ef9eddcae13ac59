"""One version of a Delta table, read without Spark: its columns, and the files with its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType

from connectors.delta.damage import damaged_data_file, size_problem
from connectors.delta.history_start import FIRST_DAY, first_day_of
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime
    from pathlib import Path

__all__ = ["FileBounds", "Snapshot", "open_snapshot"]

_WITH_FEATURES: Final = 3
_READABLE_FEATURES: Final = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta tables with which every row of a file is a row of the table, under its own name."""

_TEXT_MAX: Final = 300
_MAPPING: Final = "delta.columnMapping.mode"


class FileBounds(NamedTuple):
    """A file with rows, and the bounds of their values.

    Attributes:
        path: The file.
        size: Its size in bytes.
        least: The least value by column, None where the statistics do not know it.
        greatest: The greatest value by column, likewise.
        empty: Columns that are null in every row.
    """

    path: Path
    size: int
    least: dict[str, Any]
    greatest: dict[str, Any]
    empty: frozenset[str]

    def may_have(self, column: str, least: Any = None, greatest: Any = None) -> bool:  # noqa: ANN401 - any value
        """Return whether a row may have a value of the column within these bounds; None: no bound."""
        if column in self.empty:
            return False
        own_least, own_greatest = self.least.get(column), self.greatest.get(column)
        is_below = least is not None and own_greatest is not None and own_greatest < least
        is_above = greatest is not None and own_least is not None and own_least > greatest
        return not (is_below or is_above)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version.

    Attributes:
        path: The folder of the table.
        version: The version.
        columns: Delta's type by column, in order.
        partitioned_by: Columns whose values are in the names of folders and not in the files.
        files: The files, in no particular order.
        first_day: First date of which it has all rows; None: retention has deleted none.
    """

    path: Path
    version: int
    columns: dict[str, str]
    partitioned_by: Sequence[str]
    files: list[FileBounds] = field(repr=False)
    first_day: date | None = None


def open_snapshot(path: Path, *, version: int | None = None, at: datetime | None = None) -> Snapshot:
    """Return a table at its newest version, at `version`, or at the one that was the newest at a time.

    Raises:
        Invalid: There is no table, it has no such version, or that of a feature of Delta that needs another reader.
        Corrupt: The log cannot be read, or a file of the newest version is missing.
    """
    try:
        log = DeltaTable(path)
        newest = log.version()
        if version is not None and version != newest:
            log = _at_version(path, version, newest)
        elif at is not None:
            log.load_as_version(at)
            _require_begun(path, log, at)
    except TableNotFoundError as error:
        message = f"there is no table {path.name} in {path.parent}"
        raise Invalid(message, subject=path.name) from error
    except DeltaError as error:
        _require_undamaged_log(path)
        first, *_ = str(error).splitlines() or [type(error).__name__]
        message = f"the table {path.name} needs --engine spark: {first[:_TEXT_MAX]}"
        raise Invalid(message, subject=path.name) from error
    _require_readable(path, log)
    day = log.transaction_version(FIRST_DAY)
    snapshot = Snapshot(
        path,
        log.version(),
        _columns(path, log),
        log.metadata().partition_columns,
        _files(path, log),
        None if day is None else first_day_of({FIRST_DAY: day}),
    )
    _require_files(snapshot, newest)
    return snapshot


def _at_version(path: Path, version: int, newest: int) -> DeltaTable:
    try:
        return DeltaTable(path, version=version)
    except DeltaError as error:
        is_future = version > newest
        why = f"its newest is {newest}" if is_future else "Delta has deleted the beginning of its log"
        message = f"{path.name} has no version {version}: {why}"
        raise Invalid(message, subject=path.name) from error


def _require_begun(path: Path, log: DeltaTable, at: datetime) -> None:
    """Refuse a time before the first version, for which delta-rs returns that version."""
    if log.version() > 0:
        return
    first_ms = log.history(1)[0].get("timestamp", 0)
    if at.timestamp() * 1000 < first_ms:
        message = f"{path.name} did not exist at {at.isoformat()}"
        raise Invalid(message, subject=path.name)


def _require_readable(path: Path, log: DeltaTable) -> None:
    protocol = log.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version < _WITH_FEATURES and log.metadata().configuration.get(_MAPPING, "none") != "none":
        features = {"columnMapping"}
    features -= _READABLE_FEATURES
    if features or protocol.min_reader_version > _WITH_FEATURES:
        wanted = ", ".join(sorted(features)) or f"reader version {protocol.min_reader_version}"
        message = f"the table {path.name} has {wanted}, which needs --engine spark"
        raise Invalid(message, subject=path.name)


def _columns(path: Path, log: DeltaTable) -> dict[str, str]:
    columns = {}
    for column in log.schema().fields:
        if not isinstance(column.type, PrimitiveType):
            message = f"the column {column.name} of {path.name} has a nested type, which needs --engine spark"
            raise Invalid(message, subject=path.name)
        columns[column.name] = column.type.type
    return columns


def _files(path: Path, log: DeltaTable) -> list[FileBounds]:
    adds = log.get_add_actions(flatten=True)
    least, greatest, nulls, values = (
        {name.removeprefix(prefix): adds[name].to_pylist() for name in adds.column_names if name.startswith(prefix)}
        for prefix in ("min.", "max.", "null_count.", "partition.")
    )
    least |= values
    greatest |= values
    facts = zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), adds["num_records"].to_pylist(), strict=True)
    return [
        FileBounds(
            path / unquote(name),
            size,
            {column: each[place] for column, each in least.items()},
            {column: each[place] for column, each in greatest.items()},
            frozenset(column for column, each in nulls.items() if rows and each[place] == rows),
        )
        for place, (name, size, rows) in enumerate(facts)
    ]


def _require_files(snapshot: Snapshot, newest: int) -> None:
    """Refuse a version with a file that is missing or has another size, before a row of it is read."""
    name = snapshot.path.name
    for file in snapshot.files:
        problem = size_problem(file.path, file.size)
        if problem is None:
            continue
        if snapshot.version < newest and not file.path.exists():
            message = f"version {snapshot.version} of {name} cannot be read any more: VACUUM has deleted its files"
            raise Invalid(message, subject=name)
        raise damaged_data_file(snapshot.path, file.path, problem)


def _require_undamaged_log(path: Path) -> None:
    """Raise Corrupt if the log is damaged, and not only new to delta-rs."""
    from connectors.delta.log.table_log import read_table_log  # noqa: PLC0415 - it imports pyarrow, which takes 0.1 s

    read_table_log(path)
