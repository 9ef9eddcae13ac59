"""Claim: the table of owners gets one row of each, and nothing that is wrong with it stops a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkpoints.prefix_owner import Owner
from connectors.delta.tables import OWNERS, table_path
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.write_owner import write_owner
from pipelines.process.owner_table import OwnerTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SINCE_MS = 1_795_262_400_000
FIRST = Owner(
    session="a1",
    term=1,
    state_epoch="",
    has_decided=False,
    ops_topic_id="ops-id",
    place="1:2",
    host="bar-1",
    pid=7,
    folder="/job",
    since_ms=SINCE_MS,
)
SECOND = Owner(
    session="b2",
    term=2,
    state_epoch="",
    has_decided=False,
    ops_topic_id="ops-id",
    place="3:4",
    host="bar-2",
    pid=8,
    folder="/job",
    since_ms=SINCE_MS + 60_000,
    took_over_from=str(FIRST),
)


def write_of_job(spark: SparkSession, root: Path, owner: Owner) -> None:
    OwnerTable(spark, root, "apply_ops", "shop", owner, "epoch", lambda: None).write()


def write_on_cluster(spark: SparkSession, root: Path, owner: Owner) -> None:
    tables = TableLocations(str(root))
    tables.ensure(spark)
    write_owner(spark, tables, "shop", owner, "epoch")


def rows(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(table_path(root, OWNERS.name)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["term"])


@pytest.mark.parametrize("write", [write_of_job, write_on_cluster])
def test_each_owner_has_one_row(
    spark: SparkSession, tmp_path: Path, write: Callable[[SparkSession, Path, Owner], None]
) -> None:
    for owner in (FIRST, FIRST, SECOND, FIRST, SECOND):  # as after a kill between the commit and what follows it
        write(spark, tmp_path, owner)
    first, second = rows(tmp_path)
    assert (first["prefix"], first["term"], first["host"], first["pid"], first["folder"]) == (
        "shop",
        1,
        "bar-1",
        7,
        "/job",
    )
    assert (first["since_ms"], first["since_utc"].isoformat()) == (SINCE_MS, "2026-11-21T12:00:00+00:00")
    assert (first["state_epoch"], first["ops_topic_id"], first["took_over_from"]) == ("epoch", "ops-id", None)
    assert second["took_over_from"] == "process 7 on bar-1, folder /job, since 2026-11-21T12:00:00Z"


def test_a_job_goes_on_without_the_table_and_writes_its_row_later(spark: SparkSession, tmp_path: Path) -> None:
    in_the_way = table_path(tmp_path, OWNERS.name)
    in_the_way.write_text("a file")
    table = OwnerTable(spark, tmp_path, "apply_ops", "shop", FIRST, "epoch", lambda: None)
    table.write()
    in_the_way.unlink()
    table.write()
    table.write()
    assert [row["term"] for row in rows(tmp_path)] == [1]
