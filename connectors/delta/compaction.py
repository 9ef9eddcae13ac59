"""Joins the small files that flushes leave in the tables: Delta's OPTIMIZE without Spark.

```
add a, add b, add c  ──read in order, written once──>  one commit: add abc, remove a, b, c (dataChange false)
```

Once a date is over, its files are written a second time, by ranges of queues (queue_ranges.py), so that who looks for a
message reads few of them. They are left alone from then on.

`python -m connectors.delta.compaction FOLDER TABLE...` compacts tables at a low priority and with the umask of its
parent process, ends with that, and prints each outcome as a line of JSON. `pipelines.process.maintenance` runs it.

Why not Spark: in the job's JVM, which only has its quick compiler, OPTIMIZE takes eight times the CPU, at the expense
of micro-batches, and a second JVM may replace a commit of this one (`connectors.delta.log.write_commit`). If somebody
else's Spark replaces a compaction, the rows are still in their old files, and nothing else refers to the lost commit:
no checkpoint of the log is written here, and later compactions leave the new file alone for a while.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from connectors.delta.damage import how_to_repair
from connectors.delta.data_files import data_schema, parquet_writer, written_file
from connectors.delta.log.commits import Commit, sync, sync_up_to
from connectors.delta.log.table_log import DataFile, DataFiles, read_data_files
from connectors.delta.log.uncommitted_files import deleted_unless_committed
from connectors.delta.log.write_commit import add_action, commit_info, remove_action, write_commit
from connectors.delta.opened_file import OpenedFile
from connectors.delta.queue_ranges import QueueRanges
from connectors.delta.rows import in_pieces
from connectors.delta.store import require_rewritable
from connectors.delta.tables import TABLES, Table, table_path
from connectors.local_servers.end_with_parent import end_with_parent
from popstream.wire.base_errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = ["NICE", "Compacted", "compact"]

FILE_BYTES: Final = 64 * 1024 * 1024
"""Files of this size are left alone, and neighbours are joined up to it."""

RANGE_BYTES: Final = 8 * 1024 * 1024
"""Size of the files of a range, about. A date that is smaller than two of them has one file."""

RANGES_MAX: Final = 128
"""Files that are written at once. Dates of more than 1 GiB have larger ones."""

PREFIX: Final = "compacted-"
CLUSTERED: Final = "clustered-"
SETTLED_AFTER_S: Final = 600.0
"""Longer than any Spark takes between its look for a commit and its own."""

ROWS_AT_ONCE: Final = 8192
"""Rows have some kilobytes at most."""

NICE: Final = 10
"""A tenth of the weight of a thread of the job. At the lowest priority tables got no compaction in a quarter of an hour
on a machine that was always busy."""

OUT_OF_MEMORY_FIRST: Final = "1000"


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one table.

    Attributes:
        table: Name of the table.
        compacted: Files that were joined.
        into: Files that they were joined to.
        failure: Why the rest was left unchanged.
        is_damaged: It was because a file of the table is damaged.
    """

    table: str
    compacted: int = 0
    into: int = 0
    failure: str | None = None
    is_damaged: bool = False


def compact(root: Path, table: Table, today: dt.date | None = None) -> Compacted:
    """Join the small files of one table, in the order of their commits. Rows do not change.

    Other processes may append meanwhile. Other concurrent changes, such as RESTORE, are not undone.

    Args:
        root: Folder of the tables.
        table: The table.
        today: Files of dates before it are written by queues; None: the present date (UTC).

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
    require_rewritable(path, table, found)
    compacted = into = 0
    of_closed_dates = list(_closed_dates(path, table, found.files, today or dt.datetime.now(dt.UTC).date()))
    done = {file.path for files, _ in of_closed_dates for file in files}
    others = _groups(file for file in found.files if file.path not in done and _is_settled(path, file))
    for files, ranges in [*of_closed_dates, *((files, None) for files in others)]:
        into += _replace(path, table, found, files, ranges)
        compacted += len(files)
    return Compacted(table=table.name, compacted=compacted, into=into)


def _closed_dates(
    path: Path, table: Table, files: Iterable[DataFile], today: dt.date
) -> Iterator[tuple[list[DataFile], QueueRanges]]:
    """Yield the files of each date that is over and not written by queues yet, if it has several large queues."""
    if table.partitioned_by is None or not {"topic", "queue_id"} <= set(data_schema(table).names):
        return
    fresh = sorted((file for file in files if not _is_clustered(file)), key=lambda file: file.modification_ms)
    for _, same_date in groupby(sorted(fresh, key=_partition), _partition):
        of_date = list(same_date)
        day = of_date[0].partition_values.get(table.partitioned_by)
        size = sum(file.size for file in of_date)
        is_closed = day is not None and dt.date.fromisoformat(day) < today
        if is_closed and size >= 2 * RANGE_BYTES and all(_is_settled(path, file) for file in of_date):
            ranges = QueueRanges.of(path, table, of_date, min(size // RANGE_BYTES, RANGES_MAX))
            if ranges.count > 1:
                yield of_date, ranges


def _is_clustered(file: DataFile) -> bool:
    return Path(file.path).name.startswith(CLUSTERED)


def _groups(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield groups of neighbouring files of one partition that fit into one file; single files are left out."""
    small = sorted(
        (file for file in files if file.size < FILE_BYTES and not _is_clustered(file)),
        key=lambda file: file.modification_ms,
    )
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
    """Return whether no Spark can replace the commit of the file any more, which would leave its rows twice.

    A file that is lost counts as settled: who reads it says so.
    """
    if not Path(file.path).name.startswith((PREFIX, CLUSTERED)):
        return True
    try:
        return (path / file.relative_path).stat().st_mtime < time.time() - SETTLED_AFTER_S
    except FileNotFoundError:
        return True


def _replace(path: Path, table: Table, found: DataFiles, files: list[DataFile], ranges: QueueRanges | None) -> int:
    """Replace files by one, or by one for each range of queues, in one commit; return the number of new ones.

    An error leaves no file behind that no commit names.
    """
    prefix, count = (PREFIX, 1) if ranges is None else (CLUSTERED, ranges.count)
    names = [str(Path(files[0].path).with_name(f"{prefix}{secrets.token_hex(16)}.zstd.parquet")) for _ in range(count)]

    def require_compatible(commit: Commit) -> None:
        if commit.changes_table or not {file.relative_path for file in files}.isdisjoint(commit.removed_paths):
            message = f"version {commit.version} of {path.name} is not only an append: compaction left the table alone"
            raise Unavailable(message, subject=path.name)

    with deleted_unless_committed(path, found.version, names):
        joined = _joined(path, table, files, names, ranges)
        sync_up_to(path, found.version)
        write_commit(path, found.version, _actions(found.version, files, joined), require_compatible)
    return len(names)


def _joined(
    path: Path, table: Table, files: list[DataFile], names: list[str], ranges: QueueRanges | None
) -> list[DataFile]:
    """Write the rows of all files to new ones, synced to disk, which no commit names yet."""
    schema = data_schema(table)
    rows = 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(parquet_writer(path / unquote(name), schema)) for name in names]
        for piece in in_pieces(_rows(path, files, schema, table.optional_columns)):
            for number, part in [(0, piece)] if ranges is None else ranges.split(piece):
                writers[number].write_table(part)
            rows += piece.num_rows
    by_log = sum(msgspec.json.decode(file.stats)["numRecords"] for file in files if file.stats)
    if rows != by_log or not all(file.stats for file in files):
        named = ", ".join(str(path / file.relative_path) for file in files)
        message = (
            f"data files of {table.name} are damaged: they have {rows} rows together, and {by_log} by the log:"
            f" {how_to_repair(table.name)} (files: {named})"
        )
        raise Corrupt(message, subject=table.name)
    for made in (path / unquote(name) for name in names):
        sync(made)
        sync(made.parent)
    # Not the present time: the next compaction needs the order in which the rows came.
    newest_ms = max(file.modification_ms for file in files)
    return [written_file(path, name, newest_ms, files[0].partition_values) for name in names]


def _rows(path: Path, files: Iterable[DataFile], schema: pa.Schema, may_lack: Collection[str]) -> Iterator[pa.Table]:
    for file in files:
        with OpenedFile.of(path, file) as opened:
            opened.require_no_other_columns(schema)
            yield from opened.in_parts(schema, may_lack, ROWS_AT_ONCE)


def _actions(read_version: int, files: list[DataFile], joined: list[DataFile]) -> Iterator[dict[str, Any]]:
    yield commit_info(
        read_version,
        "OPTIMIZE",
        operationParameters={"predicate": "[]", "zOrderBy": "[]", "auto": False},
        isolationLevel="SnapshotIsolation",
        isBlindAppend=False,
        operationMetrics={"numRemovedFiles": str(len(files)), "numAddedFiles": str(len(joined))},
    )
    for file in files:
        yield remove_action(file, data_change=False)
    for file in joined:
        yield add_action(file, data_change=False)


def main(root: Path, names: Sequence[str]) -> None:
    """Compact tables and print the outcomes. A failure in one table does not affect the others."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # other systems than Linux
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_FIRST)
    end_with_parent()  # at any point: VACUUM deletes files without a commit after a week
    for name in names:
        try:
            done = compact(root, TABLES[name])
        except Exception as error:  # noqa: BLE001 - an error in one table must not affect the others
            failure = str(error) or type(error).__name__
            done = Compacted(table=name, failure=failure, is_damaged=isinstance(error, Corrupt))
        print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
