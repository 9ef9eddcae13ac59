"""Claim: a column that quotes clients is erased, equals what was decided when it is, and is in no statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.delta.data_files import file_statistics
from connectors.delta.erased_values import ERASED, NO_HEAD, is_withheld
from connectors.delta.tables import QUOTING_COLUMNS, TABLES, Kind

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN_BY_CLIENTS = {
    "operations": ("detail",),
    "deliveries": ("cause",),
    "rejected": ("detail", "value_head"),
    "quality_results": ("observed",),
}
"""A column that is added and quotes what clients sent belongs here, and needs `quotes_clients`."""


def test_the_columns_are_those_that_quote_clients() -> None:
    assert {
        name: table.quoting_columns for name, table in TABLES.items() if table.quoting_columns
    } == WRITTEN_BY_CLIENTS


def test_a_name_means_the_same_in_each_table() -> None:
    for table in TABLES.values():
        assert QUOTING_COLUMNS.intersection(column.name for column in table.columns) == set(table.quoting_columns)


@pytest.mark.parametrize("name", sorted(QUOTING_COLUMNS))
def test_an_erased_value_stands_for_the_one_that_was_decided(name: str) -> None:
    kinds = {column.kind for table in TABLES.values() for column in table.columns if column.name == name}
    wanted, erased = (b"alice", NO_HEAD) if kinds == {Kind.BINARY} else ("alice", ERASED)
    assert is_withheld(name, wanted, erased)
    assert not is_withheld(name, wanted, "bob")


@pytest.mark.parametrize("name", sorted(QUOTING_COLUMNS))
def test_it_is_not_in_the_statistics(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    pq.write_table(pa.table({name: ["alice"], "topic": ["orders"]}), file)
    statistics = file_statistics(pq.read_metadata(file))
    assert statistics["minValues"] == statistics["maxValues"] == {"topic": "orders"}
