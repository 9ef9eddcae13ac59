"""Rates and durations of micro-batches over the last minutes, for the status page."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipelines.control.metrics import Metrics

__all__ = ["MicroBatchHistory", "RatePoint"]

STEP_S = 2.0
POINTS_MAX = 300
"""Ten minutes."""


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the job did in about two seconds.

    Attributes:
        at_ms: The end of these seconds, in ms since 1970.
        operations_per_s: Operations decided per second.
        micro_batches: Micro-batches decided.
        step_ms: Mean milliseconds of a micro-batch, by step; empty: there was none.
    """

    at_ms: int
    operations_per_s: float
    micro_batches: int
    step_ms: dict[str, float]


class _Counts(NamedTuple):
    at_s: float
    operations: int
    micro_batches: int
    step_seconds: Mapping[str, float]


class MicroBatchHistory:
    """Points of the last ten minutes, from samples; safe to use from several threads.

    Args:
        metrics: What is sampled.
        clock: Returns Unix time in seconds.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._points: deque[RatePoint] = deque(maxlen=POINTS_MAX)
        self._last = self._counts()

    def sample(self) -> None:
        """Add a point if the last one is two seconds old."""
        with self._lock:
            last, now = self._last, self._counts()
            if (passed_s := now.at_s - last.at_s) < STEP_S:
                if passed_s < 0:  # somebody has set the clock back
                    self._last = now
                return
            micro_batches = now.micro_batches - last.micro_batches
            step_ms = {
                step: round((seconds - last.step_seconds.get(step, 0.0)) * 1000 / micro_batches, 2)
                for step, seconds in now.step_seconds.items()
                if micro_batches
            }
            rate = round((now.operations - last.operations) / passed_s, 1)
            at_ms = round(now.at_s * 1000)
            self._points.append(
                RatePoint(at_ms=at_ms, operations_per_s=rate, micro_batches=micro_batches, step_ms=step_ms)
            )
            self._last = now

    def points(self) -> list[RatePoint]:
        """Return the points, oldest first."""
        with self._lock:
            return list(self._points)

    def _counts(self) -> _Counts:
        totals = self._metrics.totals()
        return _Counts(self._clock(), totals.operations, totals.micro_batches, self._metrics.step_seconds())
