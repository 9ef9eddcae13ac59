"""Deletes the rows of old dates from a table, whole files at a time, and notes from when on it has all of them.

```
files of dates before the first day ──> one commit: remove, remove ..., txn (history/first_day, day)
```

Other processes may append meanwhile. The files stay on the disk until VACUUM finds them a week later. Two kinds of
dates are kept, because a restore needs them and nothing else has them: those of `rejected` with a quarantined record,
which a replay must not decide, and those of `consume_queue` with the last unit of a batch queue, by which its messages
are numbered.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.audit import RejectReason
from connectors.delta.history_start import EPOCH_MAX, FIRST_DAY, deleted_epoch_max, first_day_of
from connectors.delta.log.table_log import read_data_files
from connectors.delta.log.write_commit import commit_info, remove_action, txn_action, write_commit
from connectors.delta.opened_file import OpenedFile
from connectors.delta.schemas import columns_of
from connectors.delta.store import require_rewritable
from connectors.delta.tables import CONSUME_QUEUE, DATED_TABLES, DELIVERIES, REJECTED, Table, table_path
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from connectors.delta.log.commits import Commit
    from connectors.delta.log.table_log import DataFile, DataFiles

__all__ = ["Deleted", "delete_before", "newest_day"]

_BATCH: Final = "batch"


class Deleted(NamedTuple):
    """What was deleted from a table."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


def newest_day(root: Path, name: str) -> dt.date | None:
    """Return the newest date that a dated table has; None: it has no rows.

    Raises:
        Corrupt: The log cannot be read.
    """
    found = read_data_files(table_path(root, name))
    column = DATED_TABLES[name].day
    days = [day for file in ([] if found is None else found.files) if (day := file.partition_values.get(column))]
    return dt.date.fromisoformat(max(days)) if days else None


def delete_before(root: Path, table: Table, first_day: dt.date) -> Deleted:
    """Delete the rows of all dates before `first_day`; nothing is committed where there are none.

    Raises:
        Corrupt: The log or a file cannot be read.
        Invalid: The table has other columns, or a feature of Delta that is not supported.
        Unavailable: Another process has changed the same files. Nothing was deleted.
    """
    path = table_path(root, table.name)
    found = read_data_files(path)
    if found is None:
        return Deleted()
    old = [file for file in found.files if _is_before(first_day, table, file)]
    if not old:
        return Deleted()
    require_rewritable(path, table, found)
    kept = _needed_days(path, table, found.files, old)
    removed = [file for file in old if file.partition_values[table.day] not in kept]
    if not removed:
        return Deleted()
    paths = {file.relative_path for file in removed}

    def require_compatible(commit: Commit) -> None:
        if commit.changes_table or not paths.isdisjoint(commit.removed_paths):
            message = f"version {commit.version} of {path.name} has changed the rows to delete: nothing was deleted"
            raise Unavailable(message, subject=path.name)

    write_commit(path, found.version, _actions(table, found, removed, first_day), require_compatible)
    return Deleted(sum(file.rows for file in removed), len(removed), sum(file.size for file in removed))


def _actions(
    table: Table, found: DataFiles, removed: Sequence[DataFile], first_day: dt.date
) -> Iterator[dict[str, Any]]:
    yield commit_info(
        found.version,
        "DELETE",
        operationParameters={"predicate": msgspec.json.encode([f"{table.partitioned_by} < '{first_day}'"]).decode()},
        isolationLevel="SnapshotIsolation",
        isBlindAppend=False,
        operationMetrics={
            "numRemovedFiles": str(len(removed)),
            "numDeletedRows": str(sum(file.rows for file in removed)),
        },
    )
    last = max(first_day, first_day_of(found.txns) or first_day)
    yield txn_action(FIRST_DAY, (last - dt.date(1970, 1, 1)).days)
    if table is DELIVERIES:
        highest = (_statistic(file, "maxValues", "epoch") for file in removed)
        yield txn_action(
            EPOCH_MAX, max([deleted_epoch_max(found.txns), *(each for each in highest if each is not None)])
        )
    for file in removed:
        yield remove_action(file, data_change=True)


def _is_before(first_day: dt.date, table: Table, file: DataFile) -> bool:
    day = file.partition_values[table.day]
    return day is not None and dt.date.fromisoformat(day) < first_day


def _statistic(file: DataFile, which: str, column: str) -> Any:  # noqa: ANN401 - any value
    return msgspec.json.decode(file.stats or "{}").get(which, {}).get(column)


def _needed_days(path: Path, table: Table, files: Sequence[DataFile], old: Sequence[DataFile]) -> set[str | None]:
    """Return the dates that a restore needs."""
    if table is REJECTED:
        return {file.partition_values[table.day] for file in old if _has_quarantined(path, file)}
    if table is CONSUME_QUEUE and any(_may_be_batch(file) for file in old):
        return _days_of_last_units(path, [file for file in files if _may_be_batch(file)])
    return set()


def _has_quarantined(path: Path, file: DataFile) -> bool:
    with OpenedFile.of(path, file) as opened:
        parts = opened.in_parts(columns_of(REJECTED, ["reason"]))
        return any(pc.any(pc.equal(part["reason"], RejectReason.QUARANTINED)).as_py() for part in parts)


def _may_be_batch(file: DataFile) -> bool:
    least = _statistic(file, "minValues", "queue_type")
    return least is None or least == _BATCH  # the first of the types by the alphabet


def _days_of_last_units(path: Path, files: Sequence[DataFile]) -> set[str | None]:
    last: dict[tuple[str, int, str], tuple[int, str | None]] = {}
    names = ["topic", "queue_id", "topic_id"]
    schema = columns_of(CONSUME_QUEUE, [*names, "queue_offset", "queue_type"])
    may_lack = CONSUME_QUEUE.optional_columns
    for file in files:
        with OpenedFile.of(path, file) as opened:
            parts = [part.filter(pc.equal(part["queue_type"], _BATCH)) for part in opened.in_parts(schema, may_lack)]
        rows = pa.concat_tables([schema.empty_table(), *parts])
        for row in rows.group_by(names).aggregate([("queue_offset", "max")]).to_pylist():
            queue = (row["topic"], row["queue_id"], row["topic_id"])
            unit = (row["queue_offset_max"], file.partition_values[CONSUME_QUEUE.day])
            last[queue] = max(last.get(queue, unit), unit, key=lambda each: each[0])
    return {day for _, day in last.values()}
