"""Rows are compared by value, but for what older versions did not write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.delta.row_comparison import ROW_KEY, Comparison, comparable_schema, compare_rows, described_row
from connectors.delta.tables import TABLES


def rows(table: str, *values: dict[str, Any]) -> pa.Table:
    schema = comparable_schema(TABLES[table])
    empty = dict.fromkeys(schema.names)
    return pa.Table.from_pylist(
        [{**empty, "partition": 0, "kafka_offset": 1, "ordinal": at, **each} for at, each in enumerate(values)], schema
    )


def compared(table: str, wanted: dict[str, Any], found: dict[str, Any]) -> Comparison:
    return compare_rows(rows(table, wanted), rows(table, found), ROW_KEY, described_row)


def test_rows_of_older_versions_do_not_name_who_held_a_lease() -> None:
    expired = {"step": "expired", "client_id": "holder"}
    assert compared("deliveries", expired, expired).is_equal
    assert compared("deliveries", expired, {**expired, "client_id": None}).is_equal
    assert compared("deliveries", expired, {**expired, "client_id": "another"}).changed == 1
    assert compared("deliveries", {**expired, "client_id": None}, expired).changed == 1
    assert compared("deliveries", expired, {"step": "acked", "client_id": None}).changed == 1


def test_an_operation_names_its_client_in_all_versions() -> None:
    assert compared("operations", {"client_id": "sender"}, {"client_id": None}).changed == 1
