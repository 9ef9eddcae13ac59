"""Delta tables as things: made, checked, and asked for their newest version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable
from pyspark.sql.types import StructType

from connectors.delta.tables import Table, spark_schema, table_path
from connectors.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

__all__ = ["ensure_table", "newest_versions"]

_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
}
_FORGETS_TRANSACTIONS: Final = "delta.setTransactionRetentionDuration"
"""Once it is over Delta accepts the same rows again (measured)."""


def ensure_table(spark: SparkSession, root: Path, table: Table) -> None:
    """Create the table unless it is there, and take from it the one property under which rows come twice.

    Raises:
        Invalid: it is there with other columns.
    """
    path = table_path(root, table.name)
    if not DeltaTable.isDeltaTable(spark, str(path)):
        _create(spark, path, table)
    snapshot = _newest_snapshot(spark, path)
    if snapshot.metadata().configuration().contains(_FORGETS_TRANSACTIONS):
        spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_FORGETS_TRANSACTIONS}')")
    found = _types(StructType.fromJson(json.loads(snapshot.schema().json())))
    wanted = _types(spark_schema(table))
    if found != wanted:
        differences = [
            f"{name}: {found.get(name, 'missing')}, not {wanted.get(name, 'there')}"
            for name in sorted(found.keys() | wanted.keys())
            if found.get(name) != wanted.get(name)
        ]
        message = f"the Delta table at {path} has other columns than this version writes"
        raise Invalid(message, subject=table.name, details=differences)


def newest_versions(spark: SparkSession, path: Path, family: str = "") -> tuple[int, dict[str, int]]:
    """Newest version of a table, and the last `txnVersion` of each `txnAppId` that starts with `family`, without it."""
    snapshot = _newest_snapshot(spark, path)
    jvm = spark._jvm  # noqa: SLF001
    assert jvm is not None
    known = jvm.scala.jdk.javaapi.CollectionConverters.asJava(snapshot.transactions())
    versions = {str(app_id): int(known[app_id]) for app_id in known if str(app_id).startswith(family)}
    return int(snapshot.version()), {app_id.removeprefix(family): last for app_id, last in versions.items()}


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


def _newest_snapshot(spark: SparkSession, path: Path) -> JavaObject:
    """Delta's own view of a table: it has no public way to read the version of a transaction."""
    jvm = spark._jvm  # noqa: SLF001
    assert jvm is not None
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))  # noqa: SLF001
    none = jvm.scala.Option.empty()
    return log.update(False, none, none)
