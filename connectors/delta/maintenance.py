"""OPTIMIZE and VACUUM: a few large files in place of the small one that each flush leaves in each table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from delta.tables import DeltaTable

from connectors.delta.commits import commits_up_from, sync_commits
from connectors.delta.table_log import read_table_log
from connectors.delta.tables import TABLES, table_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["Maintained", "maintain"]


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


def maintain(spark: SparkSession, root: Path) -> Iterator[Maintained]:
    """Compact every table, then remove the files that no version of the last week has.

    Compacting changes no row, and appends do not conflict with it; but on a local disk they must come from the same
    process (`pipelines.maintenance`). What is younger than the table's retention, a week,
    stays: somebody may still read it, or be about to commit it. A table is done when its outcome comes. One that fails
    does not keep the others from it: the first failure is raised after all of them.

    Raises:
        Corrupt: The log of a table cannot be read.
    """
    failures: list[Exception] = []
    for name in TABLES:
        try:
            log = read_table_log(table_path(root, name))
            done = None if log is None else _maintain(spark, root, name, log.version)
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes
            failures.append(error)
            continue
        if done is not None:
            yield done
    if failures:
        raise failures[0]


def _maintain(spark: SparkSession, root: Path, name: str, version: int) -> Maintained:
    path = table_path(root, name)
    table = DeltaTable.forPath(spark, str(path))
    metrics = table.optimize().executeCompaction().select("metrics.numFilesRemoved", "metrics.numFilesAdded").head()
    assert metrics is not None
    # The rows are now in files that a power loss could take; those that had them were synced long ago.
    sync_commits(path, commits_up_from(path, version))
    before = _files(path)
    table.vacuum()
    return Maintained(table=name, compacted=metrics[0], into=metrics[1], removed=len(before - _files(path)))


def _files(path: Path) -> set[Path]:
    return {file for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}
