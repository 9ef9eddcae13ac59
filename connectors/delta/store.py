"""Creates Delta tables, and checks those that exist."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from connectors.delta.log.actions import how_to_repair
from connectors.delta.log.table_log import read_table_log
from connectors.delta.tables import Table, spark_schema, table_path
from popstream.wire.base_errors import Corrupt, Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["ensure_table", "require_columns"]

_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
}
_FORGETS_TRANSACTIONS: Final = "delta.setTransactionRetentionDuration"
"""After this time Delta forgets a transaction, and accepts the same rows again (measured)."""


def ensure_table(spark: SparkSession, root: Path, table: Table) -> None:
    """Create the table if it is missing. Removes the property that would let Delta accept rows twice.

    Raises:
        Invalid: The table exists with other columns.
    """
    path = table_path(root, table.name)
    log = read_table_log(path)
    if log is None:
        _create(spark, path, table)
        return
    if _FORGETS_TRANSACTIONS in log.properties:
        spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_FORGETS_TRANSACTIONS}')")
    require_columns(path, table, log.schema)


def require_columns(path: Path, table: Table, schema: str) -> None:
    """Refuse a table with other columns than `table` has.

    Args:
        path: Folder of the table.
        table: The expected table.
        schema: The schema in its log, as JSON.

    Raises:
        Invalid: It has other columns.
        Corrupt: The schema cannot be read.
    """
    try:
        found = _types(StructType.fromJson(json.loads(schema)))
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        problem = f"the log of {table.name} is damaged: its columns cannot be read: {error}"
        message = f"{problem}: {how_to_repair(table.name)}"
        raise Corrupt(message, subject=table.name) from error
    wanted = _types(spark_schema(table))
    if found != wanted:
        differences = [
            f"{name}: {found.get(name, 'missing')}, expected {wanted.get(name, 'none')}"
            for name in sorted(found.keys() | wanted.keys())
            if found.get(name) != wanted.get(name)
        ]
        message = (
            f"the Delta table at {path} has other columns than this version writes: run the version that created it,"
            f" or run `popstream restore --rebuild {table.name}`"
        )
        raise Invalid(message, subject=table.name, details=differences)


def _create(spark: SparkSession, path: Path, table: Table) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).comment(table.comment)
    builder = builder.addColumns(spark_schema(table))
    if table.partitioned_by is not None:
        builder = builder.partitionedBy(table.partitioned_by)
    for key, value in _PROPERTIES.items():
        builder = builder.property(key, value)
    builder.execute()


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}
