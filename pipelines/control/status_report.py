"""What `popstream status` gets from the running process: the job's report, the process, and the operation rate."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pipelines.control.messages import JobReport, Status

if TYPE_CHECKING:
    from pipelines.control.metrics import Metrics

__all__ = ["OperationRate", "StatusReporter"]

RATE_WINDOW_S = 10.0


class StatusReporter:
    """Puts the status of this process together.

    Args:
        metrics: Counts of the process.

    Attributes:
        rate: The operations decided per second; somebody has to sample it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.rate = OperationRate(metrics)
        self._began_s = time.monotonic()

    def status_of(self, report: JobReport) -> Status:
        """Return the status of the process with a job, whose queues the caller adds."""
        return Status(
            running=True,
            pid=os.getpid(),
            up_s=round(time.monotonic() - self._began_s, 1),
            operations_per_s=self.rate.per_s(),
            **msgspec.structs.asdict(report),
        )

    def status_without_job(self, last: JobReport, reason: str) -> Status:
        """Return the status of the process while no job runs, with what still holds of the last job's report."""
        return self.status_of(
            JobReport(
                folder=last.folder,
                apply_seq=last.apply_seq,
                bootstrap_servers=last.bootstrap_servers,
                prefix=last.prefix,
                delta_seq=last.delta_seq,
                totals=last.totals,
                not_ready_reasons=[reason],
            )
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
