"""Claim: rows that Spark's executors write are committed once, together with the totals that `check` compares."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from connectors.delta.log.table_log import require_table_log
from connectors.delta.log.transactions import app_id
from connectors.delta.row_totals import appended_totals, totals_by_day
from connectors.delta.spark_append import SparkAppend
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import TABLES, table_path
from tests.support.delta_files import create_table
from tests.support.written_rows import FIRST, ROWS_A_DAY, rows_of, unequal

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLE = TABLES["operations"]
APP = app_id("cluster", TABLE.name, "epoch")


def append(spark: SparkSession, root: Path, rows: pa.Table, version: int, *, counts: bool = True) -> bool:
    assert TABLE.partitioned_by is not None
    added = totals_by_day(rows, TABLE.partitioned_by)
    commit = SparkAppend(spark, str(table_path(root, TABLE.name)), app_id=APP, version=version)
    if not commit.is_done:
        commit.commit_rows(
            spark.createDataFrame(rows, spark_schema(TABLE)),
            lambda last: appended_totals("epoch", added, last, is_first=last(APP) is None) if counts else {},
        )
    return not commit.is_done


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_table(tmp_path, TABLE.name)
    return tmp_path


def test_rows_and_their_totals_are_committed_once(spark: SparkSession, root: Path) -> None:
    later = FIRST + dt.timedelta(1)
    assert append(spark, root, rows_of(TABLE, FIRST), 0)
    assert append(spark, root, rows_of(TABLE, FIRST, 2), 1)
    assert append(spark, root, rows_of(TABLE, later, 3), 2)
    assert not append(spark, root, rows_of(TABLE, later, 3), 2), "a micro-batch that is repeated"
    log = require_table_log(table_path(root, TABLE.name))
    assert (log.version, log.txns[APP]) == (3, 2)
    assert log.txns[f"row_totals/epoch/{FIRST}/rows"] == 2 * ROWS_A_DAY
    table = DeltaTable(table_path(root, TABLE.name))
    assert table.to_pyarrow_table().num_rows == 3 * ROWS_A_DAY
    assert sorted(table.partitions(), key=str) == [{TABLE.partitioned_by: str(day)} for day in (FIRST, later)]
    assert unequal(root, TABLE) == []


def test_a_row_that_somebody_deletes_afterwards_is_missed(spark: SparkSession, root: Path) -> None:
    append(spark, root, rows_of(TABLE, FIRST), 0)
    DeltaTable(table_path(root, TABLE.name)).delete("kafka_offset = 7")
    (deleted,) = unequal(root, TABLE)
    assert (deleted["rows_written"], deleted["rows_found"]) == (ROWS_A_DAY, ROWS_A_DAY - 1)


def test_rows_of_a_state_whose_first_rows_were_not_counted_are_not_counted(spark: SparkSession, root: Path) -> None:
    append(spark, root, rows_of(TABLE, FIRST), 0, counts=False)
    append(spark, root, rows_of(TABLE, FIRST, 2), 1)
    assert [app for app in require_table_log(table_path(root, TABLE.name)).txns if "row_totals" in app] == []
    assert unequal(root, TABLE) == []


@pytest.mark.parametrize("reads_log", [False, True])
def test_of_two_writers_with_one_identifier_one_commits(spark: SparkSession, root: Path, *, reads_log: bool) -> None:
    path = table_path(root, TABLE.name)
    rows = spark.createDataFrame(rows_of(TABLE, FIRST), spark_schema(TABLE))

    def begun() -> SparkAppend:
        return SparkAppend(spark, str(path), app_id=APP, version=4, folder=path if reads_log else None)

    one, other = begun(), begun()
    one.commit_rows(rows, lambda _: {})
    with pytest.raises(PySparkException, match="CONCURRENT_TRANSACTION"):
        other.commit_rows(rows, lambda _: {})
    assert begun().is_done
    assert DeltaTable(path).to_pyarrow_table().num_rows == ROWS_A_DAY
