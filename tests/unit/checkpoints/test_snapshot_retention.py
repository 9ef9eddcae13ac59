"""Claim: the newest snapshots and the last of each hour, day and week are kept, however often old ones are deleted."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from checkpoints.snapshot_retention import SnapshotRetention
from pipelines.job_settings import JobSettings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
counts = st.integers(0, 5)
retentions = st.builds(SnapshotRetention, newest=st.integers(1, 5), hourly=counts, daily=counts, weekly=counts)
times = st.lists(st.integers(0, 40 * DAY_MS), max_size=60)


@given(retentions, times)
def test_the_newest_stay_and_nothing_is_invented(retention: SnapshotRetention, taken: list[int]) -> None:
    kept = retention.kept(taken)
    assert kept <= set(taken)
    assert set(sorted(taken)[-retention.newest :]) <= kept
    assert len(kept) <= retention.newest + retention.hourly + retention.daily + retention.weekly


@given(retentions, times)
def test_a_second_deletion_deletes_nothing(retention: SnapshotRetention, taken: list[int]) -> None:
    kept = retention.kept(taken)
    assert retention.kept(kept) == kept


@given(retentions, st.lists(st.integers(1, 10 * HOUR_MS), min_size=1, max_size=80))
def test_deleting_after_each_snapshot_keeps_the_same_as_deleting_once(
    retention: SnapshotRetention, pauses: list[int]
) -> None:
    now, stored, all_taken = 0, set[int](), set[int]()
    for pause in pauses:
        now += pause
        all_taken.add(now)
        stored = retention.kept(stored | {now})
    assert stored == retention.kept(all_taken)


@given(retentions, st.integers(60_000, 3 * DAY_MS), st.integers(1, 300))
def test_no_snapshot_becomes_older_than_the_ops_topic_is_asked_to_reach(
    retention: SnapshotRetention, interval_ms: int, count: int
) -> None:
    taken = [number * interval_ms for number in range(count)]
    assert taken[-1] - min(retention.kept(taken)) <= retention.age_ms_max(interval_ms)


def test_a_week_of_the_default() -> None:
    """A snapshot every 15 minutes for ten days, the last one on Friday, 11 October 2030, at 12:10 UTC."""
    last_ms = int(datetime(2030, 10, 11, 12, 10, tzinfo=UTC).timestamp() * 1000)
    settings = JobSettings()
    kept = settings.snapshot_retention.kept([last_ms - number * 15 * 60_000 for number in range(960)])
    shown = [f"{datetime.fromtimestamp(time_ms / 1000, UTC):%d %H:%M}" for time_ms in sorted(kept)]
    assert shown == [
        *("05 23:55", "06 23:55", "07 23:55", "08 23:55", "09 23:55", "10 23:55"),
        *("11 07:55", "11 08:55", "11 09:55", "11 10:55"),
        *("11 11:25", "11 11:40", "11 11:55", "11 12:10"),
    ]
    assert settings.oldest_snapshot_age_ms == 7 * DAY_MS


def test_weeks_begin_on_monday() -> None:
    sunday, monday = (int(datetime(2030, 10, day, 12, tzinfo=UTC).timestamp() * 1000) for day in (6, 7))
    days = [sunday - DAY_MS, sunday, monday, monday + DAY_MS]
    assert SnapshotRetention(newest=1, weekly=2).kept(days) == {sunday, monday + DAY_MS}


def test_snapshots_on_request_ask_nothing_of_the_ops_topic() -> None:
    assert JobSettings(snapshot_interval_s=0).oldest_snapshot_age_ms == 0
    only_newest = JobSettings(snapshots_keep_hourly=0, snapshots_keep_daily=0)
    assert only_newest.oldest_snapshot_age_ms == 4 * 900_000
