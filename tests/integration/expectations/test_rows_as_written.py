"""Claim: whatever rows are deleted, changed, doubled, added or brought back, the check names table and date.

Method: each table of the job is written by its own writer, with rows of a date for each corruption; then another tool,
as somebody would use it, does one corruption to each date. Nothing else may be found.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from connectors.delta.compaction import compact
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.log.table_log import require_table_log
from connectors.delta.retention import delete_before
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, Kind, Table, table_path
from expectations.row_totals_view import register_unequal_row_totals
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

COUNTED = (*AUDIT_TABLES, CONSUME_QUEUE.name)
FIRST = dt.date(2026, 11, 1)
ROWS_A_DAY = 20


class Somebody:
    """Somebody with another tool, at the rows of one date of a table."""

    def __init__(self, root: Path, table: Table, day: dt.date) -> None:
        self._delta = DeltaTable(table_path(root, table.name))
        self._table = table
        self._day = f"{table.partitioned_by} = DATE '{day}'"
        self._row = f"{self._day} AND {'queue_offset' if table is CONSUME_QUEUE else 'kafka_offset'} = 7"

    def deletes_a_row(self) -> None:
        assert self._delta.delete(self._row)["num_deleted_rows"] == 1

    def empties_the_date(self) -> None:
        assert self._delta.delete(self._day)["num_deleted_rows"] == ROWS_A_DAY

    def changes_a_value(self, to: str = "{column} + 1") -> None:
        column = next(
            each.name for each in self._table.columns if each.kind is Kind.BIGINT and "offset" not in each.name
        )
        done = self._delta.update({column: to.format(column=column)}, predicate=self._row)
        assert done["num_updated_rows"] == 1

    def takes_a_value_away(self) -> None:
        self.changes_a_value("NULL")

    def doubles_a_row(self) -> None:
        self._append("state_epoch")

    def adds_a_row_of_another_epoch(self) -> None:
        self._append("'stranger'")

    def _append(self, epoch: str) -> None:
        columns = ", ".join(epoch if each.name == "state_epoch" else f'"{each.name}"' for each in self._table.columns)
        query = f'SELECT {columns} FROM "rows" WHERE {self._row}'  # noqa: S608 - of this test
        found = pa.table(QueryBuilder().register("rows", self._delta).execute(query))
        assert found.num_rows == 1
        write_deltalake(self._delta, found.rename_columns([each.name for each in self._table.columns]), mode="append")


class Corruption(NamedTuple):
    """What somebody does, and what is found: (state epoch, rows written, rows found, are as many and others there)."""

    do: Callable[[Somebody], None]
    found: tuple[str, int, int, bool]


CORRUPTIONS = {
    "deleted": Corruption(Somebody.deletes_a_row, ("epoch", 20, 19, False)),
    "emptied": Corruption(Somebody.empties_the_date, ("epoch", 20, 0, False)),
    "changed": Corruption(Somebody.changes_a_value, ("epoch", 20, 20, True)),
    "taken-away": Corruption(Somebody.takes_a_value_away, ("epoch", 20, 20, True)),
    "doubled": Corruption(Somebody.doubles_a_row, ("epoch", 20, 21, False)),
    "foreign": Corruption(Somebody.adds_a_row_of_another_epoch, ("stranger", 0, 1, False)),
}


def day_of(corruption: str) -> dt.date:
    return FIRST + dt.timedelta(days=list(CORRUPTIONS).index(corruption))


UNTOUCHED = FIRST + dt.timedelta(days=len(CORRUPTIONS))


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


def writer(spark: SparkSession, root: Path, table: Table, epoch: str = "epoch", **more: Any) -> ExactlyOnceTable:
    return ExactlyOnceTable(spark, root, table, "pipeline", epoch, **more)


def version_of(root: Path, table: Table) -> int:
    return require_table_log(table_path(root, table.name)).version


def unequal(spark: SparkSession, root: Path, *tables: Table) -> list[dict[str, Any]]:
    session = spark.newSession()
    register_unequal_row_totals(session, root, {table.name: version_of(root, table) for table in tables})
    return [row.asDict() for row in session.table("unequal_row_totals").collect()]


@pytest.fixture(scope="module")
def corrupted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("delta")
    tables = [TABLES[name] for name in COUNTED]
    days = [*map(day_of, CORRUPTIONS), UNTOUCHED]
    for table in tables:
        writer(spark, root, table).append([rows_of(table, day) for day in days[:3]], 1)
        # Another process goes on.
        writer(spark, root, table).append([rows_of(table, day, 2) for day in days[3:]], 2)
    assert unequal(spark, root, *tables) == []
    for table in tables:
        for name, corruption in CORRUPTIONS.items():
            corruption.do(Somebody(root, table, day_of(name)))
    return unequal(spark, root, *tables)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("table", COUNTED)
def test_a_corruption_is_found_where_it_is(corrupted: list[dict[str, Any]], table: str, corruption: str) -> None:
    found = [row for row in corrupted if (row["table"], row["date"]) == (table, day_of(corruption))]
    columns = ("state_epoch", "rows_written", "rows_found", "rows_changed")
    assert [tuple(row[column] for column in columns) for row in found] == [CORRUPTIONS[corruption].found]


def test_nothing_else_is_found(corrupted: list[dict[str, Any]]) -> None:
    assert {row["date"] for row in corrupted} == set(map(day_of, CORRUPTIONS))
    assert len(corrupted) == len(COUNTED) * len(CORRUPTIONS)


def test_files_that_are_joined_hold_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = TABLES["deliveries"]
    out = writer(spark, tmp_path, table)
    for seq in (1, 2, 3):
        out.append([rows_of(table, FIRST, seq)], seq)
    assert compact(tmp_path, table).into == 1
    assert unequal(spark, tmp_path, table) == []
    out.append([rows_of(table, FIRST, 4)], 4)
    spark.sql(f"OPTIMIZE delta.`{table_path(tmp_path, table.name)}`")
    assert unequal(spark, tmp_path, table) == []
    before = version_of(tmp_path, table)
    out.append([rows_of(table, FIRST, 5)], 5)
    register_unequal_row_totals(session := spark.newSession(), tmp_path, {table.name: before})
    assert session.table("unequal_row_totals").count() == 0, "as it was at a version"


def test_rows_that_a_restore_of_the_table_removed_are_missed_until_the_job_is_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TABLES["operations"]
    out = writer(spark, tmp_path, table)
    out.append([rows_of(table, FIRST)], 1)
    before = version_of(tmp_path, table)
    out.append([rows_of(table, FIRST, 2)], 2)
    spark.sql(f"RESTORE delta.`{table_path(tmp_path, table.name)}` TO VERSION AS OF {before}")
    (lost,) = unequal(spark, tmp_path, table)
    assert (lost["state_epoch"], lost["rows_written"], lost["rows_found"]) == ("epoch", 40, 20)
    after = writer(spark, tmp_path, table, "epoch after", restores_known=version_of(tmp_path, table))
    after.append([rows_of(table, FIRST, 3, "epoch after")], 3)
    assert unequal(spark, tmp_path, table) == []
    DeltaTable(table_path(tmp_path, table.name)).delete("state_epoch = 'epoch after' AND kafka_offset = 7")
    (deleted,) = unequal(spark, tmp_path, table)
    assert (deleted["state_epoch"], deleted["rows_written"], deleted["rows_found"]) == ("epoch after", 20, 19)


def test_dates_that_retention_has_deleted_are_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    table = TABLES["deliveries"]
    out = writer(spark, tmp_path, table)
    out.append([rows_of(table, FIRST), rows_of(table, FIRST + dt.timedelta(days=1))], 1)
    delete_before(tmp_path, table, FIRST + dt.timedelta(days=1))
    assert unequal(spark, tmp_path, table) == []
    out.append([rows_of(table, FIRST, 2)], 2)
    assert unequal(spark, tmp_path, table) == [], "rows that come late stay until the next time"
    DeltaTable(table_path(tmp_path, table.name)).delete("kafka_offset = 7")  # one of each date
    (found,) = unequal(spark, tmp_path, table)
    assert (found["date"], found["rows_written"], found["rows_found"]) == (FIRST + dt.timedelta(days=1), 20, 19)


def test_rows_of_an_older_version_are_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Its commits have no totals: here they are taken out of the log."""
    table = TABLES["rejected"]
    writer(spark, tmp_path, table).append([rows_of(table, FIRST)], 1)
    commit = table_path(tmp_path, table.name) / "_delta_log" / f"{1:020d}.json"
    lines = commit.read_text().splitlines(keepends=True)
    older = [line for line in lines if "row_totals/" not in line]
    assert len(lines) - len(older) == 2
    commit.write_text("".join(older))
    assert unequal(spark, tmp_path, table) == []
    writer(spark, tmp_path, table).append([rows_of(table, FIRST, 2)], 2)
    assert unequal(spark, tmp_path, table) == []
    DeltaTable(table_path(tmp_path, table.name)).delete("kafka_offset = 7")  # one of both
    (found,) = unequal(spark, tmp_path, table)
    assert (found["rows_written"], found["rows_found"]) == (20, 19)


def test_a_file_that_is_gone_is_named(spark: SparkSession, tmp_path: Path) -> None:
    table = TABLES["deliveries"]
    writer(spark, tmp_path, table).append([rows_of(table, FIRST)], 1)
    (file,) = table_path(tmp_path, table.name).rglob("*.parquet")
    file.unlink()
    with pytest.raises(Corrupt, match=file.name):
        unequal(spark, tmp_path, table)
