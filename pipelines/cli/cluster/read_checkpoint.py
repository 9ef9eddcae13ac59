"""`popstream status` and `popstream queue` with `--checkpoint`: what a job on a cluster has committed."""

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from connectors.kafka.own_topics import Topics
from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.cli.cluster.state_place import cluster_spark, identity_in
from pipelines.cli.exits import say
from pipelines.cli.job_sources import log_of
from pipelines.cli.spark_tools import working
from pipelines.cli.state.queue import show_queues
from pipelines.cli.state.status import show_status
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.committed import Committed, last_committed
from pipelines.cluster.watch.checkpoint_view import answer_from_checkpoint
from pipelines.control.cluster_report import ClusterReport, ShardReport
from pipelines.control.messages import Status, StatusRequest
from pipelines.job_settings import JobSettings
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid

__all__ = ["run_queue_of_checkpoint", "run_status_of_checkpoint"]

COMMITTED = "this is what the job has committed; with `api_port` a running one says more: `popstream status --api URL`"


def run_status_of_checkpoint(
    settings: JobSettings, checkpoint: str, request: StatusRequest, *, only_ready: bool, var: Path, as_json: bool
) -> None:
    """Print how far the state of a checkpoint is, and its queues; with the Kafka of the settings, its lag.

    Raises:
        Invalid: There is no state of a job, no such group or topic, or `only_ready`.
        Corrupt: A file of the checkpoint cannot be read.
        Unavailable: The place or Kafka cannot be reached, or the job has replaced what was being read.
    """
    if only_ready:
        message = "a checkpoint does not say whether its job runs: ask the driver, `popstream status --ready --api URL`"
        raise Invalid(message)
    with cluster_spark(settings, checkpoint, var) as spark, working("reading the state"):
        identity = identity_in(spark, checkpoint)
        status = _status(spark, settings, checkpoint, identity, request)
    show_status(status, request, as_json=as_json)
    say(COMMITTED)


def run_queue_of_checkpoint(
    settings: JobSettings, checkpoint: str, request: QueueRequest, *, var: Path, as_json: bool
) -> None:
    """Print how far queues are built, and units of them.

    Raises:
        Invalid: There is no state of a job, or no such queue is built.
        Unavailable: The place cannot be reached, or the job has replaced what was being read.
    """
    with cluster_spark(settings, checkpoint, var) as spark, working("reading the state"):
        identity_in(spark, checkpoint)
        views = answer_from_checkpoint(spark, checkpoint, request)
    show_queues(views, as_json=as_json)


def _status(
    spark: SparkSession, settings: JobSettings, checkpoint: str, identity: CheckpointIdentity, request: StatusRequest
) -> Status:
    ops = Topics.of(identity.prefix).ops
    committed = last_committed(spark, decide_checkpoint(checkpoint), ops) or Committed(-1, identity.first_offset)
    found = answer_from_checkpoint(spark, checkpoint, request)
    ends = None
    if settings.connection is not None:
        reach_kafka(settings.connection)
        ends = log_of(settings.connection, identity.prefix).end_offset
    decided = {number: committed.ends.get(number, 0) for number in range(identity.ops_partitions)}
    lags = {} if ends is None else {number: max(0, ends.get(number, 0) - offset) for number, offset in decided.items()}
    return msgspec.structs.replace(
        found,
        apply_seq=committed.spark_batch_id + 1,
        prefix=identity.prefix,
        ops_lag=sum(lags.values()) if lags else None,
        cluster=ClusterReport(
            shards=[
                ShardReport(partition=number, next_offset=offset, lag=lags.get(number))
                for number, offset in decided.items()
            ]
        ),
    )
