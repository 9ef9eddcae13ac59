"""Which records are replayed, and from which state on."""

from __future__ import annotations

import pytest

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import Snapshot
from pipelines.tuning import log_range
from pipelines.tuning.log_range import find_range
from pipelines.tuning.share import PartitionRange
from popstream.wire.base_errors import Invalid


def log(*, first: tuple[int, int] = (0, 0), end: tuple[int, int] = (100, 50)) -> LogFound:
    return LogFound(
        topic="popstream.ops", topic_id="ops", first_offset=dict(enumerate(first)), end_offset=dict(enumerate(end))
    )


def snapshot(number: int, offset: int, topic_id: str = "ops") -> Snapshot:
    applied = Applied(
        state_epoch="e", ops_topic="popstream.ops", ops_topic_id=topic_id, next_offset={0: offset, 1: offset // 2}
    )
    return Snapshot(id=f"s{number}", taken_at_ms=number, applied=applied, files=[])


SNAPSHOTS = [snapshot(3, 80), snapshot(2, 40), snapshot(1, 20)]


def test_a_whole_log_begins_with_an_empty_state() -> None:
    found = find_range(log(), SNAPSHOTS, None, {0: 100, 1: 50})
    assert found.base is None
    assert found.partitions == [PartitionRange(0, 0, 0, 100), PartitionRange(1, 0, 0, 50)]


def test_a_log_that_was_cut_begins_with_the_oldest_snapshot_that_it_continues() -> None:
    found = find_range(log(first=(30, 15)), SNAPSHOTS, None, {0: 100, 1: 50})
    assert (found.base, found.partitions[0]) == (SNAPSHOTS[1], PartitionRange(0, 40, 40, 100))


def test_a_range_begins_with_the_newest_snapshot_before_it() -> None:
    found = find_range(log(), SNAPSHOTS, {0: 60, 1: 50}, {0: 90, 1: 50})
    assert (found.base, found.partitions) == (SNAPSHOTS[1], [PartitionRange(0, 40, 60, 90)])
    assert find_range(log(), SNAPSHOTS, {0: 10, 1: 5}, {0: 90, 1: 50}).base is None


def test_a_snapshot_of_another_topic_is_none() -> None:
    assert find_range(log(), [snapshot(1, 20, "other")], {0: 60, 1: 30}, {0: 90, 1: 50}).base is None


@pytest.mark.parametrize(
    ("snapshots", "words"),
    [(SNAPSHOTS[:1], "the earliest begins after snapshot s3"), ([], "run `popstream snapshot` now")],
)
def test_what_retention_has_deleted_is_not_replayed(snapshots: list[Snapshot], words: str) -> None:
    with pytest.raises(Invalid, match="has lost records that this range needs") as raised:
        find_range(log(first=(50, 25)), snapshots, {0: 60, 1: 30}, {0: 90, 1: 50})
    assert words in raised.value.message


def test_an_empty_range_and_one_that_is_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="has no record in this range"):
        find_range(log(), [], {0: 60, 1: 30}, {0: 60, 1: 30})
    monkeypatch.setattr(log_range, "PARTITION_RECORDS_MAX", 99)
    with pytest.raises(Invalid, match=r"has 100 records in this range, of which at most 99 can be replayed"):
        find_range(log(), [], None, {0: 100, 1: 50})
