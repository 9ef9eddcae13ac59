"""What stands between an operation and its answer: the time of each stage of a micro-batch, at a steady rate."""

import multiprocessing
import time
from collections import defaultdict
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from connectors.kafka.embedded import EmbeddedKafka
from pipelines.apply_ops.micro_batch import MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.source import PIPELINE
from pipelines.control.metrics import Metrics
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.latency import operation_latency, quantiles

__all__ = ["measure_timeline"]

_PREFIX = "timeline"
_RATES = (500, 5_000)
_LOOK_S = 0.5
_SPARK_STAGES = ("triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
"""Names of Spark's own: a micro-batch as a whole, then its parts in their order; `addBatch` has our `fetch` in it."""


class _RecordingMetrics(Metrics):
    """Keeps the seconds of each step of each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, float]] = []

    def record(self, report: MicroBatchReport, outbox: Outbox, delta_seq: int) -> None:
        """Count one micro-batch."""
        if report.records:
            self.reports.append(dict(report.seconds))
        super().record(report, outbox, delta_seq)


def measure_timeline(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return milliseconds: of each stage of the micro-batches, and from send to answer, at each of the rates."""
    settings = JobSettings(
        folder=options.work / _PREFIX, bootstrap_servers=kafka.bootstrap_servers, topic_prefix=_PREFIX
    )
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as clients,
        Host(settings, var=options.var) as host,
    ):
        metrics = _RecordingMetrics()
        host.job.metrics = metrics

        def send(rate: int, seconds: int) -> Future[dict[str, Any]]:
            return clients.submit(operation_latency, kafka.bootstrap_servers, _PREFIX, rate=rate, seconds=seconds)

        send(100, 30).result()  # warm
        report = {}
        for rate in _RATES:
            metrics.reports.clear()
            client = send(rate, options.seconds)
            spark = _spark_stages(client)
            report[f"{rate}_a_second"] = {
                "operation": client.result(),
                "micro_batches": len(metrics.reports),
                "spark": {stage: quantiles(spark[stage]) for stage in _SPARK_STAGES},
                "job": {
                    step: quantiles([1000 * each.get(step, 0.0) for each in metrics.reports])
                    for step in metrics.reports[0]
                },
            }
    return report


def _spark_stages(running: "Future[Any]") -> dict[str, list[float]]:
    """Collect the milliseconds of each stage of the micro-batches with records, until `running` is done."""
    (query,) = (each for each in SparkSession.active().streams.active if each.name == PIPELINE)
    seen: set[int] = set()
    stages: dict[str, list[float]] = defaultdict(list)
    while not running.done():
        time.sleep(_LOOK_S)
        for progress in query.recentProgress:
            if progress.batchId not in seen and progress.numInputRows:
                seen.add(progress.batchId)
                for stage in _SPARK_STAGES:
                    stages[stage].append(progress.durationMs.get(stage, 0))
    return stages
