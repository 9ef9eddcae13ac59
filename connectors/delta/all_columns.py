"""Adds to rows the columns that nobody decides: those of their writer, and the timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connectors.delta.tables import Table

__all__ = ["with_all_columns"]

_UTC: Final = pa.timestamp("us", tz="UTC")
_FIRST_MS: Final = -2_208_988_800_000
"""The beginning of 1900: Spark before version 4 does not read earlier ones of other writers, as calendars differed."""
_LAST_MS: Final = 253_402_300_799_000
"""The end of 9999: Python, for one, has no later year; a sender may give a record any time."""


def with_all_columns(table: Table, rows: pa.Table, added: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return rows with all columns of their table.

    Args:
        table: The table.
        rows: Its columns that were decided.
        added: Its other columns by name, but for the timestamps.
    """
    schema = arrow_schema(table)
    found = {name: rows[name] for name in rows.schema.names} | dict(added)
    for column in table.columns:
        if column.of_ms is not None:
            found[column.name] = _timestamps(found[column.of_ms])
    return pa.table([found[name] for name in schema.names], schema=schema)


def _timestamps(times_ms: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    bounds = pc.min_max(times_ms)
    if bounds["min"].is_valid and not _FIRST_MS <= bounds["min"].as_py() <= bounds["max"].as_py() <= _LAST_MS:
        is_known = pc.and_(pc.greater_equal(times_ms, _FIRST_MS), pc.less_equal(times_ms, _LAST_MS))
        times_ms = pc.if_else(is_known, times_ms, pa.scalar(None, pa.int64()))
    return pc.multiply(times_ms, 1000).cast(_UTC)
