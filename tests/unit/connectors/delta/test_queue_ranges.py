"""Claim: the files of a date that is over are written by queues, so that a look-up of a message reads few files.

Method: queues that advance at very different paces, over several dates; the files that a look-up opens are counted.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.delta import compaction
from connectors.delta.compaction import compact
from connectors.delta.log.table_log import read_data_files
from connectors.delta.queue_ranges import QueueRanges
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import TABLES
from pipelines.explain.message_rows import read_message_rows
from popstream.wire.base_errors import Corrupt
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from pathlib import Path

DELIVERIES = TABLES["deliveries"]
DAY_MS = 86_400_000
DATES = 6
PACES = {0: 1_000, 1: 100, 2: 10, 3: 1}
"""By queue, the messages of a date."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compaction, "RANGE_BYTES", 3_000)
    create_table(tmp_path, "deliveries")
    for date in range(DATES):
        for part in range(2):
            rows = [
                delivery(date * 2 + part, ordinal, NOW_MS + date * DAY_MS)._replace(
                    queue_id=queue, first_offset=offset, last_offset=offset, epoch=offset + 1, client_id=f"c-{ordinal}"
                )
                for ordinal, (queue, offset) in enumerate(
                    (queue, date * pace + number) for queue, pace in PACES.items() for number in range(part, pace, 2)
                )
            ]
            append_audit_rows(tmp_path, "deliveries", rows)
    return tmp_path


def files_read(root: Path, queue: int, offset: int) -> int:
    files = open_snapshot(root / "deliveries").files
    return sum(
        file.may_have("topic", "orders", "orders")
        and file.may_have("queue_id", queue, queue)
        and file.may_have("first_offset", None, offset)
        and file.may_have("last_offset", offset)
        for file in files
    )


def rows_of(root: Path) -> list[tuple[object, ...]]:
    found = DeltaTable(root / "deliveries").to_pyarrow_table(
        columns=["op_date", "queue_id", "first_offset", "client_id"]
    )
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_a_look_up_reads_one_file_of_all_dates_that_are_over(root: Path) -> None:
    before = rows_of(root)
    today = dt.date(2026, 11, 21) + dt.timedelta(days=DATES - 1)
    assert (files_read(root, 0, 3_500), files_read(root, 3, 2)) == (6, 3), "files of every queue have wide offsets"

    done = compact(root, DELIVERIES, today)

    assert done.compacted == DATES * 2
    assert done.into > DATES
    assert rows_of(root) == before
    assert files_read(root, 0, 3_500) == 2, "one, and that of today"
    assert files_read(root, 3, 2) == 3, "small queues share a file of each date"
    found = read_message_rows(root, "orders", 0, 3_500)
    assert [row.first_offset for row in found.deliveries] == [3_500]


def test_they_are_left_alone_and_later_rows_have_a_file_of_their_own(root: Path) -> None:
    today = dt.date(2026, 12, 31)
    compact(root, DELIVERIES, today)
    assert compact(root, DELIVERIES, today).compacted == 0
    append_audit_rows(root, "deliveries", [delivery(99, 0, NOW_MS)])
    append_audit_rows(root, "deliveries", [delivery(99, 1, NOW_MS)])
    assert compact(root, DELIVERIES, today) == compaction.Compacted(table="deliveries", compacted=2, into=1)


def test_rows_of_a_range_keep_their_order(root: Path) -> None:
    """verify reads the pieces of a file one after the other."""
    compact(root, DELIVERIES, dt.date(2026, 12, 31))
    found = read_data_files(root / "deliveries")
    assert found is not None
    for file in found.files:
        rows = pq.ParquetFile(root / "deliveries" / file.path).read(columns=["kafka_offset"])
        offsets = rows["kafka_offset"].to_pylist()
        assert offsets == sorted(offsets)


def test_an_error_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(compaction, "write_commit", fail)
    with pytest.raises(OSError, match="disk full"):
        compact(root, DELIVERIES, dt.date(2026, 12, 31))
    assert not list((root / "deliveries").rglob("clustered-*"))


def test_a_file_that_is_lost_is_named(root: Path) -> None:
    """Also one that compaction has made, whose age it wants to know."""
    later = dt.date(2026, 12, 31)
    compact(root, DELIVERIES, later)
    next((root / "deliveries").rglob("clustered-*")).unlink()
    compact(root, DELIVERIES, later)  # left alone, so not missed
    append_audit_rows(root, "deliveries", [delivery(99, 0, NOW_MS), delivery(99, 1, NOW_MS)])
    append_audit_rows(root, "deliveries", [delivery(100, 0, NOW_MS)])
    assert compact(root, DELIVERIES, dt.date(2020, 1, 1)).into == 1
    (joined,) = (root / "deliveries").rglob("compacted-*")
    joined.unlink()
    append_audit_rows(root, "deliveries", [delivery(101, 0, NOW_MS)])
    with pytest.raises(Corrupt, match=rf"{joined.name} is missing: bring it back"):
        compact(root, DELIVERIES, dt.date(2020, 1, 1))


def test_a_large_date_is_written_by_a_bounded_number_of_writers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "RANGE_BYTES", 100)
    monkeypatch.setattr(compaction, "RANGES_MAX", 2)
    assert compact(root, DELIVERIES, dt.date(2026, 12, 31)).into == 2 * DATES


@pytest.mark.parametrize(
    ("rows", "count_max", "count"),
    [
        ({0: 5}, 4, 1),
        ({0: 5, 1: 5}, 4, 2),
        (dict.fromkeys(range(100), 1), 4, 4),
        ({0: 1_000, 1: 1, 2: 1}, 8, 2),
        ({}, 3, 0),
    ],
)
def test_ranges_have_about_as_many_rows(rows: dict[int, int], count_max: int, count: int) -> None:
    ranges = QueueRanges(Counter({("orders", queue): number for queue, number in rows.items()}), count_max)
    assert ranges.count == count
