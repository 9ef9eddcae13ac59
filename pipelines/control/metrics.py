"""What a job counts: totals since the process started, the last micro-batch, and Prometheus metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter as CountBy
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broker_state.audit import RejectReason
from pipelines.apply_ops.outbox import Outbox
from pipelines.control.lane_metrics import LaneMetrics
from pipelines.control.metric_definitions import LANE_METRICS, Metric, MetricKind

if TYPE_CHECKING:
    from pipelines.apply_ops.micro_batch import MicroBatchReport
    from pipelines.control.messages import OwnerView

__all__ = ["Metrics", "Totals"]


MARK_S = 1.0
"""Micro-batches of this time count as one where it is about how long rows wait for Delta."""


class Totals(msgspec.Struct):
    """Counts since the process started, over all its jobs.

    Attributes:
        refused: Runs of `operations` with an error code.
        refused_by_reason: These by reason, such as NO_PERMISSION; as many as there are reasons at most.
        rejected: Records in the table `rejected`.
        rejected_by_reason: These by reason, such as NOT_SIGNED, likewise.
        first_seq: The apply_seq of the first micro-batch that is counted; 0: none is.
        last_micro_batch_ms: Milliseconds by step.
        last_micro_batch_at_s: When it was decided, in seconds since 1970; 0: none was.
    """

    micro_batches: int = 0
    records: int = 0
    operations: int = 0
    refused: int = 0
    refused_by_reason: dict[str, int] = {}
    rejected: int = 0
    rejected_by_reason: dict[str, int] = {}
    ticks: int = 0
    first_seq: int = 0
    apply_seq: int = 0
    delta_seq: int = 0
    outbox_bytes: int = 0
    write_batch_bytes: int = 0
    write_batch_bytes_max: int = 0
    last_micro_batch_ms: dict[str, float] = {}
    last_micro_batch_at_s: float = 0.0


class Metrics:
    """Counts micro-batches; safe to read from other threads.

    Attributes:
        registry: The metrics for Prometheus.
        lanes: Those by topic and group, and of answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self._seconds: dict[str, float] = {}
        self._undelivered: deque[tuple[int, float]] = deque()
        """(apply_seq, time) of micro-batches whose rows may not be in Delta: the last one of each second, and when its
        first one was decided."""
        self.registry = CollectorRegistry()
        self.lanes = LaneMetrics()
        self.registry.register(self.lanes)
        self._counters: dict[Metric, Counter] = {}
        self._gauges: dict[Metric, Gauge] = {}
        self._histograms: dict[Metric, Histogram] = {}
        for metric in Metric:
            if metric in LANE_METRICS:
                continue
            name, kind, text, _, labels = metric.value
            if kind is MetricKind.COUNTER:
                self._counters[metric] = Counter(name, text, labels, registry=self.registry)
            elif kind is MetricKind.GAUGE:
                self._gauges[metric] = Gauge(name, text, labels, registry=self.registry)
            else:
                self._histograms[metric] = Histogram(name, text, labels, registry=self.registry)

        for reason in RejectReason:  # each from 0 on: the first increase is one
            self._counters[Metric.REJECTED].labels(reason.value)

    def bind_gauges(self, gauges: Mapping[Metric, Callable[[], float]]) -> None:
        """Read these gauges from functions, each time that the metrics are scraped."""
        for metric, read in gauges.items():
            self._gauges[metric].set_function(read)

    def count_restart(self) -> None:
        """Count a job that was started after one that failed."""
        self._counters[Metric.RESTARTS].inc()

    def count_tick(self) -> None:
        """Count a tick that was sent."""
        with self._lock:
            self._totals.ticks += 1

    def record(self, report: MicroBatchReport, outbox: Outbox, delta_seq: int) -> None:
        """Count one micro-batch."""
        with self._lock:
            totals = self._totals
            totals.micro_batches += 1
            totals.records += report.records
            totals.operations += report.operations
            totals.refused += report.refused.total()
            totals.rejected += report.rejected.total()
            # New objects: a copy of the totals has those of before, and may be read meanwhile.
            totals.refused_by_reason = dict(CountBy(totals.refused_by_reason) + report.refused)
            totals.rejected_by_reason = dict(CountBy(totals.rejected_by_reason) + report.rejected)
            totals.first_seq = totals.first_seq or report.apply_seq
            totals.apply_seq = max(totals.apply_seq, report.apply_seq)
            totals.delta_seq = delta_seq
            totals.outbox_bytes = outbox.undelivered_bytes
            totals.write_batch_bytes = report.write_batch_bytes
            totals.write_batch_bytes_max = max(totals.write_batch_bytes_max, report.write_batch_bytes)
            totals.last_micro_batch_ms = {step: round(s * 1000, 1) for step, s in report.seconds.items()}
            totals.last_micro_batch_at_s = time.time()
            self._note_undelivered(report.apply_seq, totals.last_micro_batch_at_s)
            self._forget_delivered(delta_seq)
            for step, seconds in report.seconds.items():
                self._seconds[step] = self._seconds.get(step, 0.0) + seconds
        self._counters[Metric.RECORDS].inc(report.records)
        self._counters[Metric.REFUSED].inc(report.refused.total())
        for reason, count in report.rejected.items():
            self._counters[Metric.REJECTED].labels(reason).inc(count)
        for step, seconds in report.seconds.items():
            self._histograms[Metric.STEP_SECONDS].labels(step).observe(seconds)

    def delta_lag_s(self, delta_seq: int) -> float:
        """Return the age of the oldest micro-batch after `delta_seq`, in seconds; 0: there is none."""
        with self._lock:
            self._forget_delivered(delta_seq)
            return time.time() - self._undelivered[0][1] if self._undelivered else 0.0

    def _note_undelivered(self, apply_seq: int, at_s: float) -> None:
        marks = self._undelivered
        if marks and at_s - marks[-1][1] < MARK_S:
            marks[-1] = max(apply_seq, marks[-1][0]), marks[-1][1]
        elif apply_seq:
            marks.append((apply_seq, at_s))

    def _forget_delivered(self, delta_seq: int) -> None:
        while self._undelivered and self._undelivered[0][0] <= delta_seq:
            self._undelivered.popleft()

    def show_owner(self, owner: OwnerView) -> None:
        """Show who owns the prefix, in place of an earlier owner."""
        info = self._gauges[Metric.OWNER_INFO]
        info.clear()
        info.labels(owner.prefix, owner.state, owner.host, owner.folder).set(1)
        self._gauges[Metric.OWNER_SINCE].set(owner.since_ms / 1000)

    def step_seconds(self) -> dict[str, float]:
        """Return the seconds spent in each step since the start."""
        with self._lock:
            return dict(self._seconds)

    def totals(self) -> Totals:
        """Return a copy of the totals."""
        with self._lock:
            return msgspec.structs.replace(self._totals)
