"""The rows of `unequal_row_totals`: dates of tables of which rows are missing, changed, or too many.

What a table has to hold is in its log (connectors/delta/row_totals.py); what it does hold is counted here, from the
files themselves.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.history_start import first_day_of
from connectors.delta.log.table_log import require_table_log
from connectors.delta.log.transactions import epochs_of
from connectors.delta.pieces import each_table_part
from connectors.delta.row_totals import NO_ROWS, RowTotal, WrittenTotals, totals_by_day
from connectors.delta.tables import CONSUME_QUEUE, TABLES, table_path
from expectations.scope import ALL_ROWS, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["unequal_row_totals"]

_COLUMNS: Final = pa.schema(
    [
        ("table", pa.string()),
        ("state_epoch", pa.string()),
        ("date", pa.date32()),
        ("rows_written", pa.int64()),
        ("rows_found", pa.int64()),
        ("rows_changed", pa.bool_()),
    ]
)
_NO_EPOCH: Final = ""

Key = tuple[str, "dt.date"]
"""(state epoch, date)."""


def unequal_row_totals(delta_root: Path, versions: Mapping[str, int], scope: Scope = ALL_ROWS) -> pa.Table:
    """Return a row for each date, and state epoch, of which a table does not hold what has been written.

    Epochs of which the log has no totals, because an older version wrote all their rows, are left out.

    Args:
        delta_root: Folder of the tables.
        versions: The version of each table to look at.
        scope: The dates to look at.
    """
    unequal = [
        {
            "table": table,
            "state_epoch": epoch,
            "date": date,
            "rows_written": written.rows,
            "rows_found": found.rows,
            "rows_changed": found.rows == written.rows,
        }
        for table, version in versions.items()
        for (epoch, date), written, found in _unequal(delta_root, table, version, scope)
    ]
    return pa.Table.from_pylist(unequal, _COLUMNS)


def _unequal(delta_root: Path, table: str, version: int, scope: Scope) -> Iterator[tuple[Key, RowTotal, RowTotal]]:
    txns = require_table_log(table_path(delta_root, table), version).txns
    written = WrittenTotals(table, txns)
    found = _found(delta_root, table, version, written.after, scope)
    uncounted = epochs_of(txns, table) - written.by_epoch.keys()
    first_day = first_day_of(txns) or dt.date.min
    for epoch, date in sorted(
        {*found, *((epoch, date) for epoch, dates in written.by_epoch.items() for date in dates)}
    ):
        if not scope.has(table, date):
            continue
        total = written.total(epoch, date)
        if total is None or epoch in uncounted or date < first_day:
            continue
        if total != found.get((epoch, date), NO_ROWS):
            yield (epoch, date), total, found.get((epoch, date), NO_ROWS)


def _found(delta_root: Path, table: str, version: int, after: Mapping[str, int], scope: Scope) -> dict[Key, RowTotal]:
    """Return the totals of the rows of a table that are counted."""
    described = TABLES[table]
    day = described.partitioned_by
    assert day is not None, "every table of the job is partitioned by a date"
    number = "build_seq" if table == CONSUME_QUEUE.name else "apply_seq"
    totals: dict[Key, RowTotal] = {}
    for rows in each_table_part(table_path(delta_root, table), version, described, since=scope.first_day(table)):
        epochs = rows["state_epoch"].combine_chunks().fill_null(_NO_EPOCH)
        for epoch in epochs.unique().to_pylist():
            is_counted = pc.and_(pc.equal(epochs, epoch), pc.greater(rows[number], after.get(epoch, -1)))
            for date, total in totals_by_day(rows.filter(is_counted), day).items():
                totals[epoch, date] = totals.get((epoch, date), NO_ROWS).plus(total)
    return totals
