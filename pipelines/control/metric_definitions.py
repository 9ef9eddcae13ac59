"""The metrics of the job: names, types, labels and meanings. docs/monitoring.md has the table."""

from enum import Enum, StrEnum
from typing import NamedTuple

__all__ = ["LANE_METRICS", "Metric", "MetricDefinition", "MetricKind"]


class MetricKind(StrEnum):
    """Prometheus' types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricDefinition(NamedTuple):
    """One metric.

    Attributes:
        name: As Prometheus shows it.
        kind: Its type.
        help: Its meaning, with its unit.
        alert: When to alert on it; empty: it is for dashboards.
        labels: Names of its labels.
    """

    name: str
    kind: MetricKind
    help: str
    alert: str = ""
    labels: tuple[str, ...] = ()


GROUP_LABELS = ("topic", "group")


class Metric(Enum):
    """Every metric of the job; `metrics_reference` generates the table."""

    READY = MetricDefinition(
        "popstream_ready",
        MetricKind.GAUGE,
        "1 while nothing keeps the job from deciding or delivering",
        "0 for minutes",
    )
    OPS_LAG = MetricDefinition(
        "popstream_ops_lag_records",
        MetricKind.GAUGE,
        "Offsets of the ops topic that are not decided",
        "it grows for minutes: the job is slower than its clients",
    )
    OPS_OVERDUE = MetricDefinition(
        "popstream_ops_overdue_records",
        MetricKind.GAUGE,
        "Undecided offsets that are older than half of the ops topic's retention",
        "above 0: retention will delete undecided operations. Raise `retention.ms` of the topic until the job has"
        " caught up",
    )
    OUTBOX_BYTES = MetricDefinition(
        "popstream_outbox_bytes",
        MetricKind.GAUGE,
        "Bytes that are decided and not yet delivered to Kafka and Delta",
        "it grows: Kafka or Delta does not take what was decided",
    )
    DELTA_LAG = MetricDefinition(
        "popstream_delta_lag_write_batches",
        MetricKind.GAUGE,
        "WriteBatches whose audit rows are not yet in Delta",
    )
    DELTA_LAG_SECONDS = MetricDefinition(
        "popstream_delta_lag_seconds",
        MetricKind.GAUGE,
        "Seconds since the oldest micro-batch was decided whose audit rows are not yet in Delta, by this process; 0:"
        " none",
        "above some times `flush_interval_s`: Delta does not take what was decided",
    )
    REPLICA_LAG = MetricDefinition(
        "popstream_replica_lag_seconds",
        MetricKind.GAUGE,
        "Seconds since the replica of the tables (`tables_replica`) had every commit; 0: there is none",
        "above some times `flush_interval_s`: its place does not answer, or refuses. `popstream status` says why",
    )
    RESTARTS = MetricDefinition(
        "popstream_restarts_total",
        MetricKind.COUNTER,
        "Jobs started in this process after one that failed",
        "it rises repeatedly",
    )
    QUARANTINED = MetricDefinition(
        "popstream_quarantined_records",
        MetricKind.GAUGE,
        "Records that are skipped because deciding them failed three times",
        "it rises: see the runbook in [reliability.md](reliability.md)",
    )
    DAMAGED_FILES = MetricDefinition(
        "popstream_damaged_files",
        MetricKind.GAUGE,
        "Files of the stores in which a snapshot or the scrub found damage since the job started",
        "above 0: see the runbook in [reliability.md](reliability.md)",
    )
    FORGOTTEN_DEDUP_IDS = MetricDefinition(
        "popstream_forgotten_dedup_ids",
        MetricKind.GAUGE,
        "Deduplication ids that were forgotten within `dedup_window_s`, as a queue had more than `dedup_ids_max`",
        "it rises: repeats of their messages are delivered. Raise `dedup_ids_max`, or lower `dedup_window_s`",
    )
    REJECTED = MetricDefinition(
        "popstream_rejected_total",
        MetricKind.COUNTER,
        "Records that are not readable as operations, lack a valid signature, or are quarantined, by reason",
        "it rises: a client writes invalid operations (with NOT_SIGNED or BAD_SIGNATURE: such as it may not send). The"
        " table `rejected` holds them",
        labels=("reason",),
    )
    RECORDS = MetricDefinition(
        "popstream_records_total", MetricKind.COUNTER, "Records of the ops topic that were decided"
    )
    REFUSED = MetricDefinition(
        "popstream_refused_total", MetricKind.COUNTER, "Offset runs that were refused with a code"
    )
    STEP_SECONDS = MetricDefinition(
        "popstream_step_seconds",
        MetricKind.HISTOGRAM,
        "Seconds per step of a micro-batch: fetch, order, decode, prefetch, decide, write, publish",
        labels=("step",),
    )
    ANSWER_SECONDS = MetricDefinition(
        "popstream_answer_seconds",
        MetricKind.HISTOGRAM,
        "Seconds from Kafka's timestamp of an operation to the publication of its answers; those of a pop that waited"
        " count from the operation that ended the wait",
        "its 99th percentile is above what clients can wait",
    )
    OWNER_INFO = MetricDefinition(
        "popstream_owner_info",
        MetricKind.GAUGE,
        "1, with the owner of the prefix: the first 8 characters of its state epoch, its host and its folder",
        "there are two at once, which can be only for the seconds of a take-over",
        ("prefix", "state", "host", "folder"),
    )
    OWNER_SINCE = MetricDefinition(
        "popstream_owner_since_timestamp_seconds",
        MetricKind.GAUGE,
        "Unix time at which this job took its prefix",
    )
    LANE_GROUPS = MetricDefinition(
        "popstream_lane_groups",
        MetricKind.GAUGE,
        "Groups of all topics; above `metrics_groups_max` those with the least lag are summed as `(other)`",
    )
    LANE_FIGURES_AGE = MetricDefinition(
        "popstream_lane_figures_age_seconds",
        MetricKind.GAUGE,
        "Seconds since the figures about groups were read from the state, which takes place every 1 to 6 seconds",
        "above 30: the figures below are old",
    )
    LANE_LAG = MetricDefinition(
        "popstream_lane_lag_messages",
        MetricKind.GAUGE,
        "Queue offsets that the group has not acked, over all queues that it has popped; a unit of a batch topic counts"
        " as one",
        "it grows for minutes: the group is slower than its producers",
        GROUP_LABELS,
    )
    LANE_IN_FLIGHT = MetricDefinition(
        "popstream_lane_in_flight_messages", MetricKind.GAUGE, "Of these, leased to a consumer", "", GROUP_LABELS
    )
    LANE_AVAILABLE = MetricDefinition(
        "popstream_lane_available_messages",
        MetricKind.GAUGE,
        "Of these, handed out before, and waiting for redelivery",
        "",
        GROUP_LABELS,
    )
    LANE_OLDEST = MetricDefinition(
        "popstream_lane_oldest_unacked_seconds",
        MetricKind.GAUGE,
        "Seconds since the oldest unacked message was dispatched; of one that was dispatched before the job started,"
        " since the last operation of its queue before the start; 0: all are acked",
        "above the time within which the group is to handle a message",
        GROUP_LABELS,
    )
    LANE_DELIVERED = MetricDefinition(
        "popstream_lane_delivered_total",
        MetricKind.COUNTER,
        "Messages handed out, again or for the first time",
        "",
        GROUP_LABELS,
    )
    LANE_REDELIVERED = MetricDefinition(
        "popstream_lane_redelivered_total",
        MetricKind.COUNTER,
        "Of these, handed out for the second or a later time",
        "it rises half as fast as all deliveries: handlers fail, or take longer than their leases",
        GROUP_LABELS,
    )
    LANE_DEAD_LETTERED = MetricDefinition(
        "popstream_lane_dead_lettered_total",
        MetricKind.COUNTER,
        "Messages that the group gave up",
        "it rises: see the table `deliveries` for the cause",
        GROUP_LABELS,
    )
    LANE_REFUSED = MetricDefinition(
        "popstream_lane_refused_total",
        MetricKind.COUNTER,
        "Offset runs that were refused, by reason; those of groups without lanes are in `(other)`. A series begins with"
        " the first refusal",
        "it rises: [wire.md](wire.md) has the reasons",
        (*GROUP_LABELS, "reason"),
    )


LANE_METRICS = (
    Metric.ANSWER_SECONDS,
    Metric.LANE_GROUPS,
    Metric.LANE_FIGURES_AGE,
    Metric.LANE_LAG,
    Metric.LANE_IN_FLIGHT,
    Metric.LANE_AVAILABLE,
    Metric.LANE_OLDEST,
    Metric.LANE_DELIVERED,
    Metric.LANE_REDELIVERED,
    Metric.LANE_DEAD_LETTERED,
    Metric.LANE_REFUSED,
)
"""Those whose series come and go with groups, or that are counted from rows (`LaneMetrics`)."""
