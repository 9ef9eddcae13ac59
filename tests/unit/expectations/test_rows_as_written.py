"""Claim: whatever rows are deleted, changed, doubled, added or brought back, the check names table and date.

Method: each table of the job is written by its own writer, with rows of a date for each corruption; then another tool,
as somebody would use it, does one corruption to each date. Nothing else may be found.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, Kind, Table, table_path
from popstream.wire.base_errors import Corrupt
from tests.support.written_rows import FIRST, ROWS_A_DAY, rows_of, unequal, writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNTED = (*AUDIT_TABLES, CONSUME_QUEUE.name)


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


@pytest.fixture(scope="module")
def corrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("delta")
    tables = [TABLES[name] for name in COUNTED]
    days = [*map(day_of, CORRUPTIONS), UNTOUCHED]
    for table in tables:
        writer(root, table).append([rows_of(table, day) for day in days[:3]], 1)
        # Another process goes on.
        writer(root, table).append([rows_of(table, day, 2) for day in days[3:]], 2)
    assert unequal(root, *tables) == []
    for table in tables:
        for name, corruption in CORRUPTIONS.items():
            corruption.do(Somebody(root, table, day_of(name)))
    return unequal(root, *tables)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("table", COUNTED)
def test_a_corruption_is_found_where_it_is(corrupted: list[dict[str, Any]], table: str, corruption: str) -> None:
    found = [row for row in corrupted if (row["table"], row["date"]) == (table, day_of(corruption))]
    columns = ("state_epoch", "rows_written", "rows_found", "rows_changed")
    assert [tuple(row[column] for column in columns) for row in found] == [CORRUPTIONS[corruption].found]


def test_nothing_else_is_found(corrupted: list[dict[str, Any]]) -> None:
    assert {row["date"] for row in corrupted} == set(map(day_of, CORRUPTIONS))
    assert len(corrupted) == len(COUNTED) * len(CORRUPTIONS)


def test_rows_of_an_older_version_are_not_counted(tmp_path: Path) -> None:
    """Its commits have no totals and no checksum: here they are taken out of the log."""
    table = TABLES["rejected"]
    writer(tmp_path, table).append([rows_of(table, FIRST)], 1)
    commit = table_path(tmp_path, table.name) / "_delta_log" / f"{1:020d}.json"
    lines = commit.read_text().splitlines(keepends=True)
    older = [line for line in lines if "row_totals/" not in line]
    assert len(lines) - len(older) == 2
    commit.write_text(re.sub(',"popstreamChecksum":"[0-9a-f]{8}"', "", "".join(older)))
    assert unequal(tmp_path, table) == []
    writer(tmp_path, table).append([rows_of(table, FIRST, 2)], 2)
    assert unequal(tmp_path, table) == []
    DeltaTable(table_path(tmp_path, table.name)).delete("kafka_offset = 7")  # one of both
    (found,) = unequal(tmp_path, table)
    assert (found["rows_written"], found["rows_found"]) == (20, 19)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    table = TABLES["deliveries"]
    writer(tmp_path, table).append([rows_of(table, FIRST)], 1)
    (file,) = table_path(tmp_path, table.name).rglob("*.parquet")
    file.unlink()
    with pytest.raises(Corrupt, match=file.name):
        unequal(tmp_path, table)
