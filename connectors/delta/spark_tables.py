"""SQL names in Spark of the tables, and of their views by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import by_message_views
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["register_tables", "register_views"]


def register_tables(spark: SparkSession, root: Path) -> Sequence[str]:
    """Register the existing tables below `root` and their views by message in the session; return all names.

    The tables are registered by location and not as views, so that `operations VERSION AS OF 3` and
    `DESCRIBE HISTORY operations` work.

    Raises:
        Invalid: There are no tables.
    """
    found = [name for name in TABLES if DeltaTable.isDeltaTable(spark, str(table_path(root, name)))]
    if not found:
        message = f"there are no tables in {root}: has the job run here?"
        raise Invalid(message, subject=str(root))
    for name in found:
        location = str(table_path(root, name).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
    return [*found, *_register_by_message(spark, found)]


def register_views(spark: SparkSession, paths: Mapping[str, Path]) -> None:
    """Register each table of `paths` (folder by table name) as a temporary view, and the views by message."""
    for table, path in paths.items():
        spark.read.format("delta").load(str(path)).createOrReplaceTempView(table)
    _register_by_message(spark, paths)


def _register_by_message(spark: SparkSession, tables: Iterable[str]) -> list[str]:
    views = by_message_views(tables)
    for name, query in views.items():
        spark.sql(query).createOrReplaceTempView(name)
    return list(views)
