"""Rows that the writer of a table commits and counts, whatever they say."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.log.table_log import require_table_log
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import Table, table_path
from expectations.row_totals import unequal_row_totals
from tests.support.delta_files import NO_SPARK, create_table

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FIRST", "ROWS_A_DAY", "rows_of", "unequal", "version_of", "writer"]

FIRST = dt.date(2026, 11, 1)
ROWS_A_DAY = 20


def rows_of(table: Table, day: dt.date, seq: int = 1, epoch: str = "epoch") -> pa.Table:
    """Rows that differ in most columns; what they say does not matter here."""
    known = {"state_epoch": epoch, table.partitioned_by: day, "apply_seq": seq, "build_seq": seq}

    def value(field: pa.Field, number: int) -> Any:
        if field.name in known:
            return known[field.name]
        if pa.types.is_boolean(field.type):
            return number % 2 == 0
        if pa.types.is_integer(field.type):
            return number
        if pa.types.is_timestamp(field.type):
            return dt.datetime.fromtimestamp(number / 1000, dt.UTC)
        return f"{field.name} {number}" if pa.types.is_string(field.type) else f"{number}".encode()

    schema = arrow_schema(table)
    return pa.Table.from_pylist(
        [{field.name: value(field, number) for field in schema} for number in range(ROWS_A_DAY)], schema
    )


def writer(root: Path, table: Table, epoch: str = "epoch", **more: Any) -> ExactlyOnceTable:
    if not table_path(root, table.name).exists():
        create_table(root, table.name)
    return ExactlyOnceTable(NO_SPARK, root, table, "pipeline", epoch, **more)


def version_of(root: Path, table: Table) -> int:
    return require_table_log(table_path(root, table.name)).version


def unequal(root: Path, *tables: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = unequal_row_totals(
        root, {table.name: version_of(root, table) for table in tables}
    ).to_pylist()
    return found
