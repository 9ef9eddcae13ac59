"""A query that is started again (kept_query.py)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pipelines.cluster import kept_query
from pipelines.cluster.kept_query import KeptQuery

if TYPE_CHECKING:
    import pytest


class Query:
    """In place of Spark's: fails at once, or runs until it is stopped."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self._stopped = threading.Event()
        self.status = {"isTriggerActive": False}

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return not self._stopped.is_set()

    def awaitTermination(self) -> None:  # noqa: N802
        if self._fails:
            message = "no space left"
            raise OSError(message)
        self._stopped.wait(60)

    def stop(self) -> None:
        self._stopped.set()


def test_a_query_that_fails_is_started_again_until_the_job_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_query, "PAUSE_S_MIN", 0.01)
    running = threading.Event()
    started: list[Query] = []

    def start() -> Any:
        started.append(Query(fails=len(started) < 3))
        if len(started) == 4:
            running.set()
        return started[-1]

    kept = KeptQuery(start, "audit")
    kept.start()
    assert running.wait(60)
    kept.stop()
    assert (len(started), kept.failures) == (4, 3)
    assert not started[-1].isActive
