"""A process that dies in the middle of a test, with the test's own process going on."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException

from pipelines.failpoints import arm

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.process.job import Job

__all__ = ["Crash", "SimulatedCrash", "crash_at"]


class SimulatedCrash(BaseException):
    """No `except Exception` may go on after it."""


class Crash:
    """A hook for `arm` that raises at the hit-th time that `point` is passed, and ever after at all points.

    So nothing goes on, in any thread, as if nothing had happened. `at_death` is called first.
    """

    def __init__(self, point: str, hit: int = 1, at_death: Callable[[], object] = lambda: None) -> None:
        self.has_come = threading.Event()
        self._point, self._left = point, hit
        self._at_death = at_death
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self._left -= point == self._point
            if not self._left and not self.has_come.is_set():
                self._at_death()
                self.has_come.set()
        if self.has_come.is_set():
            raise SimulatedCrash(point)


def crash_at(
    point: str,
    hit: int,
    start: Callable[[], Job],
    patience_s: float,
    at_death: Callable[[], object] = lambda: None,
) -> None:
    """Run a job until it dies there, and close what it has open: that it does not stop in order is how it is."""
    crash = Crash(point, hit, at_death)
    arm(crash)
    try:
        with contextlib.suppress(SimulatedCrash):  # it may die as it starts
            job = start()
            assert crash.has_come.wait(patience_s), f"{point} was not met"
            with contextlib.suppress(Py4JError, StreamingQueryException):
                job.stop()
        assert crash.has_come.is_set(), point
    finally:
        arm(None)
