"""Claim: maintenance joins small files and removes those that nobody needs, beside writers, and no row is lost.

Method: a real Delta table for each test.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from pyspark.errors import IllegalArgumentException

from connectors.delta.flusher import AuditFlusher
from connectors.delta.tables import TABLES, table_path
from pipelines.process.maintenance import maintain
from popstream.wire.base_errors import Corrupt
from tests.support.audit_tables import flushed, slices, stored_seqs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_optimize_while_appending_and_vacuum_keep_every_row(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """Small files become one while commits go on; what is younger than a week stays on the disk."""
    flusher = flushed(start(), 8)
    with ThreadPoolExecutor(1) as pool:
        maintaining = pool.submit(lambda: list(maintain(spark, root)))
        for seq in range(9, 15):
            flusher.flush("deliveries", slices([seq]), seq)
        (deliveries,) = (done for done in maintaining.result() if done.table == "deliveries")
    assert deliveries.compacted >= 8
    assert (deliveries.into, deliveries.removed) == (1, 0)
    assert stored_seqs(spark, root) == sorted([*range(1, 15)] * 2)
    flusher.flush("deliveries", slices([15]), 15)
    assert start().delivered("deliveries") == 15


def orphan_of(root: Path, name: str, *, days: int) -> Path:
    """A data file that no commit has, so old."""
    written = next(table_path(root, "deliveries").rglob("*.parquet"))
    orphan = written.with_name(f"part-00000-{name}.snappy.parquet")
    shutil.copy(written, orphan)
    at_s = time.time() - days * 86_400
    os.utime(orphan, (at_s, at_s))
    return orphan


def test_vacuum_below_168_h_removes_nothing_more(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """Whoever asks Delta for it: `maintain` does not. This version takes no less than the table's week."""
    start().flush("deliveries", slices([1]), 1)
    young = orphan_of(root, "young", days=6)
    table = DeltaTable.forPath(spark, str(table_path(root, "deliveries")))
    table.vacuum(1)
    assert young.exists()
    with pytest.raises(IllegalArgumentException, match="DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT"):
        table.vacuum(0)


def test_a_table_that_fails_keeps_no_other_one_from_its_maintenance(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    seen: list[str] = []

    def fail_first(_spark: SparkSession, path: Path) -> int:
        seen.append(path.name)
        if len(seen) == 1:
            raise Corrupt("damaged")
        return 0

    monkeypatch.setattr("pipelines.process.maintenance._vacuumed", fail_first)
    done: list[str] = []
    with pytest.raises(Corrupt, match=rf"^{next(iter(TABLES))}: damaged$"):
        done.extend(each.table for each in maintain(spark, root))
    assert seen == list(TABLES)
    assert done == seen[1:]


@pytest.mark.long
def test_small_files_are_joined(spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]) -> None:
    flushed(start(), 6)
    (deliveries,) = (done for done in maintain(spark, root) if done.table == "deliveries")
    assert (deliveries.compacted, deliveries.into) == (6, 1)
    assert stored_seqs(spark, root) == [seq for seq in range(1, 7) for _ in range(2)]


@pytest.mark.long
def test_vacuum_removes_what_no_commit_has_once_it_is_a_week_old(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """What a process left that died within a commit; somebody may still be about to commit the younger one."""
    start().flush("deliveries", slices([1]), 1)
    orphans = [orphan_of(root, "old", days=8), orphan_of(root, "young", days=6)]
    (deliveries,) = (done for done in maintain(spark, root) if done.table == "deliveries")
    assert deliveries.removed == 1
    assert [orphan.exists() for orphan in orphans] == [False, True]
    assert stored_seqs(spark, root) == [1, 1]
