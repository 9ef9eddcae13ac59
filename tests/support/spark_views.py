"""The tables of a test by their names in Spark's SQL, with the views on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.delta.spark_tables import register_views
from connectors.delta.tables import table_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["name_tables"]


def name_tables(session: SparkSession, root: Path, names: Iterable[str]) -> None:
    """Name tables below `root` in one session alone: the catalog is that of every test."""
    paths = {name: table_path(root, name) for name in names}
    for name, path in paths.items():
        session.read.format("delta").load(str(path)).createOrReplaceTempView(name)
    register_views(session, paths)
