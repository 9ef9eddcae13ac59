"""What a command reads that works on the state of a job: its Kafka, its log, its snapshots."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from checkpoints import prefix_owner
from checkpoints.prefix_owner import Owner
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import SnapshotStore
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.topic_admin import TopicFacts, describe
from pipelines.job_settings import JobSettings
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid

__all__ = ["log_of", "open_kafka", "ops_topic_of", "require_keys", "snapshots_of"]


@contextlib.contextmanager
def open_kafka(settings: JobSettings, var: Path) -> Iterator[KafkaConnection]:
    """Yield the connection to the job's Kafka. An embedded broker is started for this time.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: There is no Kafka to ask.
    """
    connection = settings.connection
    if connection is not None:
        reach_kafka(connection)
        yield connection
        return
    folder = settings.job_folder.absolute().kafka
    if not folder.is_dir():
        message = f"there is no embedded Kafka in {folder}: name the job's Kafka with --bootstrap-servers"
        raise Invalid(message, subject=str(folder))
    with EmbeddedKafka(folder, jars=kafka_jars(var.absolute())) as kafka:
        yield kafka.connection


def ops_topic_of(connection: KafkaConnection, prefix: str, *, advice: str = "is the prefix right?") -> TopicFacts:
    """Describe a job's ops topic.

    Raises:
        Invalid: The topic does not exist; the message ends with the advice.
    """
    name = Topics.of(prefix).ops
    facts = describe(connection, [name]).get(name)
    if facts is None:
        message = f"there is no topic {name}: {advice}"
        raise Invalid(message, subject=name)
    return facts


def log_of(connection: KafkaConnection, prefix: str) -> LogFound:
    """Return the offsets of a job's ops topic.

    Raises:
        Invalid: The topic does not exist.
    """
    return read_log_bounds(connection, ops_topic_of(connection, prefix))


def require_keys(connection: KafkaConnection, settings: JobSettings) -> None:
    """Refuse to decide a log again without keys that its job has (`prefix_owner.require_keys`).

    Raises:
        Invalid: The settings lack some.
        Unavailable: Kafka does not answer.
    """
    name = Topics.of(settings.topic_prefix).owner
    if describe(connection, [name]).get(name) is not None:
        last = OwnerLog(connection, name, Owner).last()
        ops = ops_topic_of(connection, settings.topic_prefix)
        owner = None if last is None else last.value
        prefix_owner.require_keys(settings.topic_prefix, owner, settings.keys_of, ops.topic_id)


def snapshots_of(settings: JobSettings) -> SnapshotStore:
    """Return the store of the job's snapshots."""
    return SnapshotStore(settings.snapshots or str(settings.job_folder.absolute().snapshots))
