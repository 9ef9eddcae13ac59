"""The rows of the Delta tables that the verdict looks at, as they were at one version each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from connectors.delta.table_log import require_table_log
from connectors.delta.tables import AUDIT_TABLES, table_path
from pipelines.demo.ledger import Delivery
from pipelines.demo.verdict import OperationFact, PositionFact, RejectedFact

__all__ = ["newest_versions", "read_deliveries", "read_operations", "read_positions", "read_rejected"]


def newest_versions(root: Path) -> dict[str, int]:
    """Newest version of each audit table."""
    return {table: require_table_log(table_path(root, table)).version for table in AUDIT_TABLES}


def read_operations(spark: SparkSession, root: Path, versions: Mapping[str, int]) -> list[OperationFact]:
    """Rows that leased something or have a code."""
    rows = _rows(spark, root, versions, "operations", OperationFact, "kind = 'pop' AND applied OR code <> 0")
    return list(map(OperationFact._make, rows))


def read_deliveries(spark: SparkSession, root: Path, versions: Mapping[str, int]) -> list[Delivery]:
    """Every row, in log order within its lane."""
    return list(map(Delivery._make, _rows(spark, root, versions, "deliveries", Delivery, "true")))


def read_positions(spark: SparkSession, root: Path, versions: Mapping[str, int]) -> list[PositionFact]:
    """Every row, in log order within its lane."""
    return list(map(PositionFact._make, _rows(spark, root, versions, "commit_positions", PositionFact, "true")))


def read_rejected(spark: SparkSession, root: Path, versions: Mapping[str, int]) -> list[RejectedFact]:
    """Every row."""
    return list(map(RejectedFact._make, _rows(spark, root, versions, "rejected", RejectedFact, "true")))


def _rows(
    spark: SparkSession,
    root: Path,
    versions: Mapping[str, int],
    table: str,
    row: type[NamedTuple],
    condition: str,
) -> Iterator[tuple[Any, ...]]:
    frame = (
        spark.read.format("delta")
        .option("versionAsOf", versions[table])
        .load(str(table_path(root, table)))
        .where(condition)
        # All rows of a queue are in one partition of the ops topic. One task sorts faster than a shuffle starts.
        .coalesce(1)
        .sortWithinPartitions("partition", "kafka_offset", "ordinal")
        .select(*(f.col(name) for name in row._fields))
    )
    columns = (column.to_pylist() for column in frame.toArrow().columns)
    return zip(*columns, strict=True)
