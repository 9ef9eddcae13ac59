"""Takes the state of a job to a cluster and back, or repartitions it, while no job of its prefix runs."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import applied_of
from checkpoints.ownership import Ownership
from checkpoints.prefix_owner import Owner
from checkpoints.reconcile import LogFound
from connectors.delta.spark_errors import spark_errors_kept
from connectors.jars.resolve import s3_jars, spark_jars
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.topic_admin import TopicFacts, describe
from connectors.spark_cluster.object_store import is_on_s3, object_store_conf
from pipelines.cli.exits import say
from pipelines.cli.spark_tools import working
from pipelines.cli.state.restore_state import the_kafka_of
from pipelines.cli.state.snapshot import snapshots_of
from pipelines.cli.target import require_state
from pipelines.cluster.checkpoint_identity import CheckpointIdentity, stored_identity
from pipelines.cluster.migration.stored_state import Migrated
from pipelines.cluster.migration.to_cluster import migrate_to_cluster
from pipelines.cluster.migration.to_folder import migrate_to_folder
from pipelines.cluster.rescale import rescale
from pipelines.cluster.session import cluster_session
from pipelines.job_settings import JobSettings
from pipelines.process.jvm import ended_jvm, output_in, silence_query_errors
from pipelines.process.prefix_ownership import PrefixOwnership
from pipelines.process.signals import held_signals
from pipelines.recovery.ops_log import found_log
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, Invalid

__all__ = ["run_rescale", "run_to_cluster", "run_to_folder"]


class _Place(NamedTuple):
    """The log of a job, and Spark to read and write its state."""

    connection: KafkaConnection
    ops: TopicFacts
    log: LogFound
    spark: SparkSession


def run_to_cluster(settings: JobSettings, checkpoint: str, *, only: str | None, var: Path, as_json: bool) -> None:
    """Write the state of a stopped job for a cluster.

    Raises:
        Invalid: There is a state already, or the outbox holds what is not delivered yet.
        Corrupt: The log does not reach back to the state.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    folder = settings.job_folder.absolute()
    with contextlib.ExitStack() as stack:
        if only is None:
            require_state(folder)
            stack.enter_context(Ownership(folder.lock))
            path = folder.state
        else:
            path = stack.enter_context(_fetched(settings, only))
        place = stack.enter_context(_place(settings, checkpoint, var))
        state = stack.enter_context(RocksStore(path, read_only=True))
        applied = applied_of(state)
        stack.enter_context(_owned(settings, place, applied.epochs, checkpoint))
        migrated = migrate_to_cluster(
            place.spark, state, prefix=settings.topic_prefix, ops=place.ops, log=place.log, checkpoint=checkpoint
        )
    _report(migrated, f"written for the cluster to {checkpoint}", as_json=as_json)


def run_to_folder(settings: JobSettings, checkpoint: str, *, var: Path, as_json: bool) -> None:
    """Write the state of a stopped job on a cluster to a folder.

    Raises:
        Invalid: The folder has a state, or the checkpoint is not that of the prefix.
        Corrupt: The log does not reach back to the state.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    folder = settings.job_folder.absolute()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(settings, checkpoint, var))
        identity = _identity(settings, place, checkpoint)
        stack.enter_context(_owned(settings, place, identity.epochs, checkpoint))
        migrated = migrate_to_folder(
            place.spark, checkpoint, prefix=settings.topic_prefix, ops=place.ops, log=place.log, folder=folder
        )
    _report(migrated, f"written to {folder.root}", as_json=as_json)


def run_rescale(settings: JobSettings, checkpoint: str, partitions: int, *, var: Path, as_json: bool) -> None:
    """Repartition the state of a stopped job on a cluster.

    Raises:
        Invalid: The checkpoint is not that of the prefix, or this Spark cannot do it.
        Corrupt: The state is another one afterwards.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(settings, checkpoint, var))
        identity = _identity(settings, place, checkpoint)
        stack.enter_context(_owned(settings, place, identity.epochs, checkpoint))
        rescaled = rescale(place.spark, checkpoint, identity, partitions)
    _report(rescaled, f"in {partitions} partitions", as_json=as_json)


@contextlib.contextmanager
def _place(settings: JobSettings, checkpoint: str, var: Path) -> Iterator[_Place]:
    with the_kafka_of(settings, var) as connection, _session(settings, checkpoint, var) as spark:
        name = Topics.of(settings.topic_prefix).ops
        found = describe(connection, [name])
        if name not in found:
            message = f"there is no topic {name}: name the prefix of the job with --prefix"
            raise Invalid(message, subject=name)
        yield _Place(connection, found[name], found_log(connection, found[name]), spark)


@contextlib.contextmanager
def _session(settings: JobSettings, checkpoint: str, var: Path) -> Iterator[SparkSession]:
    """Start a Spark on this machine, with the state store of a cluster."""
    found = [*spark_jars(var.absolute()), *(s3_jars(var.absolute()) if is_on_s3(checkpoint) else ())]
    jars = os.pathsep.join(str(jar) for jar in found)
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch, ended_jvm():
        conf = {
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraClassPath": jars,
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            **object_store_conf(checkpoint),
            **settings.session_conf,
        }
        with working("starting Spark"), held_signals(), output_in(Path(os.devnull)):
            session = cluster_session("popstream-state", os.cpu_count() or 1, conf)
        silence_query_errors()
        try:
            with spark_errors_kept():
                yield session
        finally:
            session.stop()


@contextlib.contextmanager
def _fetched(settings: JobSettings, snapshot_id: str) -> Iterator[Path]:
    """Yield the folder of the state in a snapshot."""
    snapshots = snapshots_of(settings)
    chosen = next((each for each in snapshots.list() if each.id == snapshot_id), None)
    if chosen is None:
        message = f"there is no snapshot {snapshot_id}: `popstream snapshot --list` shows all"
        raise Invalid(message, subject=snapshot_id)
    with tempfile.TemporaryDirectory(prefix="popstream-snapshot-") as target:
        snapshots.fetch(chosen, Path(target))
        yield Path(target) / "state"


@contextlib.contextmanager
def _owned(settings: JobSettings, place: _Place, epochs: tuple[str, ...], checkpoint: str) -> Iterator[None]:
    """Own the prefix meanwhile for the first of `epochs`, so that no job of it runs or starts."""
    failures: list[BaseException] = []
    ownership = PrefixOwnership(
        settings.topic_prefix,
        OwnerLog(place.connection, Topics.of(settings.topic_prefix).owner, Owner),
        folder=checkpoint,
        place=checkpoint,
        ops_topic_id=place.ops.topic_id,
        state_epoch=lambda: epochs[0],
        on_failure=failures.append,
    )
    try:
        ownership.take(epochs, take_over=False)
        yield
    finally:
        ownership.release()
    if failures:
        message = "a job has taken the prefix meanwhile: what was written may lack its decisions; remove it"
        raise Fenced(message, subject=settings.topic_prefix) from failures[0]


def _identity(settings: JobSettings, place: _Place, checkpoint: str) -> CheckpointIdentity:
    identity = stored_identity(place.spark, checkpoint)
    if identity is None:
        message = f"there is no state of a job in {checkpoint}"
        raise Invalid(message, subject=checkpoint)
    identity.require(checkpoint, settings.topic_prefix, place.ops)
    return identity


def _report(migrated: Migrated, what: str, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"keys": migrated.keys, "digest": migrated.digest}).decode())
        return
    say(f"{migrated.keys:,} keys {what}; both copies have the digest {migrated.digest}")
