"""The queries of a job (kept_query.py): one that is started again, and how they end."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from pipelines.cluster import kept_query, ownership_guard
from pipelines.cluster.kept_query import KeptQuery, RunningQueries
from pipelines.cluster.ownership_guard import OwnershipGuard
from popstream.wire.base_errors import Unavailable
from tests.support.spark_query import Query, SlowStart
from tests.support.wire import wait_for


def test_a_query_that_fails_is_started_again_until_the_job_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_query, "PAUSE_S_MIN", 0.01)
    running = threading.Event()
    started: list[Query] = []

    def start() -> Any:
        started.append(Query(fails=len(started) < 3))
        if len(started) == 4:
            running.set()
        return started[-1]

    kept = KeptQuery(start, start, "audit", RunningQueries())
    kept.start()
    assert running.wait(60)
    kept.stop()
    assert (len(started), kept.failures) == (4, 3)
    assert not started[-1].isActive


def test_a_query_that_failed_is_a_problem_until_it_has_done_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_query, "PAUSE_S_MIN", 0.01)
    monkeypatch.setattr(kept_query, "PROGRESS_S", 0.01)
    queries = iter([Query(fails=True), steady := Query()])
    start = lambda: cast("Any", next(queries))  # noqa: E731
    kept = KeptQuery(start, start, "audit", RunningQueries())
    assert kept.problem is None
    kept.start()
    wait_for(lambda: kept.problem and kept._query is cast("Any", steady), patience_s=20)
    assert "no space left" in str(kept.problem)
    steady.lastProgress = {"batchId": 1}
    wait_for(lambda: kept.problem is None, patience_s=20)
    kept.stop()
    assert kept.failures == 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_query_is_drained_when_it_was_stopped_in_order(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    monkeypatch.setattr(kept_query, "DRAIN_S", 0.2)
    running, drain = Query(), Query()
    drained: list[bool] = []

    def start_drain() -> Any:
        drained.append(running.isActive)
        if ends:
            drain.stop()
        return drain

    kept = KeptQuery(lambda: cast("Any", running), start_drain, "audit", RunningQueries())
    kept.start()
    wait_for(lambda: kept._query is cast("Any", running), patience_s=20)
    kept.stop(drains=True)
    assert drained == [False], "once, when it no longer ran"
    assert not drain.isActive


def test_a_job_that_may_write_no_more_drains_nothing() -> None:
    queries, query = RunningQueries(), Query()
    drained: list[object] = []

    def start_drain() -> Any:
        drained.append(query)
        return query

    kept = KeptQuery(lambda: cast("Any", query), start_drain, "audit", queries)
    kept.start()
    wait_for(lambda: kept._query is cast("Any", query), patience_s=20)
    queries.stop_at_once()
    kept.stop(drains=True)
    assert not drained


def test_a_query_that_starts_while_the_job_stops_is_ended() -> None:
    start = SlowStart()
    kept = KeptQuery(start, start, "audit", RunningQueries())
    kept.start()
    start.require_ended_by_stop(kept)


def test_a_job_that_may_decide_no_more_does_not_wait_for_the_end_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership_guard, "POLL_S", 0.01)
    queries = RunningQueries()
    deciding, audit = Query(is_busy=True), Query(is_busy=True)
    queries.add(cast("Any", deciding))
    start = lambda: cast("Any", audit)  # noqa: E731
    kept = KeptQuery(start, start, "audit", queries)
    kept.start()
    valid_for_s = [6.0]
    lost: list[BaseException] = []

    def lose(error: BaseException) -> None:
        lost.append(error)
        queries.stop_at_once()

    guard = OwnershipGuard(lambda: valid_for_s[0], lose, "p")
    guard.start()
    stopping = threading.Thread(target=queries.end, args=(deciding,))
    stopping.start()
    time.sleep(0.2)
    assert stopping.is_alive(), "a stop in order waits"
    valid_for_s[0] = 0.0
    began_s = time.monotonic()
    stopping.join(10)
    assert time.monotonic() - began_s < 5 < kept_query.STOP_S
    while not lost or audit.isActive:
        time.sleep(0.01)
        assert time.monotonic() - began_s < 10
    assert not deciding.isActive
    assert isinstance(lost[0], Unavailable)
    late = queries.add(cast("Any", Query()))
    assert not late.isActive
    kept.stop()
    assert kept.failures == 0
    guard.stop()


def test_a_query_that_cannot_be_stopped_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = Query(), Query()

    def fail() -> None:
        message = "the JVM has ended"
        raise RuntimeError(message)

    monkeypatch.setattr(stuck, "stop", fail)
    queries = RunningQueries()
    for query in (stuck, other):
        queries.add(cast("Any", query))
    queries.stop_at_once()
    assert not other.isActive


def test_a_query_that_waits_for_a_write_does_not_keep_the_one_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    audit, deciding = Query(is_busy=True), Query(is_busy=True)
    waited: list[bool] = []
    # As Spark does for a commit in flight: here until the other one has stopped.
    monkeypatch.setattr(audit, "stop", lambda: waited.append(deciding._stopped.wait(60)))
    queries = RunningQueries()
    for query in (audit, deciding):
        queries.add(cast("Any", query))
    queries.stop_at_once()
    assert waited == [True]


def test_a_query_that_is_stopped_before_its_start_never_starts() -> None:
    started: list[Query] = []

    def start() -> Any:
        started.append(Query())
        return started[-1]

    kept = KeptQuery(start, start, "audit", RunningQueries())
    kept.stop()
    kept.start()
    kept._thread.join(20)
    assert not started
