"""Prometheus metrics of a job on a cluster, from the progress that Spark reports after each micro-batch.

The label `query` is `decide_ops`, `audit` or `build_units`; `partition` is one of the ops topic, a shard, or of the
topic that another query reads.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.cluster.watch.query_progress import Progress, ReportingQuery
from pipelines.control.cluster_metric_definitions import METRICS_OF_EVERY_JOB, ClusterMetric
from pipelines.control.messages import JobReport
from pipelines.control.metric_definitions import Metric as JobMetric

__all__ = ["ClusterMetrics"]


class ClusterMetrics(Collector):
    """Reads the progress of queries, and the report of the job, when it is asked.

    Args:
        queries: Returns the queries that run.
        report: Returns what the job reports; None: the metrics of queries alone.
    """

    def __init__(
        self, queries: Callable[[], Iterable[ReportingQuery]], report: Callable[[], JobReport] | None = None
    ) -> None:
        self._queries = queries
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._of_queries()
        if self._report is not None:
            yield from _of_job(self._report())

    def _of_queries(self) -> Iterator[Metric]:
        lag, number = _gauge(ClusterMetric.SHARD_LAG), _gauge(ClusterMetric.SPARK_BATCH_ID)
        records, seconds = _gauge(ClusterMetric.MICRO_BATCH_RECORDS), _gauge(ClusterMetric.MICRO_BATCH_SECONDS)
        keys, memory = _gauge(ClusterMetric.STATE_KEYS), _gauge(ClusterMetric.STATE_BYTES)
        for query in self._queries():
            reported = query.lastProgress
            if reported is None:
                continue
            name, progress = query.name or "", Progress.of(reported)
            number.add_metric([name], progress.spark_batch_id)
            records.add_metric([name], progress.records)
            seconds.add_metric([name], progress.seconds)
            for partition, behind in progress.lags.items():
                lag.add_metric([name, str(partition)], behind)
            if progress.state_keys is not None and progress.state_bytes is not None:
                keys.add_metric([name], progress.state_keys)
                memory.add_metric([name], progress.state_bytes)
        yield from (lag, number, records, seconds, keys, memory)


def _of_job(report: JobReport) -> Iterator[Metric]:
    """Yield what the embedded job has by the same names, and what only a cluster has."""
    ready, lag, overdue, owner, since = map(_gauge, METRICS_OF_EVERY_JOB)
    ready.add_metric([], not report.not_ready_reasons)
    lag.add_metric([], report.ops_lag or 0)
    overdue.add_metric([], report.ops_overdue or 0)
    if (found := report.owner) is not None:
        owner.add_metric([found.prefix, found.state, found.host, found.folder], 1)
        since.add_metric([], found.since_ms / 1000)
    yield from (ready, lag, overdue, owner, since)
    recent, skew = _gauge(ClusterMetric.SHARD_RECENT), _gauge(ClusterMetric.SHARD_SKEW)
    failures, waiting = _gauge(ClusterMetric.AUDIT_FAILURES), _gauge(ClusterMetric.AUDIT_OVERDUE)
    if (cluster := report.cluster) is not None:
        for shard in cluster.shards:
            recent.add_metric([str(shard.partition)], shard.recent)
        if cluster.skew is not None:
            skew.add_metric([], cluster.skew)
        failures.add_metric([], cluster.audit_failures)
        waiting.add_metric([], cluster.audit_overdue)
    yield from (recent, skew, failures, waiting)


def _gauge(metric: JobMetric | ClusterMetric) -> GaugeMetricFamily:
    name, _, text, _, labels = metric.value
    return GaugeMetricFamily(name, text, labels=labels)
