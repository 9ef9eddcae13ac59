"""OPTIMIZE and VACUUM: a few large files in place of the small one that each flush leaves in each table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from delta.tables import DeltaTable

from connectors.delta.tables import TABLES, table_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["RETAIN_HOURS", "Maintained", "maintain"]

RETAIN_HOURS: Final = 168.0
"""Delta refuses less: somebody may still read what is no longer of the table, or be about to commit it."""


class Maintained(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one table's files.

    Attributes:
        table: Its name.
        compacted: Files that were joined.
        into: Files that they are now.
        removed: Files that were of no version younger than a week, and are gone.
    """

    table: str
    compacted: int
    into: int
    removed: int


def maintain(spark: SparkSession, root: Path) -> list[Maintained]:
    """Compact every table, then remove the files that no version of the last week has; beside a running job, too.

    Compacting changes no row, and appends do not conflict with it.
    """
    return [
        _maintain(spark, root, name) for name in TABLES if DeltaTable.isDeltaTable(spark, str(table_path(root, name)))
    ]


def _maintain(spark: SparkSession, root: Path, name: str) -> Maintained:
    path = table_path(root, name)
    table = DeltaTable.forPath(spark, str(path))
    metrics = table.optimize().executeCompaction().select("metrics.numFilesRemoved", "metrics.numFilesAdded").head()
    assert metrics is not None
    before = _files(path)
    table.vacuum(RETAIN_HOURS)
    return Maintained(table=name, compacted=metrics[0], into=metrics[1], removed=len(before - _files(path)))


def _files(path: Path) -> set[Path]:
    return set(path.rglob("*.parquet"))
