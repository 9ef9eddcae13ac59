"""The Arrow schemas of the Delta tables, and of the slices of rows in the outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from connectors.delta.tables import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connectors.delta.tables import Table

__all__ = ["arrow_schema", "columns_of", "outbox_schema"]

_ARROW_TYPES: Final = {
    Kind.BIGINT: pa.int64(),
    Kind.BINARY: pa.binary(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.INT: pa.int32(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def outbox_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of the kernel's columns, in the order of the row type."""
    return pa.schema(
        [
            pa.field(
                column.name, pa.dictionary(pa.int32(), pa.string()) if column.repeats else _ARROW_TYPES[column.kind]
            )
            for column in table.decided_columns
        ]
    )


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of the whole table."""
    return pa.schema([pa.field(column.name, _ARROW_TYPES[column.kind]) for column in table.columns])


def columns_of(table: Table, names: Iterable[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of a table.

    >>> from connectors.delta.tables import TABLES
    >>> columns_of(TABLES["operations"], ["partition", "kafka_offset", "partition"])
    partition: int32
    kafka_offset: int64
    """
    schema = arrow_schema(table)
    return pa.schema([schema.field(name) for name in dict.fromkeys(names)])
