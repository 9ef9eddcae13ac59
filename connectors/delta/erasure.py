"""Erases texts that quote what people sent from the tables, and the files that still have them.

```
files with such texts ──written anew──> one commit: remove, add, txn (row_totals/.../erased, difference of the digests)
files of earlier versions, and such that no commit names: deleted if they have such texts
```

What remains is in keys and names, which identify rows: a text is only looked for in columns that quote clients.
Other processes may append meanwhile. Whoever reads an earlier version loses it.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.audit import HANDLER_CAUSE, StepCause
from connectors.delta.data_files import data_schema, parquet_writer, written_file
from connectors.delta.erased_values import ERASED, ERASED_CAUSE, NO_HEAD
from connectors.delta.escaped_text import pattern_of
from connectors.delta.log.commits import Commit, commits_after, sync, sync_commits, sync_up_to
from connectors.delta.log.table_log import DataFile, read_data_files
from connectors.delta.log.uncommitted_files import deleted_unless_committed
from connectors.delta.log.write_commit import add_action, commit_info, remove_action, txn_action, write_commit
from connectors.delta.opened_file import OpenedFile
from connectors.delta.row_totals import WrittenTotals, digest_change
from connectors.delta.schemas import columns_of
from connectors.delta.store import require_rewritable
from connectors.delta.tables import TABLES, Table, table_path
from popstream.wire.base_errors import Corrupt, Unavailable
from popstream.wire.command import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from connectors.delta.log.table_log import DataFiles

__all__ = ["Erased", "Wanted", "erase"]

_SETTLED_AFTER_S: Final = 3_600.0
"""A file that no commit names belongs to nobody when it is older: a writer commits what it wrote within seconds."""

_TRIES: Final = 5


class Wanted(NamedTuple):
    """Which texts to erase: those that fulfil everything that is given.

    Attributes:
        text: They contain this, as it is or escaped.
        record: They are in rows of this record of the ops topic: partition and Kafka offset.
        message: They are in rows about this message: topic, queue and queue offset.
    """

    text: str | None = None
    record: tuple[int, int] | None = None
    message: tuple[str, int, int] | None = None


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased in a table.

    Attributes:
        table: Its name.
        values: Texts that were erased.
        files: Files of the newest version that had them.
        old_files: Files of earlier versions that had them, and were deleted.
    """

    table: str
    values: int = 0
    files: int = 0
    old_files: int = 0


def erase(root: Path, name: str, wanted: Wanted, *, dry_run: bool = False) -> Erased:
    """Erase texts from a table that quotes clients; with `dry_run` only count them.

    Raises:
        Corrupt: The log or a file cannot be read.
        Invalid: The table has other columns, or a feature of Delta that is not supported.
        Unavailable: Other processes keep changing the same files. Some texts may be erased; the next run does the rest.
    """
    table, path = TABLES[name], table_path(root, name)
    if read_data_files(path) is None:
        return Erased(table=name)
    values = files = 0
    for left in reversed(range(_TRIES)):
        try:
            values, files = _erase_newest(path, table, wanted, dry_run=dry_run)
            break
        except Unavailable:
            if not left:
                raise
    return Erased(table=name, values=values, files=files, old_files=_delete_old(path, table, wanted, dry_run=dry_run))


def _erase_newest(path: Path, table: Table, wanted: Wanted, *, dry_run: bool) -> tuple[int, int]:
    found = read_data_files(path)
    assert found is not None, "a table does not disappear"
    with_texts = [(file, count) for file in found.files if (count := _count(path, table, file, wanted))]
    values = sum(count for _, count in with_texts)
    if dry_run or not with_texts:
        return values, len(with_texts)
    require_rewritable(path, table, found)
    removed = [file for file, _ in with_texts]
    changes: dict[str, int] = defaultdict(int)
    paths = {file.relative_path for file in removed}

    def require_compatible(commit: Commit) -> None:
        corrects = not changes.keys().isdisjoint(commit.txns)
        if commit.changes_table or corrects or not paths.isdisjoint(commit.removed_paths):
            message = f"version {commit.version} of {path.name} has changed rows with the texts: run the command again"
            raise Unavailable(message, subject=path.name)

    names = [_name_beside(file) for file in removed]
    with deleted_unless_committed(path, found.version, names):
        added = [
            _written_anew(path, table, found, file, name, wanted, changes)
            for file, name in zip(removed, names, strict=True)
        ]
        sync_up_to(path, found.version)
        write_commit(path, found.version, _actions(found, removed, added, changes), require_compatible)
    return values, len(removed)


def _actions(
    found: DataFiles, removed: Sequence[DataFile], added: Sequence[DataFile], changes: dict[str, int]
) -> Iterator[dict[str, Any]]:
    yield commit_info(
        found.version,
        "UPDATE",
        operationParameters={"predicate": "[]"},
        isolationLevel="SnapshotIsolation",
        isBlindAppend=False,
        operationMetrics={"numRemovedFiles": str(len(removed)), "numAddedFiles": str(len(added))},
    )
    for app, change in changes.items():
        yield txn_action(app, (found.txns.get(app, 0) + change) % (1 << 63))
    for file in removed:
        yield remove_action(file, data_change=True)
    for file in added:
        yield add_action(file, data_change=True)


def _name_beside(file: DataFile) -> str:
    """Return the path of a new file of the same partition."""
    folder = file.path.rpartition("/")[0]
    return f"{folder}{'/' if folder else ''}erased-{secrets.token_hex(16)}.zstd.parquet"


def _written_anew(
    path: Path, table: Table, found: DataFiles, file: DataFile, name: str, wanted: Wanted, changes: dict[str, int]
) -> DataFile:
    """Write a file without the texts, synced, which no commit names yet; add the change of digests to `changes`."""
    made, schema = path / unquote(name), data_schema(table)
    written = WrittenTotals(table.name, found.txns)
    with OpenedFile.of(path, file) as opened, parquet_writer(made, schema) as writer:
        opened.require_no_other_columns(schema)
        for complete in opened.each_row_group(schema, table.optional_columns):
            mask, fresh = _masks(table, complete, wanted), complete
            for column, is_wanted in mask.items():
                fresh = _replaced(fresh, column, is_wanted)
            for app, change in digest_change(written, file.partition_values, complete, fresh).items():
                changes[app] = (changes[app] + change) % (1 << 63)
            writer.write_table(fresh)
    sync(made)
    sync(made.parent)
    return written_file(path, name, file.modification_ms, file.partition_values)  # the time keeps the order of rows


def _count(path: Path, table: Table, file: DataFile, wanted: Wanted) -> int:
    columns = [*table.quoting_columns]
    if wanted.record is not None:
        columns += ["partition", "kafka_offset"]
    if wanted.message is not None:
        columns += ["topic", "queue_id", "first_offset", "last_offset"]
    schema = columns_of(table, [name for name in columns if name in data_schema(table).names])
    with OpenedFile.of(path, file) as opened:
        return sum(
            int(is_wanted.sum())
            for rows in opened.each_row_group(schema, table.optional_columns)
            for is_wanted in _masks(table, rows, wanted).values()
        )


def _masks(table: Table, rows: pa.Table, wanted: Wanted) -> dict[str, np.ndarray]:
    """Return, by column with texts, which rows have one to erase."""
    within = np.ones(rows.num_rows, np.bool_)
    names = set(rows.schema.names)
    if wanted.record is not None:
        within &= _equal(rows, "partition", wanted.record[0]) & _equal(rows, "kafka_offset", wanted.record[1])
    if wanted.message is not None:
        topic, queue_id, offset = wanted.message
        within &= _equal(rows, "topic", topic) & _equal(rows, "queue_id", queue_id)
        if {"first_offset", "last_offset"} <= names:
            begins = pc.less_equal(rows["first_offset"], offset)
            within &= _true(pc.and_(begins, pc.greater_equal(rows["last_offset"], offset)))
    return {column: within & _has_text(rows[column], wanted) for column in table.quoting_columns if column in names}


def _equal(rows: pa.Table, column: str, value: object) -> np.ndarray:
    if column not in rows.schema.names:
        return np.zeros(rows.num_rows, np.bool_)
    return _true(pc.equal(rows[column], value))


def _has_text(column: pa.ChunkedArray, wanted: Wanted) -> np.ndarray:
    """Return which values are texts to erase: not those that are erased, and not the kernel's own words."""
    is_binary = pa.types.is_binary(column.type)
    own = [NO_HEAD] if is_binary else [ERASED, ERASED_CAUSE, *StepCause, *get_args(Cause)]
    has: np.ndarray = _true(pc.invert(pc.is_in(column, value_set=pa.array(own, column.type)))) & _true(
        pc.is_valid(column)
    )
    if wanted.text is not None:
        has &= _true(pc.match_substring_regex(column, pattern_of(wanted.text)))
    return has


def _true(found: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(pc.fill_null(found, False).to_numpy(), np.bool_)


def _replaced(rows: pa.Table, column: str, is_wanted: np.ndarray) -> pa.Table:
    values, mask = rows[column], pa.array(is_wanted)
    if pa.types.is_binary(values.type):
        fresh = pc.if_else(mask, pa.scalar(NO_HEAD, values.type), values)
    else:
        is_raised = pc.fill_null(pc.starts_with(values, f"{HANDLER_CAUSE}: "), False) if column == "cause" else None
        erased = pa.scalar(ERASED) if is_raised is None else pc.if_else(is_raised, ERASED_CAUSE, ERASED)
        fresh = pc.if_else(mask, erased, values)
    return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), fresh)


def _delete_old(path: Path, table: Table, wanted: Wanted, *, dry_run: bool) -> int:
    """Delete the files with such texts that the newest version does not have, and return their number."""
    # In this order: a file that is committed between the two reads is live, and not only known.
    commits = commits_after(path, -1)
    known = {name for commit in commits for name in (*commit.added_paths, *commit.removed_paths)}
    found = read_data_files(path)
    assert found is not None, "a table does not disappear"
    live = {file.relative_path for file in found.files}
    deleted: list[Path] = []
    for file in sorted(path.rglob("*.parquet")):
        name = str(file.relative_to(path))
        if "_delta_log" in file.parts or name in live:
            continue
        if name not in known and _age_s(file) < _SETTLED_AFTER_S:
            continue  # somebody may be about to commit it
        if _may_have(path, table, name, wanted) and file.exists():
            deleted.append(file)
    if deleted and not dry_run:
        names = {str(file.relative_to(path)) for file in deleted}
        # A power loss must not take the commit that removed a file, and leave one that needs it.
        sync_commits(path, [commit for commit in commits if not names.isdisjoint(commit.removed_paths)])
        for file in deleted:
            file.unlink(missing_ok=True)
        for folder in {file.parent for file in deleted}:
            sync(folder)
    return len(deleted)


def _age_s(file: Path) -> float:
    """Return the seconds since a file was written; one that VACUUM or its writer has deleted is young."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _may_have(path: Path, table: Table, name: str, wanted: Wanted) -> bool:
    """Return whether a file has such texts; so may one that a killed writer has left, which nobody can read."""
    try:
        with OpenedFile(path, name) as opened:
            return any(mask.any() for rows in opened.each_row_group() for mask in _masks(table, rows, wanted).values())
    except Corrupt:
        return True
