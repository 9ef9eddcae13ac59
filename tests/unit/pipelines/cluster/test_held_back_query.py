"""A query that is stopped while something holds it back, and whose own end is that of the job (held_back_query.py)."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.cluster import held_back_query
from pipelines.cluster.held_back_query import HeldBackQuery
from pipelines.cluster.kept_query import RunningQueries
from tests.support.spark_query import Query, SlowStart
from tests.support.wire import wait_for


class Scene:
    """A query that is held back at will; what was started, how often it was stopped, and how it ended."""

    def __init__(self, *, fails_from: int = 100, is_held_back: bool = False) -> None:
        self.is_held_back = is_held_back
        self.started: list[Query] = []
        self.stops = 0
        self.ends: list[BaseException | None] = []
        self.queries = RunningQueries()
        self._fails_from = fails_from
        self.query = HeldBackQuery(
            "decide_ops", self._start, lambda: self.is_held_back, self.queries, self.ends.append, self._after_stop
        )

    @property
    def active(self) -> list[bool]:
        """Of each query that was started, whether it runs."""
        return [query.isActive for query in self.started]

    def _start(self) -> Any:
        self.started.append(Query(fails=len(self.started) >= self._fails_from))
        return self.started[-1]

    def _after_stop(self) -> None:
        self.stops += 1


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back_query, "LOOK_S", 0.01)


def test_a_query_is_stopped_while_it_is_held_back_and_goes_on_after() -> None:
    scene = Scene()
    scene.query.start()
    assert scene.active == [True]
    scene.is_held_back = True
    wait_for(lambda: scene.stops == 1, patience_s=20)
    assert scene.active == [False]
    scene.is_held_back = False
    wait_for(lambda: scene.active == [False, True], patience_s=20)
    scene.query.stop()
    assert scene.active == [False, False]
    assert scene.stops == 2
    assert not [end for end in scene.ends if end is not None]


def test_a_job_that_starts_held_back_decides_nothing_and_stops() -> None:
    scene = Scene(is_held_back=True)
    scene.query.start()
    scene.query.stop()
    assert (scene.started, scene.ends) == ([], [])


def test_a_query_that_fails_is_the_end_of_the_job_with_its_error() -> None:
    scene = Scene(fails_from=0)
    scene.query.start()
    wait_for(lambda: scene.ends, patience_s=20)
    assert isinstance(scene.ends[0], OSError)


def test_a_query_that_fails_after_it_was_held_back_is_the_end_of_the_job() -> None:
    scene = Scene(fails_from=1)
    scene.query.start()
    scene.is_held_back = True
    wait_for(lambda: scene.stops == 1, patience_s=20)
    scene.is_held_back = False
    wait_for(lambda: scene.ends, patience_s=20)
    assert isinstance(scene.ends[0], OSError)


def test_a_query_that_ends_by_itself_is_the_end_of_the_job() -> None:
    scene = Scene()
    scene.query.start()
    scene.started[0].stop()
    wait_for(lambda: scene.ends == [None], patience_s=20)
    assert len(scene.started) == 1


def test_a_job_that_may_decide_no_more_goes_on_with_nothing() -> None:
    scene = Scene(is_held_back=True)
    scene.query.start()
    scene.queries.stop_at_once()
    scene.is_held_back = False
    wait_for(lambda: scene.ends == [None], patience_s=20)
    assert not scene.started[0].isActive


def test_a_query_that_starts_again_while_the_job_stops_is_ended() -> None:
    scene, start = Scene(is_held_back=True), SlowStart()
    query = HeldBackQuery("decide_ops", start, lambda: scene.is_held_back, scene.queries, scene.ends.append)
    query.start()
    scene.is_held_back = False
    start.require_ended_by_stop(query)


def is_starting(scene: Scene) -> bool:
    return scene.query.is_starting


def test_a_query_starts_until_it_has_ended_a_micro_batch() -> None:
    scene = Scene()
    assert not is_starting(scene)
    scene.query.start()
    assert is_starting(scene)
    scene.started[-1].lastProgress = {"batchId": 0}
    assert not is_starting(scene)
    scene.query.stop()


def test_a_query_that_is_held_back_does_not_start() -> None:
    scene = Scene(is_held_back=True)
    scene.query.start()
    assert not is_starting(scene)
    scene.query.stop()
