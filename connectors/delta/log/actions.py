"""The files of a Delta table's log, read action by action. A file that cannot be read is reported by table and name.

What notices a flipped bit: commits that are made here have checksums of their own (commit_checksum.py). Beside a
commit that Spark makes on a local disk Hadoop puts its checksums (`.<name>.crc`), and refuses the file if they differ;
they are compared here, too: otherwise a start would succeed, and its first commit would fail. A checkpoint is Parquet,
which has a checksum for each page. The names of its columns are in the footer, which has none: they are required.
"""

from __future__ import annotations

import operator
import re
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.log.commit_checksum import checksum_problem, known_empty
from connectors.delta.verified_parquet import verified_parquet
from popstream.wire.base_errors import Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq

__all__ = ["Action", "Add", "CommitInfo", "MetaData", "Protocol", "Remove", "Txn", "read_action", "read_actions"]

_COMMIT: Final = re.compile(r"\d{20}\.json")
_CRC_MAGIC: Final = b"crc\0"
_CRC_HEADER: Final = struct.Struct(">4sI")


class Txn(msgspec.Struct, rename="camel"):
    """The last version of an application's transactions."""

    app_id: str
    version: int


class MetaData(msgspec.Struct, rename="camel"):
    """Columns, as JSON of Spark's StructType, and properties of the table."""

    schema_string: str
    configuration: dict[str, str] | None = None


class Protocol(msgspec.Struct, rename="camel"):
    """The required versions of readers and writers; from writer version 7 on with the features that they need."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Add(msgspec.Struct, rename="camel"):
    """A file that was added. `path` is percent-encoded; `stats` is JSON."""

    path: str
    size: int
    modification_time: int
    partition_values: dict[str, str | None]
    stats: str | None = None


class Remove(msgspec.Struct, rename="camel"):
    """A file that was removed."""

    path: str


class CommitInfo(msgspec.Struct, rename="camel"):
    """Who made a commit, and how."""

    operation: str = ""
    operation_parameters: dict[str, Any] | None = None


class Action(msgspec.Struct, rename="camel"):
    """One line of a commit or a checkpoint: one of these, or of a kind that is not read here."""

    txn: Txn | None = None
    meta_data: MetaData | None = None
    protocol: Protocol | None = None
    add: Add | None = None
    remove: Remove | None = None
    commit_info: CommitInfo | None = None


_decode = msgspec.json.Decoder(Action).decode
_KINDS: Final[dict[str, type[msgspec.Struct]]] = {
    "txn": Txn,
    "metaData": MetaData,
    "protocol": Protocol,
    "add": Add,
    "remove": Remove,
}
"""What is read of a checkpoint, by the name of its column."""
_FEATURES: Final = frozenset(("readerFeatures", "writerFeatures"))
_FEATURES_SINCE: Final = 7
"""Writer version from which a protocol has features; other writers than Spark leave their columns out before it."""
_JSON_STATS: Final = "delta.checkpoint.writeStatsAsJson"


def read_action(line: str) -> Action:
    """Return an action by its line in a commit. Raises msgspec.ValidationError if it is none."""
    return _decode(line)


def read_actions(file: Path, wanted: Sequence[str] = ()) -> list[Action]:
    """Return the actions of a commit or of a checkpoint.

    Args:
        file: A file in the folder `_delta_log` of a table.
        wanted: Kinds of actions, as in the file, to read from Parquet.

    Raises:
        FileNotFoundError: There is no such file.
        Corrupt: It cannot be read, a checksum of it differs, or it has become empty.
    """
    try:
        data = file.read_bytes()
        is_commit = _COMMIT.fullmatch(file.name) is not None
        if data:
            own_problem = checksum_problem(int(file.stem), data) if is_commit else None
            problem = own_problem or _checksum_problem(file, data)
        else:
            problem = _emptiness_problem(file) if is_commit else "it is empty"
        if problem is None:
            return _lines(data) if file.suffix == ".json" else _rows(data, wanted)
    except FileNotFoundError:
        raise
    # pyarrow raises other errors, too, for damaged metadata.
    except (*DECODE_ERRORS, pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        problem = str(error) or type(error).__name__
    table = file.parent.parent.name
    message = f"the log of {table} is damaged: {file} cannot be read: {problem}"
    raise Corrupt(message, subject=table)


def _emptiness_problem(commit: Path) -> str | None:
    """Return why an empty commit is not what a power loss leaves of one that was not synced; None: it may be that.

    The rows of such a commit are still in the outbox. Those of one that was emptied later are lost.
    """
    version = later = int(commit.stem)
    while (file := commit.with_name(f"{(later := later + 1):020d}.json")).exists():
        if data := file.read_bytes():
            known = known_empty(data)
            return None if known is None or version in known else f"it is empty, and was not when {later} was made"
    return None  # the newest ones may be


def _lines(data: bytes) -> list[Action]:
    data.decode()  # msgspec skips what is not read here, also if it is not UTF-8, and Spark would refuse it
    return [_decode(line) for line in data.splitlines()]


def _rows(data: bytes, wanted: Sequence[str]) -> list[Action]:
    file = verified_parquet(pa.BufferReader(data))
    for name in wanted:
        _require_column(file, name)
    actions = _actions(file, wanted)
    for action in actions:
        protocol = action.protocol
        if protocol and protocol.min_writer_version >= _FEATURES_SINCE and protocol.writer_features is None:
            message = "its protocol has no features"
            raise ValueError(message)
    return actions


def _actions(file: pq.ParquetFile, wanted: Sequence[str]) -> list[Action]:
    """Return the actions in their order. A row as a whole takes ten times as long as the few cells that are read."""
    cells = {kind: [field.encode_name for field in msgspec.structs.fields(_KINDS[kind])] for kind in wanted}
    table = file.read(columns=[f"{kind}.{name}" for kind, names in cells.items() for name in names])
    found: list[tuple[int, Action]] = []
    for kind, names in cells.items():
        column = table[kind].combine_chunks()
        rows = column.drop_null()
        present = [name for name in names if rows.type.get_field_index(name) >= 0]
        columns = [rows.field(name).to_pylist(maps_as_pydicts="strict") for name in present]
        each = [{kind: dict(zip(present, row, strict=True))} for row in zip(*columns, strict=True)]
        places = pc.indices_nonzero(column.is_valid()).to_pylist()
        found += zip(places, msgspec.convert(each, list[Action]), strict=True)
    found.sort(key=operator.itemgetter(0))
    return [action for _, action in found]


def _require_column(file: pq.ParquetFile, name: str) -> None:
    """Require the column of a kind of actions, with all that is read of it and that the format does not let out."""
    found = {field.name for field in file.schema_arrow.field(name).type}
    read = {field.encode_name for field in msgspec.structs.fields(_KINDS[name])}
    lacking = read - found - _FEATURES
    if name == "add" and "stats" in lacking and ("stats_parsed" in found or _has_no_json_stats(file)):
        lacking.remove("stats")
    if lacking:
        message = f"it has no column {name}.{min(lacking)}"
        raise ValueError(message)


def _has_no_json_stats(file: pq.ParquetFile) -> bool:
    """Return whether a property of the table says that checkpoints have no statistics as JSON."""
    found = (action.meta_data for action in _actions(file, ["metaData"]))
    return any(each and (each.configuration or {}).get(_JSON_STATS) == "false" for each in found)


def _checksum_problem(file: Path, data: bytes) -> str | None:
    """Compare a file with Hadoop's checksums of it, if there are any: a CRC-32 of each piece of 512 bytes."""
    try:
        stored = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return None
    if len(stored) < _CRC_HEADER.size or not stored.startswith(_CRC_MAGIC):
        return "its checksum file is damaged"
    _, size = _CRC_HEADER.unpack_from(stored)
    sums = b"".join(crc.to_bytes(4, "big") for crc in _crcs(data, size)) if size else b""
    return None if sums == stored[_CRC_HEADER.size :] else "its checksums differ"


def _crcs(data: bytes, size: int) -> Iterator[int]:
    return (zlib.crc32(data[place : place + size]) for place in range(0, len(data), size))
