"""Each time in milliseconds has a timestamp beside it, of the same moment."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from connectors.delta.all_columns import with_all_columns
from connectors.delta.tables import TABLES, Kind, Table

TABLE = TABLES["order_info"]
MOMENT_MS = 1_795_262_400_123
MOMENT = dt.datetime(2026, 11, 21, 12, 0, 0, 123_000, dt.UTC)


def rows_with(table: Table, *free_at_ms: int | None) -> pa.Table:
    """Return rows as they were decided: the given times, and 1 in the other columns."""
    columns = {
        column.name: [f"{column.name}" if column.kind is Kind.STRING else 1] * len(free_at_ms)
        for column in table.decided_columns
    }
    return pa.table(
        {**columns, "now_ms": [MOMENT_MS] * len(free_at_ms), "free_at_ms": pa.array(free_at_ms, pa.int64())}
    )


def added(count: int) -> dict[str, pa.Array]:
    return {
        "apply_seq": pa.array([1] * count, pa.int64()),
        "state_epoch": pa.repeat("epoch", count),
        "ops_topic_id": pa.repeat("id", count),
        "op_date": pa.array([dt.date(2026, 11, 21)] * count),
    }


def test_a_timestamp_is_the_moment_of_the_milliseconds_and_null_where_they_are() -> None:
    rows = with_all_columns(TABLE, rows_with(TABLE, MOMENT_MS, None), added(2))

    assert rows.schema.names == [column.name for column in TABLE.columns]
    assert rows["now_utc"].to_pylist() == [MOMENT, MOMENT]
    assert rows["free_at_utc"].to_pylist() == [MOMENT, None]
    assert rows["pop_time_utc"].to_pylist() == [dt.datetime(1970, 1, 1, 0, 0, 0, 1_000, dt.UTC)] * 2
    assert "invisible_time_utc" not in rows.schema.names, "it is a duration"


@pytest.mark.parametrize("time_ms", [-(1 << 63), (1 << 63) - 1, -2_208_988_800_001, 253_402_300_800_000])
def test_a_time_that_not_every_reader_knows_has_no_timestamp(time_ms: int) -> None:
    rows = with_all_columns(TABLE, rows_with(TABLE, time_ms, MOMENT_MS), added(2))

    assert rows["free_at_ms"].to_pylist() == [time_ms, MOMENT_MS]
    assert rows["free_at_utc"].to_pylist() == [None, MOMENT]


@pytest.mark.parametrize(
    ("time_ms", "moment"),
    [
        (-2_208_988_800_000, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)),
        (253_402_300_799_000, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
    ],
)
def test_the_first_and_the_last_timestamp(time_ms: int, moment: dt.datetime) -> None:
    rows = with_all_columns(TABLE, rows_with(TABLE, time_ms), added(1))
    assert rows["free_at_utc"].to_pylist() == [moment]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_time_in_milliseconds_has_a_timestamp(table: Table) -> None:
    times = [column.name for column in table.columns if column.name.endswith("_ms")]
    timestamps = {column.of_ms for column in table.columns if column.of_ms is not None}
    assert timestamps == set(times) - {"invisible_time_ms"}
    assert all(not column.required for column in table.columns if column.of_ms is not None), "older files lack them"
