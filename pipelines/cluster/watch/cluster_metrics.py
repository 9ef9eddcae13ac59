"""Prometheus metrics of a job on a cluster, from the progress that Spark reports after each micro-batch.

The label `query` is `decide_ops`, `audit` or `build_units`; `partition` is one of the ops topic, a shard, or of the
topic that another query reads.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.cluster.watch.query_progress import Progress, ReportingQuery
from pipelines.control.messages import JobReport

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
        lag = _gauge("shard_lag_records", "records of a partition that were not read yet", "query", "partition")
        number = _gauge("cluster_batch_id", "number of the last micro-batch", "query")
        records = _gauge("cluster_batch_records", "records of the last micro-batch", "query")
        seconds = _gauge("cluster_batch_seconds", "seconds that the last micro-batch took", "query")
        keys = _gauge("cluster_state_keys", "keys of the state, in all shards", "query")
        memory = _gauge("cluster_state_bytes", "memory of the state store, in all executors", "query")
        for query in self._queries():
            reported = query.lastProgress
            if reported is None:
                continue
            name, progress = query.name or "", Progress.of(reported)
            number.add_metric([name], progress.batch_id)
            records.add_metric([name], progress.records)
            seconds.add_metric([name], progress.seconds)
            for partition, behind in progress.lags.items():
                lag.add_metric([name, str(partition)], behind)
            if progress.state_keys is not None and progress.state_bytes is not None:
                keys.add_metric([name], progress.state_keys)
                memory.add_metric([name], progress.state_bytes)
        yield from (lag, number, records, seconds, keys, memory)


def _of_job(report: JobReport) -> Iterator[Metric]:
    """Yield what the embedded job has by the same names, and how the recent records are spread over shards."""
    ready = _gauge("ready", "1 while nothing keeps the job from deciding or delivering")
    ready.add_metric([], not report.not_ready_reasons)
    lag = _gauge("ops_lag_records", "offsets of the ops topic that are not decided")
    overdue = _gauge("ops_overdue_records", "undecided offsets that are older than half of the retention")
    lag.add_metric([], report.ops_lag or 0)
    overdue.add_metric([], report.ops_overdue or 0)
    recent = _gauge("shard_recent_records", "offsets of a partition decided in the last ten minutes", "partition")
    skew = _gauge("shard_skew", "recent offsets of the busiest shard as a multiple of the mean; 1: all had as many")
    failures = _gauge("audit_failures", "how often the query that writes the tables has failed and was started again")
    if (cluster := report.cluster) is not None:
        for shard in cluster.shards:
            recent.add_metric([str(shard.partition)], shard.recent)
        if cluster.skew is not None:
            skew.add_metric([], cluster.skew)
        failures.add_metric([], cluster.audit_failures)
    yield from (ready, lag, overdue, recent, skew, failures)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"popstream_{name}", text, labels=labels)
