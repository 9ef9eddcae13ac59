"""SQL names in Spark of the tables, and of the views on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from connectors.delta.history_start import HISTORY_BEGINS, first_day_of, history_begins
from connectors.delta.log.table_log import require_table_log
from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import views_on
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["register_tables", "register_views"]


def register_tables(spark: SparkSession, root: Path) -> Sequence[str]:
    """Register the existing tables below `root` and the views on them in the session; return all names.

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
    paths = {name: table_path(root, name) for name in found}
    return [*found, *register_views(spark, paths)]


def register_views(spark: SparkSession, paths: Mapping[str, Path]) -> list[str]:
    """Register the views on tables that are registered, given as folder by name; return the names of the views."""
    first_days = {name: first_day_of(require_table_log(path).txns) for name, path in paths.items()}
    columns = {name: spark.table(name).columns for name in paths}
    views = {**views_on(columns), HISTORY_BEGINS: history_begins(first_days)}
    for name, query in views.items():
        spark.sql(query).createOrReplaceTempView(name)
    return list(views)
