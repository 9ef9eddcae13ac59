"""Claim: retention deletes whole dates and keeps what a restore needs; the log says from when on all rows are there."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker_state.audit import RejectedRow
from connectors.delta import retention
from connectors.delta.compaction import Compacted, compact
from connectors.delta.history_start import deleted_epoch_max, first_day_of, first_ms_of
from connectors.delta.log.table_log import read_data_files, require_table_log
from connectors.delta.retention import Deleted, delete_before
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE, TABLES, table_path
from popstream.wire.base_errors import Invalid, Unavailable
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000
FIRST = dt.date(2026, 11, 21)
DELIVERIES = TABLES["deliveries"]


def day(number: int) -> dt.date:
    return FIRST + dt.timedelta(days=number)


def epochs(root: Path) -> list[int]:
    return sorted(DeltaTable(root / "deliveries").to_pyarrow_table(columns=["epoch"])["epoch"].to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two files with three rows each of `deliveries` on each of four dates; epoch 10 * date + number of the file."""
    create_table(tmp_path, "deliveries")
    for number in range(4):
        for file in range(2):
            rows = [delivery(1, n, NOW_MS + number * DAY_MS)._replace(epoch=10 * number + file) for n in range(3)]
            append_audit_rows(tmp_path, "deliveries", rows)
    return tmp_path


def test_dates_before_the_first_day_go_in_one_commit(root: Path) -> None:
    before = require_table_log(root / "deliveries").version

    deleted = delete_before(root, DELIVERIES, day(2))

    assert (deleted.rows, deleted.files) == (12, 4)
    assert deleted.bytes > 1_000
    log = require_table_log(root / "deliveries")
    assert log.version == before + 1
    assert first_day_of(log.txns) == day(2)
    assert first_ms_of(log.txns) == NOW_MS // DAY_MS * DAY_MS + 2 * DAY_MS
    assert deleted_epoch_max(log.txns) == 11, "no later handle may have the generation of one of the deleted rows"
    assert epochs(root) == sorted([20, 21, 30, 31] * 3)
    table = DeltaTable(root / "deliveries")
    assert table.history(1)[0]["operation"] == "DELETE"
    table.load_as_version(before)
    assert table.to_pyarrow_table().num_rows == 24, "until VACUUM an earlier version has them"


def test_it_only_goes_forwards_and_does_nothing_where_there_is_nothing_to_do(root: Path) -> None:
    delete_before(root, DELIVERIES, day(2))
    version = require_table_log(root / "deliveries").version
    assert delete_before(root, DELIVERIES, day(2)) == Deleted()
    assert delete_before(root, DELIVERIES, day(1)) == Deleted()
    assert require_table_log(root / "deliveries").version == version
    append_audit_rows(root, "deliveries", [delivery(2, 0, NOW_MS)])  # it came late
    assert delete_before(root, DELIVERIES, day(1)).rows == 1
    log = require_table_log(root / "deliveries")
    assert first_day_of(log.txns) == day(2)
    assert deleted_epoch_max(log.txns) == 11
    assert delete_before(root, TABLES["operations"], day(2)) == Deleted(), "there is no such table"


def test_compaction_before_and_after_it(root: Path) -> None:
    assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=8, into=4)
    assert delete_before(root, DELIVERIES, day(3))[:2] == (18, 3)
    append_audit_rows(root, "deliveries", [delivery(2, 0, NOW_MS + 3 * DAY_MS)._replace(epoch=99)])
    compact(root, DELIVERIES)
    assert epochs(root) == [30, 30, 30, 31, 31, 31, 99]
    assert first_day_of(require_table_log(root / "deliveries").txns) == day(3)


def test_files_that_others_replaced_meanwhile_are_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_and_compact(path: Path) -> Any:
        files = read_data_files(path)
        compact(root, DELIVERIES)
        return files

    monkeypatch.setattr(retention, "read_data_files", read_and_compact)
    with pytest.raises(Unavailable, match="has changed the rows to delete: nothing was deleted"):
        delete_before(root, DELIVERIES, day(2))
    assert len(epochs(root)) == 24
    assert first_day_of(require_table_log(root / "deliveries").txns) is None


def test_a_table_that_is_not_ours_is_refused(root: Path) -> None:
    table = DeltaTable(root / "deliveries")
    table.alter.add_constraint({"positive": "epoch >= 0"})
    with pytest.raises(Invalid, match="checkConstraints"):
        delete_before(root, DELIVERIES, day(2))


def test_dates_with_a_quarantined_record_are_kept(tmp_path: Path) -> None:
    create_table(tmp_path, "rejected")
    for number, reason in enumerate(["NOT_JSON", "QUARANTINED", "EMPTY", "NOT_JSON"]):
        row = RejectedRow(0, number, 0, NOW_MS + number * DAY_MS, reason, "why", 3, "ab", b"abc", None, None)
        append_audit_rows(tmp_path, "rejected", [row])

    assert delete_before(tmp_path, TABLES["rejected"], day(3)).rows == 2

    reasons = DeltaTable(tmp_path / "rejected").to_pyarrow_table().sort_by("kafka_offset")["reason"].to_pylist()
    assert reasons == ["QUARANTINED", "NOT_JSON"]
    assert delete_before(tmp_path, TABLES["rejected"], day(3)) == Deleted()


def test_the_last_unit_of_a_batch_queue_is_kept(tmp_path: Path) -> None:
    """By it a builder whose store is lost goes on to number the messages."""
    create_table(tmp_path, CONSUME_QUEUE.name)
    units = [
        ("batched", "batch", 0, 5),
        ("batched", "batch", 1, 6),
        ("quiet", "batch", 0, 9),
        ("plain", "simple", 0, 3),
        ("batched", "batch", 3, 7),
    ]
    for topic, kind, number, offset in units:
        row = unit_row(topic, offset, queue_type=kind, store_date=day(number), store_time_ms=NOW_MS + number * DAY_MS)
        append_rows(tmp_path, CONSUME_QUEUE.name, pa.Table.from_pylist([row], arrow_schema(CONSUME_QUEUE)))

    assert delete_before(tmp_path, CONSUME_QUEUE, day(4)).rows == 1

    rows = DeltaTable(table_path(tmp_path, CONSUME_QUEUE.name)).to_pyarrow_table()
    found = sorted(zip(rows["topic"].to_pylist(), rows["queue_offset"].to_pylist(), strict=True))
    assert found == [("batched", 5), ("batched", 7), ("plain", 3), ("quiet", 9)]
