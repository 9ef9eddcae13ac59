"""Claim: compaction changes no row, whatever else is done to the table meanwhile; else it leaves it as it was.

Method: a real Delta table for each test, which Spark has written and reads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta import compaction
from connectors.delta.compaction import Compacted, compact
from connectors.delta.flusher import AuditFlusher
from connectors.delta.log.table_log import DataFile, read_data_files
from connectors.delta.log.write_commit import write_commit
from connectors.delta.store import write_table_checkpoint
from connectors.delta.tables import DELIVERIES, table_path
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable
from tests.support.audit_tables import flushed, slices, stored_seqs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_a_compaction_whose_commit_was_replaced_changes_nothing(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """As by a Spark that looked for the commit just before it was there; no checkpoint may know of it then."""
    flusher = start()
    path = table_path(root, "deliveries")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    flushed(flusher, 2)
    before = {file.name for file in (path / "_delta_log").iterdir()}
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=2, into=1)
    (commit,) = (file for file in (path / "_delta_log").iterdir() if file.name not in before)
    commit.unlink()
    flusher.flush("deliveries", slices([3]), 3)
    assert commit.exists()
    assert stored_seqs(spark, root) == sorted([*range(1, 4)] * 2)
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=3, into=1)
    assert stored_seqs(spark, root) == sorted([*range(1, 4)] * 2)
    flusher.flush("deliveries", slices([4]), 4)
    assert start().delivered("deliveries") == 4


def test_spark_reads_the_same_of_what_was_compacted(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flushed(start(), 3)
    path = str(table_path(root, "deliveries"))
    before = spark.read.format("delta").load(path)
    schema, rows = before.schema, sorted(map(str, before.collect()))
    compact(root, DELIVERIES)
    after = spark.read.format("delta").load(path)
    assert len(after.inputFiles()) == 1
    assert (after.schema, sorted(map(str, after.collect()))) == (schema, rows)
    assert compact(root, DELIVERIES) == Compacted(table="deliveries"), "one file alone is left alone"


@pytest.mark.long
def test_what_spark_skips_of_a_compacted_table_has_no_row_that_it_asks_for(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed(start(), 6)
    # Its files have no order.
    write_table_checkpoint(spark, table_path(root, "deliveries"))
    sizes = [file.size for file in data_files(root)]
    monkeypatch.setattr("connectors.delta.compaction.FILE_BYTES", 3 * max(sizes))
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=6, into=2)
    table = spark.read.format("delta").load(str(table_path(root, "deliveries")))
    for seq in range(1, 7):
        assert table.where(f"apply_seq = {seq}").count() == 2
    assert [json.loads(file.stats or "")["maxValues"]["apply_seq"] for file in data_files(root)] == [3, 6]


def test_of_two_compactions_at_the_same_time_one_gives_up(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed(start(), 3)
    before = names_in_log(root)
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "write_commit", during(write_commit, lambda: compact(root, DELIVERIES)))
        with pytest.raises(Unavailable, match="is not only an append"):
            compact(root, DELIVERIES)
    assert names_on_disk(root) == names_in_log(root) | before
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]


def test_rows_that_are_added_during_a_compaction_stay(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = flushed(start(), 3)
    flush = during(write_commit, lambda: flusher.flush("deliveries", slices([4]), 4))
    monkeypatch.setattr(compaction, "write_commit", flush)
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=3, into=1)
    assert len(data_files(root)) == 2
    assert stored_seqs(spark, root) == sorted([1, 2, 3, 4] * 2)


def test_files_with_other_rows_than_the_log_says_are_left_alone(
    root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = flushed(start(), 2)
    before = data_files(root)
    monkeypatch.setattr(compaction, "in_pieces", lambda tables: (table.slice(1) for table in tables))
    with pytest.raises(Corrupt, match=r"data files of deliveries are damaged: they have 2 rows together, and 4 by"):
        compact(root, DELIVERIES)
    assert data_files(root) == before
    assert names_on_disk(root) == names_in_log(root)
    assert flusher.delivered("deliveries") == 2


def test_what_cannot_be_committed_leaves_nothing(
    root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file system has no links, or the disk is full."""
    flushed(start(), 2)

    def refuse(*_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PermissionError):
        compact(root, DELIVERIES)
    assert names_on_disk(root) == names_in_log(root)
    assert not list(root.rglob("*.commit"))


def test_what_came_before_is_on_the_disk_before_the_compaction_is_there(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss may take the commit that says which rows are delivered, and leave the rows: they come twice."""
    careless = flushed(AuditFlusher(spark, root, "jobs", "epoch-1", ops_topic_id="topic-1", durable=False), 2)
    synced: set[Path] = set()
    synced_before: list[set[Path]] = []
    link = os.link

    def flush_and_link(commit: Path, target: Path) -> None:
        synced_before.append({*synced})
        if len(synced_before) == 1:
            with monkeypatch.context() as unchanged:
                unchanged.setattr(os, "link", link)
                careless.flush("deliveries", slices([3]), 3)
        link(commit, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
    monkeypatch.setattr(os, "link", flush_and_link)
    compact(root, DELIVERIES)
    read, later = (table_path(root, "deliveries") / "_delta_log" / f"{version:020d}.json" for version in (2, 3))
    before_first, before_second = synced_before
    assert (read in before_first, later in before_first, later in before_second) == (True, False, True)


def test_a_joined_file_is_left_alone_for_as_long_as_spark_may_replace_its_commit(
    root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = flushed(start(), 2)
    compact(root, DELIVERIES)
    (joined,) = data_files(root)
    flusher.flush("deliveries", slices([3]), 3)
    flusher.flush("deliveries", slices([4]), 4)
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=2, into=1)
    for file in data_files(root):
        os.utime(table_path(root, "deliveries") / file.relative_path, (0, 0))
    assert joined in data_files(root)
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=2, into=1)


def test_a_table_with_features_that_compaction_does_not_know_is_left_alone(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flushed(start(), 2)
    path = table_path(root, "deliveries")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    with pytest.raises(Invalid, match="reader version 3"):
        compact(root, DELIVERIES)


def test_a_table_with_columns_of_another_version_is_left_alone(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flushed(start(), 2)
    spark.sql(f"ALTER TABLE delta.`{table_path(root, 'deliveries')}` ADD COLUMNS (weather STRING)")
    with pytest.raises(Invalid, match="has other columns than this version writes"):
        compact(root, DELIVERIES)


def test_root_leaves_the_tables_of_others_alone(
    root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job could not read what root writes."""
    flushed(start(), 2)
    if os.geteuid() == 0:
        os.chown(table_path(root, "deliveries"), 1234, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Invalid, match=r"belongs to user \d+, who could not read files of root"):
        compact(root, DELIVERIES)


def names_on_disk(root: Path) -> set[str]:
    table = table_path(root, "deliveries")
    return {str(file.relative_to(table)) for file in table.rglob("*.parquet") if "_delta_log" not in file.parts}


def names_in_log(root: Path) -> set[str]:
    return {file.relative_path for file in data_files(root)}


def data_files(root: Path) -> list[DataFile]:
    found = read_data_files(table_path(root, "deliveries"))
    assert found is not None
    return found.files


def during(committed: Callable[..., int], act: Callable[[], object]) -> Callable[..., int]:
    """`write_commit`, once `act` was done; for one commit."""
    acts = [act]

    def after(*arguments: Any, **named: Any) -> int:
        while acts:
            acts.pop()()
        return committed(*arguments, **named)

    return after
