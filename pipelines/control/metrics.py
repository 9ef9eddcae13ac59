"""What the job tells about itself: totals since the start, the last micro-batch, and all of it for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pipelines.apply_ops.outbox import Outbox

if TYPE_CHECKING:
    from pipelines.apply_ops.micro_batch import MicroBatchReport

__all__ = ["Metrics", "Totals"]


class Totals(msgspec.Struct):
    """Since the process started, whichever jobs it had; `last_batch_ms` is by step."""

    batches: int = 0
    records: int = 0
    operations: int = 0
    refused: int = 0
    rejected: int = 0
    ticks: int = 0
    apply_seq: int = 0
    delta_seq: int = 0
    outbox_bytes: int = 0
    write_batch_bytes: int = 0
    write_batch_bytes_max: int = 0
    last_batch_ms: dict[str, float] = {}
    last_batch_at: float = 0.0


class Metrics:
    """Counts micro-batches; read from other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Totals()
        self._seconds: dict[str, float] = {}
        self.registry = CollectorRegistry()
        self._records = Counter("popstream_records_total", "Records of the ops topic decided", registry=self.registry)
        self._refused = Counter("popstream_refused_total", "Runs answered with a code", registry=self.registry)
        self._rejected = Counter("popstream_rejected_total", "Records not readable", registry=self.registry)
        self._steps = Histogram(
            "popstream_step_seconds", "Time of each step of a micro-batch", ["step"], registry=self.registry
        )
        self._outbox = Gauge("popstream_outbox_bytes", "Decided and not yet everywhere", registry=self.registry)
        self._delta_lag = Gauge("popstream_delta_lag_batches", "Micro-batches not yet in Delta", registry=self.registry)
        self._ops_lag = Gauge("popstream_ops_lag_records", "Offsets not yet decided", registry=self.registry)
        self._ops_overdue = Gauge(
            "popstream_ops_overdue_records",
            "Offsets not decided after half of the ops topic's retention",
            registry=self.registry,
        )
        self._quarantined = Gauge(
            "popstream_quarantined_records", "Records of which nothing could be decided", registry=self.registry
        )
        self._ready = Gauge("popstream_ready", "1 while nothing keeps the job from deciding", registry=self.registry)
        self._restarts = Counter(
            "popstream_restarts_total", "Jobs started in this process after one that failed", registry=self.registry
        )

    def tell_ready(self, is_ready: Callable[[], bool]) -> None:
        """Ask `is_ready` whenever the metrics are read."""
        self._ready.set_function(is_ready)

    def ask(
        self,
        *,
        ops_lag: Callable[[], int],
        ops_overdue: Callable[[], int],
        outbox_bytes: Callable[[], int],
        delta_lag: Callable[[], int],
        quarantined: Callable[[], int],
    ) -> None:
        """Call these whenever the metrics are read."""
        self._ops_lag.set_function(ops_lag)
        self._ops_overdue.set_function(ops_overdue)
        self._outbox.set_function(outbox_bytes)
        self._delta_lag.set_function(delta_lag)
        self._quarantined.set_function(quarantined)

    def count_restart(self) -> None:
        """Another job was started in this process."""
        self._restarts.inc()

    def count_tick(self) -> None:
        """A tick was asked for."""
        with self._lock:
            self._totals.ticks += 1

    def record(self, report: MicroBatchReport, outbox: Outbox, delta_seq: int) -> None:
        """Add one micro-batch."""
        with self._lock:
            totals = self._totals
            totals.batches += 1
            totals.records += report.records
            totals.operations += report.operations
            totals.refused += report.refused
            totals.rejected += report.rejected
            totals.apply_seq = max(totals.apply_seq, report.apply_seq)
            totals.delta_seq = delta_seq
            totals.outbox_bytes = outbox.undelivered_bytes
            totals.write_batch_bytes = report.write_batch_bytes
            totals.write_batch_bytes_max = max(totals.write_batch_bytes_max, report.write_batch_bytes)
            totals.last_batch_ms = {step: round(s * 1000, 1) for step, s in report.seconds.items()}
            totals.last_batch_at = time.time()
            for step, seconds in report.seconds.items():
                self._seconds[step] = self._seconds.get(step, 0.0) + seconds
        self._records.inc(report.records)
        self._refused.inc(report.refused)
        self._rejected.inc(report.rejected)
        for step, seconds in report.seconds.items():
            self._steps.labels(step).observe(seconds)

    def step_seconds(self) -> dict[str, float]:
        """Seconds spent in each step since the start."""
        with self._lock:
            return dict(self._seconds)

    def totals(self) -> Totals:
        """A copy of the totals."""
        with self._lock:
            return msgspec.structs.replace(self._totals)
