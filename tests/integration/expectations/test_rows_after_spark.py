"""Claim: the totals of a table follow what Spark does to it: OPTIMIZE leaves them, and a RESTORE is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import compact
from connectors.delta.tables import TABLES, table_path
from expectations.row_totals import unequal_row_totals
from tests.support.written_rows import FIRST, rows_of, unequal, version_of, writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_files_that_are_joined_hold_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = TABLES["deliveries"]
    out = writer(tmp_path, table)
    for seq in (1, 2, 3):
        out.append([rows_of(table, FIRST, seq)], seq)
    assert compact(tmp_path, table).into == 1
    assert unequal(tmp_path, table) == []
    out.append([rows_of(table, FIRST, 4)], 4)
    spark.sql(f"OPTIMIZE delta.`{table_path(tmp_path, table.name)}`")
    assert unequal(tmp_path, table) == []
    before = version_of(tmp_path, table)
    out.append([rows_of(table, FIRST, 5)], 5)
    assert unequal_row_totals(tmp_path, {table.name: before}).num_rows == 0, "as it was at a version"


def test_rows_that_a_restore_of_the_table_removed_are_missed_until_the_job_is_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = TABLES["operations"]
    out = writer(tmp_path, table)
    out.append([rows_of(table, FIRST)], 1)
    before = version_of(tmp_path, table)
    out.append([rows_of(table, FIRST, 2)], 2)
    spark.sql(f"RESTORE delta.`{table_path(tmp_path, table.name)}` TO VERSION AS OF {before}")
    (lost,) = unequal(tmp_path, table)
    assert (lost["state_epoch"], lost["rows_written"], lost["rows_found"]) == ("epoch", 40, 20)
    after = writer(tmp_path, table, "epoch after", restores_known=version_of(tmp_path, table))
    after.append([rows_of(table, FIRST, 3, "epoch after")], 3)
    assert unequal(tmp_path, table) == []
    DeltaTable(table_path(tmp_path, table.name)).delete("state_epoch = 'epoch after' AND kafka_offset = 7")
    (deleted,) = unequal(tmp_path, table)
    assert (deleted["state_epoch"], deleted["rows_written"], deleted["rows_found"]) == ("epoch after", 20, 19)
