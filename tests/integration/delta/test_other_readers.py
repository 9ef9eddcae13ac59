"""Spark, delta-rs, polars and DuckDB read the same rows of a table that the job wrote and compacted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import Compacted, compact
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import encode_rows
from connectors.delta.tables import DELIVERIES
from tests.support.audit_tables import NOW_MS, delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    # delta-rs 1.6 gives Arrow to polars and DuckDB by a method that it is about to rename.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DAY_MS = 86_400_000
WANTED = "apply_seq = 3 AND op_date = DATE '2026-11-22'"


@pytest.fixture
def table(root: Path, start: Callable[..., AuditFlusher]) -> Path:
    """Rows of two dates in files of three flushes, of which the older ones are compacted."""
    flusher = start()
    long_name = "a group " * 20  # beyond what statistics keep of a text
    for seq in range(1, 5):
        rows = [delivery(seq, number, NOW_MS + number % 2 * DAY_MS)._replace(group=long_name) for number in range(6)]
        flusher.flush("deliveries", [(seq, data) for data in encode_rows("deliveries", rows)], seq)
        if seq == 2:
            assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=4, into=2)
    return root / "deliveries"


@pytest.fixture
def expected(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(str(table)).where(WANTED).orderBy("ordinal").collect()
    assert len(rows) == 3
    return [tuple(row) for row in rows]


def test_delta_rs_reads_it(table: Path, expected: list[tuple[Any, ...]]) -> None:
    log = DeltaTable(table)
    assert (log.version(), len(log.file_uris())) == (6, 6)
    found = log.to_pyarrow_table(partitions=[("op_date", "=", "2026-11-22")], filters=[("apply_seq", "=", 3)])
    rows = found.sort_by("ordinal").select(_columns(log)).to_pylist()
    assert [tuple(row.values()) for row in rows] == expected
    assert log.transaction_version("jobs/deliveries/epoch-1") == 4


def test_polars_reads_it(table: Path, expected: list[tuple[Any, ...]]) -> None:
    wanted = (pl.col("apply_seq") == 3) & (pl.col("op_date") == pl.date(2026, 11, 22))
    found = pl.scan_delta(str(table)).filter(wanted).sort("ordinal").collect()
    assert found.select(_columns(DeltaTable(table))).rows() == expected


def test_duckdb_reads_it(table: Path, expected: list[tuple[Any, ...]]) -> None:
    rows = DeltaTable(table).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("deliveries", rows)
        columns = ", ".join(f'"{name}"' for name in _columns(DeltaTable(table)))
        query = f"SELECT {columns} FROM deliveries WHERE {WANTED} ORDER BY ordinal"  # noqa: S608 - names of our own
        found = connection.sql(query).fetchall()
    assert found == expected


def _columns(log: DeltaTable) -> list[str]:
    return [field.name for field in log.schema().fields]
