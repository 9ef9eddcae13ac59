"""Claim: the metrics by topic and group say what the state says, whatever was decided, and their number is bounded.

Method: random worlds of tests/model, decided by the kernel over a store on disk; what the watch knows from audit rows
is compared with a scan of the state after each WriteBatch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from broker_state.store.rocks_store import RocksStore, StoreStopped
from broker_state.store.state_records import LaneRecord, QueueRecord
from pipelines.control.lane_metrics import REST, LaneMetrics
from pipelines.control.lane_table import TIMES_MAX, DispatchTimes, LaneTable
from pipelines.control.lane_views import StoredQueue, queues_in, scan_queues
from pipelines.control.lane_watch import PENDING_ROWS_MAX, LaneWatch
from popstream.wire.command import Ack, AckEntry, Declare, Dispatch, HandleRef, Pop, ResetOffset, WrittenRange
from tests.support.in_process.folding import Folding, records_of
from tests.support.module_time import replace_time
from tests.unit.pipelines.control.test_lane_views import QUEUE, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    with RocksStore(tmp_path / "state") as opened:
        yield opened


class Scraped:
    """The metrics of the lanes as Prometheus gets them."""

    def __init__(self, metrics: LaneMetrics) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(metrics)

    def value(self, name: str, topic: str, group: str, **more: str) -> float | None:
        return self._registry.get_sample_value(f"popstream_lane_{name}", {"topic": topic, "group": group, **more})

    def plain(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"popstream_{name}")

    def groups(self) -> list[tuple[str, str]]:
        (family,) = [each for each in self._registry.collect() if each.name == "popstream_lane_lag_messages"]
        return [(sample.labels["topic"], sample.labels["group"]) for sample in family.samples]

    def text(self) -> str:
        return generate_latest(self._registry).decode()


class Watched(Writer):
    """A job whose decisions a watch follows."""

    def __init__(self, store: RocksStore, groups_max: int = 10) -> None:
        super().__init__(store)
        self.metrics = LaneMetrics()
        self.scraped = Scraped(self.metrics)
        self.watch = LaneWatch(store, self.metrics, groups_max)
        self.watch.load(scan_queues(store))

    def follow(self) -> None:
        self.watch.observe(self.decision, self.touched)
        self.watch.refresh()

    def send(self, first: int, last: int) -> None:
        self.do(Dispatch(**QUEUE, ranges=[WrittenRange(first, last)]))
        self.follow()

    def take(self, group: str, count: int, **fields: Any) -> None:
        self.do(Pop(**QUEUE, group=group, max_messages=count, invisible_time_ms=10_000, **fields))
        self.follow()


Lanes = dict[tuple[str, int, str], tuple[int, ...]]
"""Position of the queue, commit offset, leased and available, by lane."""


def lanes_of(watch: LaneWatch) -> Lanes:
    table = watch._table
    columns = table._columns
    return {
        name: (
            int(table._positions[columns.queue[row]]),
            int(columns.commit_offset[row]),
            int(columns.in_flight[row]),
            int(columns.available[row]),
        )
        for name, row in table._rows.items()
    }


def lanes_in(store: RocksStore, waiting: Lanes) -> Lanes:
    """Of lanes with a waiting pop what is available is taken from `waiting`: delayed messages join it without a row."""
    found: Lanes = {}
    for queue in queues_in(store):
        for lane in queue.lanes:
            name = queue.topic, queue.queue_id, lane.group
            available = waiting[name][-1] if lane.parked else lane.available
            found[name] = queue.commit_position, lane.commit_offset, lane.leased, available
    return found


@pytest.mark.parametrize("seed", range(6))
def test_it_knows_of_every_lane_what_the_state_says(store: RocksStore, seed: int) -> None:
    folding = Folding(store)
    watch = LaneWatch(store, LaneMetrics(), 10)
    records = records_of(seed, 500)
    for first in range(0, len(records), 25):
        watch.observe(folding.decide(records[first : first + 25]), folding.touched)
        watch.refresh()
        known = lanes_of(watch)
        assert known == lanes_in(store, known)
    restarted = LaneWatch(store, LaneMetrics(), 10)
    restarted.load(scan_queues(store))
    known = lanes_of(restarted)
    assert known == lanes_in(store, known) != {}


def test_figures_of_a_group_are_those_of_its_lanes(store: RocksStore) -> None:
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    job.send(0, 9)
    job.take("g", 4)
    handle = job.decision.operations[0].handle_after
    assert handle is not None
    job.do(Ack(**QUEUE, handles=[HandleRef("g", handle)], entries=[AckEntry(0, [(0, 0)])]))
    job.follow()
    value = job.scraped.value
    assert value("lag_messages", "orders", "g") == 9
    assert value("in_flight_messages", "orders", "g") == 3
    assert value("available_messages", "orders", "g") == 0
    job.do(ResetOffset(**QUEUE, group="g", queue_offset=7))
    job.follow()
    assert value("lag_messages", "orders", "g") == 3
    assert value("in_flight_messages", "orders", "g") == 0
    assert job.scraped.plain("lane_groups") == 1


def test_redelivered_dead_lettered_and_refused_are_counted(store: RocksStore) -> None:
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    job.send(0, 1)
    for _ in range(3):
        job.take("g", 2, max_attempts=2)
        job.number += 20_000  # the leases expire
    value = job.scraped.value
    assert value("delivered_total", "orders", "g") == 4
    assert value("redelivered_total", "orders", "g") == 2
    assert value("dead_lettered_total", "orders", "g") == 2
    job.take("g", 0)
    job.take("unknown", 0)
    assert value("refused_total", "orders", "g", reason="INVALID_PARAMETER") == 1
    assert value("refused_total", *REST, reason="INVALID_PARAMETER") == 1
    assert "unknown" not in job.scraped.text(), "who sends operations does not choose the number of series"


COUNTS = ("delivered_total", "redelivered_total", "dead_lettered_total")


def test_counts_of_each_group_that_is_shown_begin_with_0(store: RocksStore) -> None:
    """Otherwise the first dead letters of a group would be no increase of a series, and no alert."""
    metrics = LaneMetrics()
    LaneWatch(store, metrics, 3).load([queue_of("orders", {"a": 5, "b": 50}), queue_of("parcels", {"a": 2})])
    scraped = Scraped(metrics)
    for group in (("orders", "a"), ("orders", "b"), ("parcels", "a")):
        assert [scraped.value(name, *group) for name in COUNTS] == [0, 0, 0]
    assert [scraped.value(name, *REST) for name in COUNTS] == [0, 0, 0], "the next group would be one of the others"


def test_a_group_begins_with_0_when_its_first_pop_waits(store: RocksStore) -> None:
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    job.take("g", 2, poll_time_ms=60_000)
    assert [job.scraped.value(name, "orders", "g") for name in COUNTS] == [0, 0, 0]
    assert [job.scraped.value(name, *REST) for name in COUNTS] == [None, None, None], "there are no others"


def test_the_number_of_counts_is_that_of_the_groups_shown(store: RocksStore) -> None:
    metrics = LaneMetrics()
    watch = LaneWatch(store, metrics, 2)
    for lag in (1, 2, 3):  # other groups come first each time
        watch.load([queue_of("orders", {f"{lag}-{number}": lag * number for number in range(1, 6)})])
        series = [line for line in Scraped(metrics).text().splitlines() if line.startswith("popstream_lane_delivered")]
        assert len(series) == 3


def test_the_oldest_unacked_message_is_as_old_as_its_dispatch(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_time(monkeypatch, "pipelines.control.lane_metrics", time=lambda: 100.0)
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    job.number = 10_000
    job.send(0, 4)  # at 11.001 s
    job.number = 30_000
    job.send(5, 9)  # at 31.001 s
    job.take("g", 10)
    handle = job.decision.operations[0].handle_after
    assert handle is not None
    assert job.scraped.value("oldest_unacked_seconds", "orders", "g") == pytest.approx(100 - 11.001)
    for offsets, age_s in (((0, 4), 100 - 31.001), ((5, 9), 0)):
        job.do(Ack(**QUEUE, handles=[HandleRef("g", handle)], entries=[AckEntry(0, [offsets])]))
        job.follow()
        assert job.scraped.value("oldest_unacked_seconds", "orders", "g") == pytest.approx(age_s)


def test_times_of_dispatch_stay_few_and_old_ones_become_coarse() -> None:
    times = DispatchTimes(0, 0)
    for number in range(1, 20_000):
        times.add(number, number * 2_000)
    assert len(times._ends) == len(times._times) <= TIMES_MAX
    found = [times.of(offset) for offset in range(19_998)]
    assert found == sorted(found)
    assert all(at <= (offset + 1) * 2_000 for offset, at in enumerate(found)), "no message seems younger than it is"
    assert times.of(19_990) == 19_991 * 2_000
    assert times.of(19_999) == 0


def queue_of(topic: str, lags: dict[str, int]) -> StoredQueue:
    record = QueueRecord("t", "simple", now_ms=5_000, min_offset=0, commit_position=100, written_above=0)
    lanes = [
        LaneRecord(
            lane_no=number,
            group=group,
            start_offset=0,
            next_offset=100,
            commit_offset=100 - lag,
            acked_above=0,
            epoch=1,
            reset_epoch=1,
            min_seen=0,
            late_skips_seen=0,
            leased=1,
            available=2,
        )
        for number, (group, lag) in enumerate(lags.items(), 1)
    ]
    return StoredQueue(topic, 0, record, lanes)


def test_the_groups_with_the_greatest_lag_are_shown_and_the_rest_is_summed(store: RocksStore) -> None:
    metrics = LaneMetrics()
    watch = LaneWatch(store, metrics, 2)
    watch.load([queue_of("orders", {"a": 5, "b": 50, "c": 7}), queue_of("parcels", {"a": 20, "d": 0})])
    scraped = Scraped(metrics)
    assert scraped.groups() == [("orders", "b"), ("parcels", "a"), REST]
    assert scraped.value("lag_messages", *REST) == 5 + 7
    assert scraped.value("in_flight_messages", *REST) == 3
    assert scraped.value("available_messages", *REST) == 6
    assert scraped.value("oldest_unacked_seconds", *REST) == pytest.approx(
        scraped.value("oldest_unacked_seconds", "orders", "b"), abs=60
    )
    assert scraped.plain("lane_groups") == 5


def test_where_lags_are_equal_the_shown_groups_stay(store: RocksStore) -> None:
    watch = LaneWatch(store, LaneMetrics(), 2)
    watch.load([queue_of("orders", {"a": 1, "b": 9, "c": 9, "d": 1})])
    watch.load([queue_of("orders", {"a": 4, "b": 4, "c": 4, "d": 4})])
    assert [group.name[1] for group in watch._figures.groups] == ["b", "c", "(other)"]


def test_a_group_named_like_the_rest_is_part_of_it(store: RocksStore) -> None:
    """Otherwise there would be two series with the same labels, and Prometheus would refuse the whole scrape."""
    metrics = LaneMetrics()
    watch = LaneWatch(store, metrics, 2)
    watch.load([queue_of(REST[0], {REST[1]: 3}), queue_of("orders", {"a": 1})])
    scraped = Scraped(metrics)
    assert scraped.groups() == [("orders", "a"), REST]
    assert scraped.value("lag_messages", *REST) == 3


def test_a_group_that_is_deleted_is_shown_no_more() -> None:
    table = LaneTable()
    table.set_queue(("orders", 0), 10, 1)
    for group in ("a", "b", "c"):
        table.set_lane(("orders", 0, group), 0, 0, 0)
    for group in ("a", "b"):
        table.drop_lane(("orders", 0, group))
    assert [group.name[1] for group in table.figures(10, ()).groups] == ["c"]
    table.set_lane(("orders", 0, "new"), 4, 1, 0)
    assert {group.name[1]: group.lag for group in table.figures(10, ()).groups} == {"c": 10, "new": 6}


def test_answers_are_timed_from_the_records_timestamp(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_time(monkeypatch, "pipelines.control.lane_watch", time=lambda: 1.3)
    job = Watched(store)
    for _ in range(3):  # at 1.001, 1.002 and 1.003 s
        job.do(Declare(**QUEUE, topic_id="t"))
        job.follow()
    lines = job.scraped.text().splitlines()
    assert 'popstream_answer_seconds_bucket{le="0.25"} 0.0' in lines
    assert 'popstream_answer_seconds_bucket{le="0.5"} 3.0' in lines
    assert 'popstream_answer_seconds_bucket{le="+Inf"} 3.0' in lines
    assert job.scraped.plain("answer_seconds_sum") == pytest.approx(0.299 + 0.298 + 0.297)


def test_a_thread_that_is_too_slow_loses_counts_and_no_lane(store: RocksStore) -> None:
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    job.watch._rows_taken = PENDING_ROWS_MAX + 1
    job.watch.observe(job.decision, job.touched)
    job.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 9)]))
    job.watch.observe(job.decision, job.touched)
    job.take("g", 4)
    assert not job.watch._pending
    known = lanes_of(job.watch)
    assert known == lanes_in(store, known) != {}


def test_the_thread_shows_what_was_decided_and_ends(store: RocksStore) -> None:
    job = Watched(store)
    job.do(Declare(**QUEUE, topic_id="t"))
    is_shown = threading.Event()
    shown = job.metrics.show

    def show(figures: Any) -> None:
        shown(figures)
        if figures is not None and figures.group_count:
            is_shown.set()

    job.metrics.show = show  # type: ignore[method-assign]
    job.watch.start(list(scan_queues(store)))
    job.watch.observe(job.decision, job.touched)
    job.do(Pop(**QUEUE, group="g", max_messages=1, invisible_time_ms=10_000))
    job.watch.observe(job.decision, job.touched)
    job.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 0)]))
    job.watch.observe(job.decision, job.touched)
    job.do(Pop(**QUEUE, group="g", max_messages=1, invisible_time_ms=10_000))
    job.watch.observe(job.decision, job.touched)
    assert is_shown.wait(60)
    job.watch.stop()
    assert job.scraped.groups() == [], "of a job that has ended there are no figures"
    assert job.scraped.plain("lane_figures_age_seconds") is None


def test_an_error_of_the_state_ends_the_watch_and_not_the_job(store: RocksStore) -> None:
    job = Watched(store)

    def fail() -> None:
        message = "the state cannot be read"
        raise StoreStopped(message)

    job.watch.refresh = fail  # type: ignore[method-assign]
    job.watch.start([])
    job.watch._thread.join(60)
    assert not job.watch._thread.is_alive()
    job.do(Declare(**QUEUE, topic_id="t"))
    job.watch.observe(job.decision, job.touched)
    assert not job.watch._pending, "nobody would take it"
