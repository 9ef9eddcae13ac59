"""What `popstream status` reports beyond the job's own report: the operation rate, and a job that has ended."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from pipelines.control.messages import JobReport

if TYPE_CHECKING:
    from pipelines.control.metrics import Metrics

__all__ = ["OperationRate", "without_job"]

RATE_WINDOW_S = 10.0


def without_job(last: JobReport, reason: str) -> JobReport:
    """Return what still holds of the report of a job that has ended."""
    return JobReport(
        folder=last.folder,
        apply_seq=last.apply_seq,
        bootstrap_servers=last.bootstrap_servers,
        prefix=last.prefix,
        delta_seq=last.delta_seq,
        totals=last.totals,
        not_ready_reasons=[reason],
    )


class OperationRate:
    """Operations per second over the last seconds, from samples; safe to use from several threads."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def sample(self) -> None:
        """Note the number of operations now, and forget what is older than the window."""
        with self._lock:
            now = time.monotonic()
            self._samples.append((now, self._metrics.totals().operations))
            while len(self._samples) > 1 and now - self._samples[1][0] > RATE_WINDOW_S:
                self._samples.popleft()

    def per_s(self) -> float:
        """Return the operations per second over the window."""
        self.sample()
        with self._lock:
            (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return round((last - first) / (last_at - first_at), 1) if last_at > first_at else 0.0
