"""The state of a job on a cluster as commands reach it: its log, a Spark on this machine that reads it, its prefix."""

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from checkpoints.prefix_owner import Owner
from checkpoints.reconcile import LogFound
from connectors.jars.resolve import s3_jars, spark_jars
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.topic_admin import TopicFacts
from connectors.spark_cluster.storage import checkpoint_conf, is_on_s3
from pipelines.cli.job_sources import open_kafka, ops_topic_of
from pipelines.cli.spark_tools import session_of_command
from pipelines.cluster.checkpoint_identity import CheckpointIdentity, stored_identity
from pipelines.cluster.session import cluster_session
from pipelines.job_settings import JobSettings
from pipelines.process.prefix_ownership import PrefixOwnership
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, Invalid, Unavailable

__all__ = ["StatePlace", "cluster_spark", "identity_in", "owned", "state_place"]


class StatePlace(NamedTuple):
    """The log of a job, and Spark to read and write its state."""

    connection: KafkaConnection
    ops: TopicFacts
    log: LogFound
    spark: SparkSession
    checkpoint: str

    def identity(self, prefix: str) -> CheckpointIdentity:
        """Return whose state the checkpoint is.

        Raises:
            Invalid: There is none, or it belongs to another prefix.
            Corrupt: The ops topic is not the one that it was decided from.
            Unavailable: The place cannot be reached.
        """
        found = identity_in(self.spark, self.checkpoint)
        found.require(self.checkpoint, prefix, self.ops)
        return found


@contextlib.contextmanager
def state_place(
    settings: JobSettings, checkpoint: str, var: Path, *, tables: str | None = None
) -> Iterator[StatePlace]:
    """Reach the log of a job, and start a Spark that reaches its state.

    Args:
        settings: Of the job; they name its Kafka.
        checkpoint: Path or URL of the state; it need not exist.
        var: The folder with the jars.
        tables: Path or URL of the tables, if they are read, too.

    Raises:
        Invalid: There is no such ops topic.
        Unavailable: Kafka does not answer.
        SparkError: Spark failed, in the block too.
    """
    with open_kafka(settings, var) as connection, cluster_spark(settings, checkpoint, var, tables=tables) as spark:
        ops = ops_topic_of(connection, settings.topic_prefix, advice="name the prefix of the job with --prefix")
        yield StatePlace(connection, ops, read_log_bounds(connection, ops), spark, checkpoint)


@contextlib.contextmanager
def cluster_spark(
    settings: JobSettings, checkpoint: str, var: Path, *, tables: str | None = None
) -> Iterator[SparkSession]:
    """Start a Spark on this machine, with the state store of a cluster. It reaches the state and the named tables.

    Raises:
        SparkError: Spark failed, in the block too.
    """
    needs_s3 = is_on_s3(checkpoint) or is_on_s3(tables or "")
    found = [*spark_jars(var.absolute()), *(s3_jars(var.absolute()) if needs_s3 else ())]

    def started(conf: dict[str, str]) -> SparkSession:
        own = {
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in found),
        }
        chosen = {**own, **conf, **checkpoint_conf(checkpoint, settings.hadoop_conf), **settings.session_conf}
        return cluster_session("popstream-state", os.cpu_count() or 1, chosen)

    with session_of_command(started) as session:
        yield session


@contextlib.contextmanager
def owned(
    settings: JobSettings, place: StatePlace, epochs: tuple[str, ...], *, if_lost: str
) -> Iterator[Callable[[], None]]:
    """Own the prefix meanwhile for the first of `epochs`, so that no job of it and no other command runs or starts.

    Args:
        settings: Of the job.
        place: Where its state is.
        epochs: The state epoch of the state, and those that it continues.
        if_lost: What has come of the command, and what to do, if it has lost the prefix.

    Yields:
        What raises if the prefix is lost, to be called before anything is written that cannot be taken back. It is
        called once more after the block.

    Raises:
        Fenced: A job or another command runs, or has taken the prefix meanwhile.
        Invalid: The prefix belongs to another state.
        Unavailable: Kafka does not answer.
    """
    prefix = settings.topic_prefix
    ownership = PrefixOwnership(
        prefix,
        OwnerLog(place.connection, Topics.of(prefix).owner, Owner),
        folder=place.checkpoint,
        # Of this run alone: another command on the same checkpoint waits whether this one is silent.
        place=f"{place.checkpoint} {uuid.uuid4().hex}",
        ops_topic_id=place.ops.topic_id,
        state_epoch=lambda: epochs[0],
        on_failure=lambda _: None,  # it is raised where the command looks
    )

    def require() -> None:
        try:
            ownership.require()
        except Fenced as error:
            message = f"a job or another command has taken the prefix {prefix} meanwhile: {if_lost}"
            raise Fenced(message, subject=prefix) from error
        except Unavailable as error:
            message = f"{error}: {if_lost}"
            raise Unavailable(message, subject=prefix) from error

    try:
        ownership.take(epochs, take_over=False)
        yield require
        require()
    finally:
        ownership.release()


def identity_in(spark: SparkSession, checkpoint: str) -> CheckpointIdentity:
    """Return whose state a checkpoint is.

    Raises:
        Invalid: It is no state of a job.
        Corrupt: Its file cannot be read.
        Unavailable: The place cannot be reached.
    """
    found = stored_identity(spark, checkpoint)
    if found is None:
        message = f"there is no state of a job in {checkpoint}"
        raise Invalid(message, subject=checkpoint)
    return found
