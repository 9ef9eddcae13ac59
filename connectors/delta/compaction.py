"""Joins the small files that flushes leave in the tables: Delta's OPTIMIZE without Spark.

```
add a, add b, add c  ──read in order, written once──>  one commit: add abc, remove a, b, c (dataChange false)
```

`python -m connectors.delta.compaction FOLDER TABLE...` compacts tables at the lowest priority, ends with its parent
process, and prints each outcome as a line of JSON. `pipelines.process.maintenance` runs it.

Why not Spark: in the job's JVM, which only has its quick compiler, OPTIMIZE takes eight times the CPU, at the expense
of micro-batches, and a second JVM may not write to the same table. On a local disk Delta checks whether the file of a
commit exists and then renames over it, with a lock that holds within one JVM only (`HDFSLogStore`). Here the file is
linked, which fails if it exists, so a compaction never replaces a flush. A flush between its check and its rename may
replace a compaction. Then the rows are still in their old files, and nothing else refers to the lost commit: no
checkpoint of the log is written here, and later compactions leave the new file alone for a while.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.delta.log.commits import Commit, read_commit, sync, sync_commits
from connectors.delta.log.table_log import DataFile, DataFiles, read_data_files
from connectors.delta.rows import in_pieces
from connectors.delta.store import require_columns
from connectors.delta.tables import TABLES, Table, arrow_schema, table_path
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Compacted", "compact"]

FILE_BYTES: Final = 64 * 1024 * 1024
"""Files of this size are left alone, and no file becomes larger."""

PROTOCOL: Final = (1, 2)
"""The newest reader and writer versions that this module supports: those of our own tables."""

PREFIX: Final = "compacted-"
SETTLED_AFTER_S: Final = 600.0
"""Longer than any flush takes between its check for a commit and the commit."""

ROWS_AT_ONCE: Final = 8192
"""Rows have some kilobytes at most."""

NICE: Final = 19
OUT_OF_MEMORY_FIRST: Final = "1000"
PARENT_IS_GONE: Final = 3


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one table.

    Attributes:
        table: Name of the table.
        compacted: Files that were joined.
        into: Files that they were joined to.
        failure: Why the rest was left unchanged.
    """

    table: str
    compacted: int = 0
    into: int = 0
    failure: str | None = None


def compact(root: Path, table: Table) -> Compacted:
    """Join the small files of one table, in the order of their commits. Rows do not change.

    Other processes may append meanwhile. Other concurrent changes, such as RESTORE, are not undone.

    Raises:
        Corrupt: The log or a file cannot be read, or a file has other rows than the log says.
        Invalid: The table has other columns, uses an unsupported feature of Delta, or belongs to a user who could not
            read files of this process.
        Unavailable: Another process has removed files or changed the table.
    """
    path = table_path(root, table.name)
    found = read_data_files(path)
    if found is None:
        return Compacted(table=table.name)
    if found.protocol > PROTOCOL:
        message = f"{table.name} needs reader and writer version {found.protocol}, which compaction does not support"
        raise Invalid(message, subject=table.name)
    require_columns(path, table, found.schema)
    owner = path.stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        message = f"{path} belongs to user {owner}, who could not read files of root: compact it as that user"
        raise Invalid(message, subject=table.name)
    groups = list(_groups(file for file in found.files if _is_settled(path, file)))
    for files in groups:
        _replace(path, table, found, files)
    return Compacted(table=table.name, compacted=sum(map(len, groups)), into=len(groups))


def _groups(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield groups of neighbouring files of one partition that fit into one file; single files are left out."""
    small = sorted((file for file in files if file.size < FILE_BYTES), key=lambda file: file.modification_ms)
    for _, neighbours in groupby(sorted(small, key=_partition), _partition):
        group: list[DataFile] = []
        for file in neighbours:
            if sum(other.size for other in group) + file.size > FILE_BYTES:
                yield from [group] * (len(group) > 1)
                group = []
            group.append(file)
        yield from [group] * (len(group) > 1)


def _partition(file: DataFile) -> str:
    return msgspec.json.encode(file.partition_values, order="sorted").decode()


def _is_settled(path: Path, file: DataFile) -> bool:
    """Return whether no flush can replace the commit of the file any more, which would leave its rows twice."""
    if not Path(file.path).name.startswith(PREFIX):
        return True
    return (path / unquote(file.path)).stat().st_mtime < time.time() - SETTLED_AFTER_S


def _replace(path: Path, table: Table, found: DataFiles, files: list[DataFile]) -> None:
    """Replace files by one, in one commit. An error leaves nothing behind."""
    name = str(Path(files[0].path).with_name(f"{PREFIX}{secrets.token_hex(16)}.zstd.parquet"))
    made = path / unquote(name)
    unnamed = path / "_delta_log" / f".{made.name}.commit"
    try:
        joined = _joined(path, table, files, name)
        actions = _actions(found.version, files, joined, now_ms=int(time.time() * 1000))
        unnamed.write_bytes(b"\n".join(map(msgspec.json.encode, actions)) + b"\n")
        sync(unnamed)
        version = _committed(path, found.version, files, unnamed)
    except Exception:  # not BaseException: a signal may come after the commit
        made.unlink(missing_ok=True)
        raise
    finally:
        unnamed.unlink(missing_ok=True)
    _sync_version(path, version)


def _joined(path: Path, table: Table, files: list[DataFile], name: str) -> DataFile:
    """Write the rows of all files to a new one, synced to disk, which no commit names yet."""
    made = path / unquote(name)
    schema = pa.schema([field for field in arrow_schema(table) if field.name not in files[0].partition_values])
    rows = 0
    with pq.ParquetWriter(made, schema, compression="zstd", write_page_checksum=True) as writer:
        for piece in in_pieces(_rows(path, files, schema)):
            writer.write_table(piece)
            rows += piece.num_rows
    stats = _joined_stats([msgspec.json.decode(file.stats) for file in files if file.stats])
    if rows != stats["numRecords"] or not all(file.stats for file in files):
        message = f"files of {table.name} have {rows} rows, and {stats['numRecords']} by the log"
        raise Corrupt(message, subject=table.name)
    sync(made)
    sync(made.parent)
    return DataFile(
        path=name,
        size=made.stat().st_size,
        # Not the present time: the next compaction needs the order in which the rows came.
        modification_ms=max(file.modification_ms for file in files),
        partition_values=files[0].partition_values,
        stats=msgspec.json.encode(stats).decode(),
    )


def _rows(path: Path, files: Iterable[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    for file in files:
        # Spark writes timestamps as INT96 of nanoseconds, without a zone: they are UTC.
        with pq.ParquetFile(
            path / unquote(file.path), coerce_int96_timestamp_unit="us", page_checksum_verification=True
        ) as source:
            for batch in source.iter_batches(ROWS_AT_ONCE, columns=schema.names):
                yield pa.table(batch).select(schema.names).cast(schema)


def _joined_stats(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of several files ("Per-file Statistics" of Delta's protocol).

    A column without statistics in one file is left out, unless all its values in that file are null.

    >>> a = {"numRecords": 2, "minValues": {"x": 1}, "maxValues": {"x": 5}, "nullCount": {"x": 0}}
    >>> b = {"numRecords": 1, "minValues": {"x": 3}, "maxValues": {"x": 7}, "nullCount": {"x": 0}}
    >>> _joined_stats([a, b])
    {'numRecords': 3, 'minValues': {'x': 1}, 'maxValues': {'x': 7}, 'nullCount': {'x': 0}}
    """
    count = sum(each["numRecords"] for each in stats)
    nulls = [each.get("nullCount", {}) for each in stats]
    named = set.intersection(*map(set, nulls)) if nulls else set()

    def extreme(kind: str, choose: Any) -> dict[str, Any]:  # noqa: ANN401 - min or max
        known = {}
        for name in named:
            with_values = [each for each in stats if each["nullCount"][name] < each["numRecords"]]
            values = [each.get(kind, {}).get(name) for each in with_values]
            if values and None not in values:
                known[name] = choose(values)
        return known

    return {
        "numRecords": count,
        "minValues": extreme("minValues", min),
        "maxValues": extreme("maxValues", max),
        "nullCount": {name: sum(each[name] for each in nulls) for name in named},
    }


def _committed(path: Path, read_version: int, files: list[DataFile], commit: Path) -> int:
    """Make `commit`, which removes `files`, the first free version, and return that version.

    Earlier commits are synced first: a power loss must not lose a commit that says which rows are delivered, and keep
    the rows.
    """
    _sync_version(path, read_version)
    version = read_version + 1
    while not _linked(commit, path / "_delta_log" / f"{version:020d}.json"):
        sync_commits(path, [_compatible(path, version, files)])
        version += 1
    return version


def _sync_version(path: Path, version: int) -> None:
    """Make a commit durable, unless Delta has deleted its file because a checkpoint covers it."""
    commit = read_commit(path, version)
    if commit is not None:
        sync_commits(path, [commit])


def _actions(read_version: int, files: list[DataFile], joined: DataFile, now_ms: int) -> Iterator[dict[str, Any]]:
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]", "zOrderBy": "[]", "auto": False},
            "readVersion": read_version,
            "isolationLevel": "SnapshotIsolation",
            "isBlindAppend": False,
            "operationMetrics": {"numRemovedFiles": str(len(files)), "numAddedFiles": "1"},
            "engineInfo": "popstream",
        }
    }
    for file in files:
        yield {
            "remove": {
                "path": file.path,
                "deletionTimestamp": now_ms,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": file.partition_values,
                "size": file.size,
            }
        }
    yield {
        "add": {
            "path": joined.path,
            "partitionValues": joined.partition_values,
            "size": joined.size,
            "modificationTime": joined.modification_ms,
            "dataChange": False,
            "stats": joined.stats,
        }
    }


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _compatible(path: Path, version: int, files: Iterable[DataFile]) -> Commit:
    """Return the commit of another process. Raises Unavailable if it removes some of `files` or changes the table."""
    commit, ours = read_commit(path, version), {unquote(file.path) for file in files}
    if commit is None or commit.changes_table or not ours.isdisjoint(commit.removed_paths):
        message = f"version {version} of {path.name} is not only an append: compaction left the table alone"
        raise Unavailable(message, subject=path.name)
    return commit


def _end_with_parent() -> None:
    """Exit when standard input ends: it is a pipe from the parent process."""
    while os.read(sys.stdin.fileno(), 1):  # not `sys.stdin.read`: at exit Python would wait for its lock
        pass
    os._exit(PARENT_IS_GONE)  # at any point: VACUUM deletes files without a commit after a week


def main(root: Path, names: Sequence[str]) -> None:
    """Compact tables and print the outcomes. A failure in one table does not affect the others."""
    os.nice(NICE)
    os.umask(0o077)  # like all files of a job
    with contextlib.suppress(OSError):  # other systems than Linux
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_FIRST)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name in names:
        try:
            done = compact(root, TABLES[name])
        except Exception as error:  # noqa: BLE001 - an error in one table must not affect the others
            done = Compacted(table=name, failure=str(error) or type(error).__name__)
        print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
