"""Audit rows reach Delta exactly once, whatever is killed, cut again or fenced.

Method: a real Delta table for each test; a kill is an exception at the place where the process would have died, and a
restart is a new flusher on the same folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException

from broker_state.audit import CommitPositionRow, OperationRow, OrderInfoRow, RejectedRow
from connectors.delta import exactly_once
from connectors.delta.erased_values import RejectedHeads
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.flusher import AuditFlusher
from connectors.delta.log.commits import read_commit
from connectors.delta.log.table_log import read_data_files
from connectors.delta.log.transactions import known_versions
from connectors.delta.log.write_commit import write_commit
from connectors.delta.restore_queries import whole_versions
from connectors.delta.rows import encode_rows
from connectors.delta.store import ensure_table, write_table_checkpoint
from connectors.delta.tables import AUDIT_TABLES, TABLES
from expectations.opened_tables import OpenedTables
from expectations.scope import ALL_ROWS
from expectations.suites import rules_of, suites
from popstream.wire.base_errors import Corrupt, Fenced, Invalid
from tests.support.audit_tables import NOW_MS, delivery, flushed, slices, stored, stored_seqs
from tests.support.spark_views import name_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

MIDNIGHT_MS = 1_795_305_600_000


def parquet_names(root: Path) -> set[str]:
    table = root / "deliveries"
    return {str(file.relative_to(table)) for file in table.glob("op_date=*/*.parquet")}


def names_in_log(root: Path) -> set[str]:
    found = read_data_files(root / "deliveries")
    assert found is not None
    return {file.path for file in found.files}


def restore_to(spark: SparkSession, root: Path, version: int) -> None:
    DeltaTable.forPath(spark, str(root / "deliveries")).restoreToVersion(version)


def test_every_table_takes_its_rows_as_they_were(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    rows: dict[str, Any] = {
        "operations": OperationRow(
            1,
            2,
            0,
            NOW_MS,
            "ack",
            "orders",
            3,
            "g",
            "op",
            "c",
            0,
            5,
            9,
            "h",
            None,
            0,
            "OK",
            True,
            False,
            7,
            None,
            2,
            "d",
        ),
        "deliveries": delivery(1, 0),
        "commit_positions": CommitPositionRow(1, 2, 0, NOW_MS, "orders", 3, None, *range(13)),
        "rejected": RejectedRow(1, 2, 0, NOW_MS, "NOT_JSON", "no object", 3, "ab", b"\x00\xff", None, 4),
        "order_info": OrderInfoRow(1, 2, 0, NOW_MS, "orders", 3, "g", 1, NOW_MS, 10, None, 0, 4, 5, 0, 0, None, 0),
    }
    flusher = start()

    for table, row in rows.items():
        assert flusher.delivered(table) == -1
        assert flusher.flush(table, [(7, data) for data in encode_rows(table, [row])], 7) == 1
        assert flusher.delivered(table) == 7

    for table, row in rows.items():
        (found,) = stored(spark, root, table)
        assert tuple(found[name] for name in row._fields) == row
        assert found[-4:-1] == (7, "epoch-1", "topic-1")
        assert found["now_utc"].replace(tzinfo=UTC).timestamp() * 1000 == NOW_MS
        assert str(found["op_date"]) == "2026-11-21"
    assert not any((root / ".scratch").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("kept", "stored_head"),
    [
        (RejectedHeads.WHOLE, b"alice"),
        (RejectedHeads.HASH, hashlib.sha256(b"alice").digest()),
        (RejectedHeads.NONE, b""),
    ],
)
def test_the_heads_of_rejected_records_are_kept_as_chosen(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], kept: RejectedHeads, stored_head: bytes
) -> None:
    digest = hashlib.sha256(b"alice").hexdigest()
    row = RejectedRow(1, 2, 0, NOW_MS, "NOT_JSON", "no object", 5, digest, b"alice", None, 4)
    start(rejected_heads=kept).flush("rejected", [(1, data) for data in encode_rows("rejected", [row])], 1)
    (found,) = stored(spark, root, "rejected")
    assert bytes(found["value_head"]) == stored_head
    (rejected,) = (suite for suite in suites() if suite.name == "rejected")
    (rule,) = (
        each for each in rules_of(rejected) if each.expectation_type == "expect_head_to_be_the_start_of_the_value"
    )
    with OpenedTables(root, scope=ALL_ROWS) as opened:
        assert opened.unexpected_rows("rejected", rule.sql)[0] == 0


def test_a_span_is_one_commit_with_one_file_a_date(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = start()
    rows = [delivery(1, number, MIDNIGHT_MS - 2 + number) for number in range(4)]

    flusher.flush("deliveries", [*((1, data) for data in encode_rows("deliveries", rows)), *slices([2, 3])], 3)

    commit = read_commit(root / "deliveries", 1)
    assert commit is not None
    totals = {app: commit.txns.pop(app) for app in list(commit.txns) if app.startswith("row_totals/")}
    assert commit.txns == {"jobs/deliveries/epoch-1": 3}
    assert {app: total for app, total in totals.items() if app.endswith("/rows")} == {
        "row_totals/epoch-1/2026-11-21/rows": 6,
        "row_totals/epoch-1/2026-11-22/rows": 2,
    }
    assert commit.added_rows == 8
    assert sorted(path.split("/")[0] for path in commit.added_paths) == ["op_date=2026-11-21", "op_date=2026-11-22"]
    assert read_commit(root / "deliveries", 2) is None
    by_date = {row["kafka_offset"]: str(row["op_date"]) for row in stored(spark, root) if row["now_ms"] >= MIDNIGHT_MS}
    assert by_date == {1: "2026-11-22"}


def unlucky_after(commit: Callable[..., int]) -> Callable[..., int]:
    """Commits, and dies of it."""

    def committed(*arguments: object, **named: object) -> int:
        commit(*arguments, **named)
        raise OSError(5, "input/output error")

    return committed


def test_a_kill_between_commit_and_note_and_another_cut(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    with monkeypatch.context() as killed:
        killed.setattr(exactly_once, "write_commit", unlucky_after(write_commit))
        with pytest.raises(OSError, match="input/output"):
            first.flush("deliveries", slices([1, 2, 3, 4, 5]), 5)

    second = start()

    assert second.delivered("deliveries") == 5
    assert second.flush("deliveries", slices([3, 4]), 4) == 0, "a span that is delivered as a whole"
    assert second.flush("deliveries", slices(range(3, 10)), 9) == 8
    assert stored_seqs(spark, root) == [seq for seq in range(1, 10) for _ in range(2)]
    assert start().delivered("deliveries") == 9


def test_a_flush_that_failed_after_its_commit_can_be_asked_again(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = start()
    with monkeypatch.context() as broken:
        broken.setattr(exactly_once, "write_commit", unlucky_after(write_commit))
        with pytest.raises(OSError, match="input/output"):
            flusher.flush("deliveries", slices([1, 2]), 2)

    assert flusher.flush("deliveries", slices([1, 2, 3]), 3) == 2
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]


def test_a_kill_before_the_commit_leaves_files_that_nobody_sees(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = start()
    flusher.flush("deliveries", slices([1]), 1)
    (data,) = (root / "deliveries").rglob("part-*.parquet")
    shutil.copy(data, data.with_name("part-00000-orphan.snappy.parquet"))
    leftover = root / ".scratch" / "dead" / "deliveries.parquet"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half a file")

    again = start()
    again.flush("deliveries", slices([2]), 2)

    assert stored_seqs(spark, root) == [1, 1, 2, 2]
    assert not leftover.exists()


def test_no_rows_counts_as_delivered_until_the_end_of_the_process(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = start()
    flusher.flush("deliveries", slices([1]), 4)
    assert flusher.flush("deliveries", [], 8) == 0
    assert flusher.delivered("deliveries") == 8
    assert flusher.flush("deliveries", slices([9]), 9) == 2

    again = start()
    assert again.delivered("deliveries") == 9
    assert again.flush("deliveries", [], 12) == 0
    restarted = start()
    assert restarted.delivered("deliveries") == 9, "an empty span leaves no trace in Delta"
    assert restarted.flush("deliveries", [], 12) == 0, "and is sent again for nothing"
    assert restarted.flush("deliveries", slices([13]), 13) == 2
    assert stored_seqs(spark, root) == [1, 1, 9, 9, 13, 13]


def test_the_version_that_delta_would_skip_in_silence_is_refused(start: Callable[..., AuditFlusher]) -> None:
    flusher = start()
    flusher.flush("deliveries", slices([4, 5]), 5)

    with pytest.raises(AssertionError, match="committed by this process already"):
        flusher.flush("deliveries", slices([5]), 5)
    with pytest.raises(AssertionError, match="comes after"):
        flusher.flush("deliveries", slices([8, 7]), 8)
    with pytest.raises(AssertionError, match="a span that ends at 6"):
        flusher.flush("deliveries", slices([7]), 6)


def test_a_second_writer_of_the_same_state_is_fenced(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    older, newer = start(), start()
    newer.flush("deliveries", slices([1, 2]), 2)

    with pytest.raises(Fenced, match="another process"):
        older.flush("deliveries", slices([1, 2, 3]), 3)

    assert stored_seqs(spark, root) == [1, 1, 2, 2]


def test_two_writers_of_one_transaction_id_at_the_same_moment(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see that the version is free, and both link: one of them stands, and the other is told."""
    both_have_looked = Barrier(2, timeout=60)
    link = os.link

    def link_together(commit: Path, target: Path) -> None:
        both_have_looked.wait()
        link(commit, target)

    monkeypatch.setattr(os, "link", link_together)
    for seq in (1, 2, 3):
        writers = [start(), start()]
        with ThreadPoolExecutor(2) as threads:
            tries = [threads.submit(writer.flush, "deliveries", slices([seq]), seq) for writer in writers]
        failures = [attempt.exception() for attempt in tries]
        assert [type(failure) for failure in failures if failure is not None] == [Fenced], failures
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]


def test_a_restored_table_is_refused_until_the_state_is_another(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flushed(start(), 2)
    restore_to(spark, root, 1)

    refused = start().tables["deliveries"]
    assert refused.was_restored
    with pytest.raises(Corrupt, match=r"RESTOREd.*popstream restore"):
        refused.require_not_restored()
    anew = start("epoch-2")
    assert not anew.tables["deliveries"].was_restored
    assert anew.flush("deliveries", slices([2]), 2) == 2


def test_a_restore_while_the_job_runs_is_noticed_with_the_next_commit(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = flushed(start(), 2)
    restore_to(spark, root, 1)

    with pytest.raises(Corrupt, match=r"RESTOREd.*popstream restore"):
        flusher.flush("deliveries", slices([3]), 3)
    refused = start().tables["deliveries"]
    assert refused.was_restored
    assert refused.delivered == 2, "nothing was written on top of it"
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-1": 1}


def test_a_restore_while_rows_are_written_is_noticed_before_they_are_committed(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = flushed(start(), 2)
    link = os.link

    def restore_and_link(commit: Path, target: Path) -> None:
        restore_to(spark, root, 1)
        link(commit, target)

    monkeypatch.setattr(os, "link", restore_and_link)
    with pytest.raises(Corrupt, match="RESTOREd"):
        flusher.flush("deliveries", slices([3]), 3)
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-1": 1}
    assert len(parquet_names(root)) == 2, "the rows are gone from the disk, too"


@pytest.mark.long
def test_a_restore_below_a_commit_is_told_by_each_start(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions that committed by Spark may have left it: nothing stands between Spark's look and its commit."""
    flusher = flushed(start(), 2)
    restore_to(spark, root, 1)
    monkeypatch.setattr(ExactlyOnceTable, "_require_compatible", lambda *_: None)
    flusher.flush("deliveries", slices([3]), 3)
    monkeypatch.undo()
    again = start().tables["deliveries"]
    assert again.delivered == 3
    assert again.was_restored
    with pytest.raises(Corrupt, match=r"more rows since: remove them with `RESTORE TABLE .* TO VERSION AS OF 3`"):
        whole_versions(root, "deliveries", "jobs")
    restore_to(spark, root, 3)
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-1": 1}
    anew = start("epoch-2")
    assert not anew.tables["deliveries"].was_restored
    anew.flush("deliveries", slices([4]), 4)
    anew.flush("deliveries", slices([5]), 5)
    assert not start("epoch-2").tables["deliveries"].was_restored
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-1": 1, "epoch-2": 5}
    assert known_versions(root, "deliveries", "jobs")[1] == {"epoch-1": 3, "epoch-2": 5}


@pytest.mark.long
def test_a_restore_to_a_timestamp_does_not_say_what_is_left(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = start()
    flusher.flush("deliveries", slices([1]), 1)
    time.sleep(1.1)
    before = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    time.sleep(1.1)
    flusher.flush("deliveries", slices([2]), 2)
    DeltaTable.forPath(spark, str(root / "deliveries")).restoreToTimestamp(before)
    assert start().tables["deliveries"].was_restored
    assert whole_versions(root, "deliveries", "jobs") == {}
    start("epoch-2").flush("deliveries", slices([2]), 2)
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-2": 2}
    # As Delta does when a checkpoint covers them, a week later.
    (root / "deliveries" / "_delta_log" / f"{0:020d}.json").unlink()
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-2": 2}


@pytest.mark.long
def test_a_restore_before_the_first_commit_of_a_state_is_told_unless_it_is_known(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """The state comes from another one, whose rows it counts on."""
    flushed(start(), 2)
    restore_to(spark, root, 1)

    def found(restores_known: int) -> bool:
        table = AUDIT_TABLES["deliveries"]
        return ExactlyOnceTable(spark, root, table, "jobs", "epoch-2", restores_known=restores_known).was_restored

    assert found(2)
    assert not found(3)


@pytest.mark.long
def test_a_restore_that_takes_no_rows_changes_nothing(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flushed(start(), 2)
    table = DeltaTable.forPath(spark, str(root / "deliveries"))
    table.optimize().executeCompaction()
    table.restoreToVersion(2)
    assert whole_versions(root, "deliveries", "jobs") == {"epoch-1": 2}


def test_a_table_tells_the_last_version_of_every_state(start: Callable[..., AuditFlusher]) -> None:
    start().flush("deliveries", slices([6]), 6)
    other = start("epoch-2")
    other.flush("deliveries", slices([2]), 2)
    other.flush("deliveries", [], 9)

    assert other.committed() == {"deliveries": 2}
    assert other.delivered("deliveries") == 9
    assert start().tables["deliveries"].versions == {"epoch-1": 6, "epoch-2": 2}


def test_a_set_transaction_retention_duration_is_taken_off(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """Once the time is over Delta would accept the same rows again."""
    start()
    path = root / "deliveries"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = '1 day')")

    start()

    detail = DeltaTable.forPath(spark, str(path)).detail().first()
    assert detail is not None
    assert "delta.setTransactionRetentionDuration" not in detail["properties"]


def test_sql_confs_for_transactions_in_the_session_skip_nothing(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """As somebody leaves it behind who made a MERGE idempotent: the next statements would be skipped in silence."""
    flusher = start()
    conf = {
        "spark.databricks.delta.write.txnAppId": "jobs/deliveries/epoch-1",
        "spark.databricks.delta.write.txnVersion": "99",
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        flusher.flush("deliveries", slices([1]), 1)
        flusher.flush("deliveries", slices([2]), 2)
    finally:
        for name in conf:
            spark.conf.unset(name)

    assert stored_seqs(spark, root) == [1, 1, 2, 2]
    assert start().delivered("deliveries") == 2


def test_a_new_state_epoch_starts_anew(spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]) -> None:
    start().flush("deliveries", slices([1, 2, 3]), 3)
    restored = start("epoch-2")

    assert restored.delivered("deliveries") == -1
    restored.flush("deliveries", slices([1]), 1)

    epochs = [row["state_epoch"] for row in stored(spark, root)]
    assert sorted(epochs) == ["epoch-1"] * 6 + ["epoch-2"] * 2


def test_a_flush_returns_when_its_commit_is_on_the_disk(
    root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
    flusher = start()
    synced.clear()

    flusher.flush("deliveries", slices([1]), 1)

    table = root / "deliveries"
    (data,) = table.rglob("part-*.parquet")
    log = table / "_delta_log"
    assert {data, data.parent, table, log} <= synced
    assert [path.suffix for path in synced if path.parent == log] == [".commit"]


def test_no_commit_names_a_file_that_is_not_on_the_disk(
    root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss at any moment leaves a table that can be read."""
    synced: set[Path] = set()
    synced_before: list[set[Path]] = []
    link = os.link

    def link_noted(commit: Path, target: Path) -> None:
        synced_before.append({*synced})
        link(commit, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
    monkeypatch.setattr(os, "link", link_noted)

    start().flush("deliveries", slices([1]), 1)

    (data,) = (root / "deliveries").rglob("part-*.parquet")
    (before,) = synced_before
    assert {data, data.parent, data.parent.parent} <= before
    assert any(path.suffix == ".commit" for path in before)


def test_what_a_killed_process_may_not_have_synced_is_synced_at_start(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = AuditFlusher(spark, root, "jobs", "epoch-1", ops_topic_id="topic-1", durable=False)
    careless.flush("deliveries", slices([1]), 1)
    (data,) = (root / "deliveries").rglob("part-*.parquet")
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))

    start()

    assert {data, root / "deliveries" / "_delta_log" / f"{1:020d}.json"} <= synced


def test_a_table_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "rejected"))

    with pytest.raises(Invalid, match="other columns") as caught:
        ensure_table(spark, tmp_path, AUDIT_TABLES["rejected"])

    assert "id: bigint, expected none" in caught.value.details


def test_the_table_describes_itself(spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]) -> None:
    start()
    detail = DeltaTable.forPath(spark, str(root / "deliveries")).detail().first()
    assert detail is not None

    assert detail["description"] == TABLES["deliveries"].comment
    assert detail["partitionColumns"] == ["op_date"]
    assert detail["properties"]["delta.checkpointInterval"] == "50"
    assert "delta.setTransactionRetentionDuration" not in detail["properties"]
    fields = {field.name: field for field in spark.read.format("delta").load(str(root / "deliveries")).schema}
    assert fields["epoch"].metadata["comment"].startswith("Number of the pop")


def test_views_have_a_row_for_each_message(spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]) -> None:
    flusher = start()
    wide = delivery(1, 0)._replace(first_offset=10, last_offset=10_009)
    span = delivery(1, 1)._replace(first_offset=0, last_offset=2**40, step="released", cause="reset_offset")
    flusher.flush("deliveries", [(1, data) for data in encode_rows("deliveries", [wide, span])], 1)
    operation = OperationRow(
        0, 1, 0, NOW_MS, "ack", "orders", 0, "g", "op", "c", 0, 5, 7, "h", None, 0, "OK", True, False, 7, None, 2, None
    )
    refused = operation._replace(ordinal=1, first_offset=9, last_offset=2**63 - 1, reason="ABOVE_MAX")
    whole = operation._replace(ordinal=2, first_offset=None, last_offset=None)
    flusher.flush("operations", [(1, data) for data in encode_rows("operations", [operation, refused, whole])], 1)
    session = spark.newSession()

    name_tables(session, root, ("operations", "deliveries"))

    steps = session.sql(
        "SELECT count(*) AS n, min(queue_offset) AS low, max(queue_offset) AS high, count_if(queue_offset"
        " IS NULL) AS spans FROM deliveries_by_message"
    ).first()
    assert steps is not None
    assert tuple(steps) == (10_001, 10, 10_009, 1)
    answers = session.sql(
        "SELECT ordinal, queue_offset FROM operations_by_message ORDER BY ordinal, queue_offset"
    ).collect()
    assert [tuple(row) for row in answers] == [(0, 5), (0, 6), (0, 7), (1, None), (2, None)]


@pytest.mark.parametrize("step", ["write", "write commit", "link"])
def test_a_full_disk_leaves_nothing_behind_and_loses_nothing(
    step: str, spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = flushed(start(), 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        if step == "write":
            full.setattr(pq.ParquetWriter, "write_table", refuse)
        elif step == "write commit":
            full.setattr(Path, "write_bytes", refuse)
        else:
            full.setattr(os, "link", refuse)
        with pytest.raises(OSError, match="No space left"):
            flusher.flush("deliveries", slices([2]), 2)

    assert parquet_names(root) == names_in_log(root)
    assert not [*(root / "deliveries" / "_delta_log").glob(".*.commit")]
    assert flusher.flush("deliveries", slices([2, 3]), 3) == 4
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]


def test_a_commit_that_was_replaced_is_noticed(root: Path, start: Callable[..., AuditFlusher]) -> None:
    """As by a Spark of another process, which looked for it just before it was there."""
    flusher = flushed(start(), 2)
    commit = root / "deliveries" / "_delta_log" / f"{2:020d}.json"
    data = commit.read_bytes()
    commit.unlink()
    commit.write_bytes(data)

    with pytest.raises(Corrupt, match=r"replaced version 2 of deliveries.*popstream restore"):
        flusher.flush("deliveries", slices([3]), 3)


def test_a_checkpoint_is_written_every_50_commits(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = flushed(start(), 101)
    log = root / "deliveries" / "_delta_log"
    assert sorted(file.name[:20] for file in log.glob("*.checkpoint*.parquet")) == [f"{50:020d}", f"{100:020d}"]
    for version in range(100):
        (log / f"{version:020d}.json").unlink()
    assert start().delivered("deliveries") == 101
    assert flusher.flush("deliveries", slices([102]), 102) == 2
    assert stored_seqs(spark, root) == [seq for seq in range(1, 103) for _ in range(2)]


def test_a_checkpoint_that_cannot_be_written_stops_nothing(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PySparkException("no memory")

    monkeypatch.setattr(exactly_once, "TABLE_CHECKPOINT_INTERVAL", 2)
    monkeypatch.setattr(exactly_once, "write_table_checkpoint", refuse)
    flusher = flushed(start(), 3)
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]
    assert flusher.table_checkpoint_failures == [
        "no checkpoint of the log of deliveries was written at version 2: no memory"
    ]


@pytest.mark.parametrize("name", ["delta.enableChangeDataFeed", "delta.enableDeletionVectors"])
def test_features_that_change_no_append_are_welcome(
    name: str, spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = flushed(start(), 1)
    path = root / "deliveries"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = 'true')")
    flusher.flush("deliveries", slices([2]), 2)
    start().flush("deliveries", slices([3]), 3)
    if name == "delta.enableChangeDataFeed":
        changes = (
            spark.read.format("delta").options(readChangeFeed="true", startingVersion="3").load(str(path)).collect()
        )
        assert sorted(row["apply_seq"] for row in changes) == [2, 2, 3, 3]
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ADD CONSTRAINT positive CHECK (epoch > 0)", "checkConstraints"),
        ("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "columnMapping"),
        ("SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')", "rowTracking"),
        ("ADD COLUMNS (note STRING)", "other columns"),
    ],
)
def test_a_change_with_which_rows_cannot_be_appended_is_refused(
    change: str, named: str, spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    flusher = flushed(start(), 1)
    spark.sql(f"ALTER TABLE delta.`{root / 'deliveries'}` {change}")
    with pytest.raises(Invalid, match=named):
        flusher.flush("deliveries", slices([2]), 2)
    with pytest.raises(Invalid, match=named):
        start()
    assert stored_seqs(spark, root) == [1, 1]


@pytest.mark.long
def test_commits_of_others_that_are_gone_are_no_other_writer(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    """As of a table that had no rows for more than a week, and was compacted meanwhile."""
    flusher = flushed(start(), 2)
    path = root / "deliveries"
    for property_ in ("a", "b"):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('x.{property_}' = '1')")
    write_table_checkpoint(spark, path)
    for version in range(4):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    assert flusher.flush("deliveries", slices([3]), 3) == 2
    assert stored_seqs(spark, root) == [1, 1, 2, 2, 3, 3]
