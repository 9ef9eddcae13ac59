"""Prometheus metrics of a job on a cluster, from the progress that Spark reports after each micro-batch.

The label `query` is `decide_ops` or `audit`; `partition` is one of the ops topic, a shard, or of the audit topic.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["ClusterMetrics", "ReportingQuery"]

_MS_PER_S = 1_000


class ReportingQuery(Protocol):
    """A query of Spark."""

    @property
    def name(self) -> str | None:
        """Its name."""

    @property
    def lastProgress(self) -> Any:  # noqa: N802, ANN401 - Spark's name, and a mapping
        """What its last micro-batch did, or None."""


class ClusterMetrics(Collector):
    """Reads the progress of queries when it is asked.

    Args:
        queries: Returns the queries that run.
    """

    def __init__(self, queries: Callable[[], Iterable[ReportingQuery]]) -> None:
        self._queries = queries

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        lag = _gauge("shard_lag_records", "records of a partition that were not read yet", "partition")
        number = _gauge("cluster_batch_id", "number of the last micro-batch")
        records = _gauge("cluster_batch_records", "records of the last micro-batch")
        seconds = _gauge("cluster_batch_seconds", "seconds that the last micro-batch took")
        keys = _gauge("cluster_state_keys", "keys of the state, in all shards")
        memory = _gauge("cluster_state_bytes", "memory of the state store, in all executors")
        for query in self._queries():
            progress = query.lastProgress
            if progress is None:
                continue
            name = query.name or ""
            number.add_metric([name], progress["batchId"])
            records.add_metric([name], progress["numInputRows"])
            seconds.add_metric([name], progress["durationMs"].get("triggerExecution", 0) / _MS_PER_S)
            for partition, behind in _lags(progress["sources"]).items():
                lag.add_metric([name, str(partition)], behind)
            for operator in progress["stateOperators"]:
                keys.add_metric([name], operator["numRowsTotal"])
                memory.add_metric([name], operator["memoryUsedBytes"])
        yield from (lag, number, records, seconds, keys, memory)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"popstream_{name}", text, labels=("query", *labels))


def _lags(sources: Iterable[Any]) -> dict[int, int]:
    """Return, by partition, the offsets between what was read and the end of the topic."""
    lags: dict[int, int] = {}
    for source in sources:
        ends, latest = (_offsets(source[field]) for field in ("endOffset", "latestOffset"))
        for topic, partitions in latest.items():
            for partition, end in partitions.items():
                read = ends.get(topic, {}).get(partition, 0)
                lags[int(partition)] = max(0, end - read)
    return lags


def _offsets(reported: Any) -> Mapping[str, Mapping[str, int]]:  # noqa: ANN401 - JSON, as text or decoded
    decoded = json.loads(reported) if isinstance(reported, str) else reported
    return decoded or {}
