"""The metrics that a job on a cluster has besides those of every job. docs/scale.md has the table."""

from enum import Enum

from pipelines.control.metric_definitions import Metric, MetricDefinition, MetricKind

__all__ = ["METRICS_OF_EVERY_JOB", "ClusterMetric"]

METRICS_OF_EVERY_JOB = (Metric.READY, Metric.OPS_LAG, Metric.OPS_OVERDUE, Metric.OWNER_INFO, Metric.OWNER_SINCE)
"""Those of an embedded job that one on a cluster has, too."""


class ClusterMetric(Enum):
    """Every metric of the driver; `metrics_reference` generates the table."""

    SHARD_LAG = MetricDefinition(
        "popstream_shard_lag_records",
        MetricKind.GAUGE,
        "Records of a partition that the last micro-batch of a query left unread. Of `decide_ops` a partition is a"
        " shard. A query that fails has none until it works again",
        "that of `audit` grows for minutes: rows and dead letters are written more slowly than they are decided",
        ("query", "partition"),
    )
    SHARD_RECENT = MetricDefinition(
        "popstream_shard_recent_records",
        MetricKind.GAUGE,
        "Records of a shard that were decided in the last ten minutes",
        labels=("partition",),
    )
    SHARD_SKEW = MetricDefinition(
        "popstream_shard_skew",
        MetricKind.GAUGE,
        "What the busiest shard had of them, as a multiple of the mean; 1: all had as many",
        "above 3 while `popstream_ops_lag_records` grows: more executors will not help, see the runbook",
    )
    SPARK_BATCH_ID = MetricDefinition(
        "popstream_cluster_spark_batch_id", MetricKind.GAUGE, "Number of the last micro-batch", labels=("query",)
    )
    MICRO_BATCH_RECORDS = MetricDefinition(
        "popstream_cluster_micro_batch_records", MetricKind.GAUGE, "Records of the last micro-batch", labels=("query",)
    )
    MICRO_BATCH_SECONDS = MetricDefinition(
        "popstream_cluster_micro_batch_seconds",
        MetricKind.GAUGE,
        "Seconds that the last micro-batch took",
        labels=("query",),
    )
    STATE_KEYS = MetricDefinition(
        "popstream_cluster_state_keys", MetricKind.GAUGE, "Keys of the state, in all shards", labels=("query",)
    )
    STATE_BYTES = MetricDefinition(
        "popstream_cluster_state_bytes",
        MetricKind.GAUGE,
        "Memory of the state store, in all executors: compare it with `executor_memory`",
        labels=("query",),
    )
    AUDIT_FAILURES = MetricDefinition(
        "popstream_audit_failures",
        MetricKind.GAUGE,
        "How often the query `audit`, which writes the tables, has failed and was started again",
        "it rises: the log of the driver says why",
    )
    AUDIT_OVERDUE = MetricDefinition(
        "popstream_audit_overdue_records",
        MetricKind.GAUGE,
        "Entries of `<prefix>.cluster_audit` that are not written and older than half of its retention, as of the last"
        " minute",
        "above 0: retention will delete rows and dead letters. Raise `retention.ms` of the topic until they are",
    )
