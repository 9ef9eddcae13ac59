"""Writes `quality_results`: the history of validations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from delta.tables import DeltaTable

from connectors.delta.schemas import arrow_schema
from connectors.delta.store import ensure_table
from connectors.delta.tables import TABLES, table_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from expectations.report import QualityReport

__all__ = ["write_results"]

_TABLE: Final = TABLES["quality_results"]
# Some rules read several tables, so a result belongs to all pinned versions.
_KEY: Final = ("suite", "expectation", "table", "table_version", "pinned_versions")


def write_results(spark: SparkSession, root: Path, report: QualityReport) -> None:
    """Write the outcomes of a run. A repeated check of the same table versions replaces its rows."""
    ensure_table(spark, root, _TABLE)
    pinned = ",".join(f"{table}={version}" for table, version in sorted(report.versions.items()))
    rows = [
        {
            "suite": outcome.suite,
            "expectation": outcome.expectation,
            "table": outcome.suite,
            "table_version": outcome.table_version,
            "pinned_versions": pinned,
            "success": outcome.success,
            "observed": outcome.error or json.dumps(outcome.sample, sort_keys=True),
            "unexpected_count": outcome.unexpected_count,
            "run_at": report.run_at,
        }
        for outcome in report.outcomes
    ]
    # By Arrow: of Python's own rows Spark would start a process for each of its cores.
    found = spark.createDataFrame(pa.Table.from_pylist(rows, arrow_schema(_TABLE))).coalesce(1)
    same = " AND ".join(f"kept.`{name}` = found.`{name}`" for name in _KEY)
    target = DeltaTable.forPath(spark, str(table_path(root, _TABLE.name)))
    (target.alias("kept").merge(found.alias("found"), same).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute())
