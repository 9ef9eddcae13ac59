"""Which rows a check judges: all, those from a date on, or those of the dates that have changed since a check held.

Tables are partitioned by date, so what is left out is not read. Dates from the first changed one on are judged, which
on a daily run are the day and the one before. What judged rows continue (leases, positions, epochs) is read from the
earlier ones.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connectors.delta.duckdb_errors import query_errors
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.log.table_log import read_data_files
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, table_path
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ALL_ROWS", "CHANGED", "Scope", "changed_rows", "rows_since"]

CHANGED: Final = "changed"
_ALL: Final = "all"

_LAST_GOOD: Final = f"""
    SELECT "table", table_version
    FROM (
        SELECT "table", table_version, run_at, bool_and(success) AS held
        FROM quality_results WHERE coalesce(scope, '{_ALL}') IN ('{_ALL}', '{CHANGED}')
        GROUP BY ALL
    )
    WHERE held
    QUALIFY row_number() OVER (PARTITION BY "table" ORDER BY run_at DESC, table_version DESC) = 1
"""  # noqa: S608 - constants of this module
_LAST_GOOD_OF_OLD: Final = _LAST_GOOD.replace(f"coalesce(scope, '{_ALL}') IN ('{_ALL}', '{CHANGED}')", "true")
"""For a table of results of an older version, which has no scopes."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that are judged.

    Args:
        name: As in `quality_results`.
        since: By table, the first date that is judged (UTC). Of tables that are missing all rows are.
    """

    name: str
    since: Mapping[str, dt.date] = field(default_factory=dict)

    def first_day(self, table: str) -> dt.date | None:
        """Return the first date that is judged; None: all are."""
        return self.since.get(table)

    def has(self, table: str, day: dt.date | None) -> bool:
        """Return whether the rows of a date are judged; None: those without one.

        >>> scope = rows_since(dt.date(2026, 11, 21))
        >>> scope.has("operations", dt.date(2026, 11, 21)), scope.has("operations", dt.date(2026, 11, 20))
        (True, False)
        """
        first = self.since.get(table)
        return first is None or day is None or day >= first


ALL_ROWS: Final = Scope(_ALL)


def rows_since(day: dt.date) -> Scope:
    """Return the rows of this date (UTC) and of later ones, in every table."""
    return Scope(f"since {day}", dict.fromkeys((*AUDIT_TABLES, CONSUME_QUEUE.name), day))


def changed_rows(delta_root: Path, versions: Mapping[str, int]) -> Scope:
    """Return the rows from the first date on of which files came or went since the last check of each table that held.

    Compaction counts, for it writes rows anew. The audit tables have one date, for rules read several of them. Where no
    check has held, or Delta has deleted the log of that version, all rows are judged.

    Args:
        delta_root: Folder of the tables.
        versions: The version of each table that is going to be checked.
    """
    good = _last_good_versions(delta_root)
    first = {table: _first_changed(delta_root, table, good.get(table), version) for table, version in versions.items()}
    audit = min(day for table, day in first.items() if table in AUDIT_TABLES)
    since = {table: audit if table in AUDIT_TABLES else day for table, day in first.items()}
    return Scope(CHANGED, {table: day for table, day in since.items() if day > dt.date.min})


def _last_good_versions(delta_root: Path) -> dict[str, int]:
    path = table_path(delta_root, "quality_results")
    if not (path / "_delta_log").is_dir():
        return {}
    snapshot = open_snapshot(path)
    with query_errors([path]), DuckDbTables([snapshot]) as tables:
        return dict(tables.rows(_LAST_GOOD if "scope" in snapshot.columns else _LAST_GOOD_OF_OLD))


def _first_changed(delta_root: Path, table: str, good: int | None, version: int) -> dt.date:
    """Return the first date with another set of files: the least one if it is not known, the last one if none has."""
    if good is None or good > version:
        return dt.date.min
    try:
        before, after = (_days_by_file(delta_root, table, each) for each in (good, version))
    except Corrupt:  # Delta deletes commits that a checkpoint covers, after a week
        return dt.date.min
    days = {day for one, other in ((before, after), (after, before)) for path, day in one.items() if path not in other}
    return min(days, default=dt.date.max)


def _days_by_file(delta_root: Path, table: str, version: int) -> dict[str, dt.date]:
    found = read_data_files(table_path(delta_root, table), version)
    day = TABLES[table].partitioned_by
    assert found is not None
    assert day is not None
    return {
        file.path: dt.date.min if (value := file.partition_values.get(day)) is None else dt.date.fromisoformat(value)
        for file in found.files
    }
