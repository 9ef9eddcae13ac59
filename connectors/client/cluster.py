"""What a client asks Kafka about message topics: their ids, their queues, and where each queue starts and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code

from connectors.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from connectors.client.settings import ClientSettings

__all__ = ["MessageTopic", "describe_topic"]

TIMEOUT_MS = 30_000


class MessageTopic(msgspec.Struct, frozen=True):
    """A message topic as Kafka knows it.

    Attributes:
        topic_id: Text of a UUID; another one when the topic is deleted and made again.
        starts: Where the log of each queue starts.
        ends: Where the committed part of each queue ends: the offset after its last record that can be read.
    """

    name: str
    topic_id: str
    starts: dict[int, int]
    ends: dict[int, int]


def describe_topic(settings: ClientSettings, topic: str) -> MessageTopic:
    """Ask Kafka about a topic, over a connection of its own.

    Raises:
        Invalid: It does not exist, or may not be seen.
        Unavailable: Kafka does not answer.
    """
    servers = settings.bootstrap_servers.split(",")
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers, client_id=f"{settings.client_id}-admin", **settings.kafka)
        try:
            (found,) = admin.describe_topics([topic])
        finally:
            admin.close()
        error = for_code(found["error_code"])
        if found["error_code"]:
            kind = Unavailable if error.retriable and not issubclass(error, UnknownTopicOrPartitionError) else Invalid
            message = f"topic {topic} cannot be described: {error.__name__}"
            raise kind(message, subject=topic)
        partitions = [TopicPartition(topic, partition["partition_index"]) for partition in found["partitions"]]
        consumer = KafkaConsumer(
            bootstrap_servers=servers,
            client_id=f"{settings.client_id}-positions",
            isolation_level="read_committed",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            **settings.kafka,
        )
        try:
            starts = consumer.beginning_offsets(partitions, timeout_ms=TIMEOUT_MS)
            ends = consumer.end_offsets(partitions, timeout_ms=TIMEOUT_MS)
        finally:
            consumer.close(autocommit=False)
    except KafkaError as error:
        message = f"Kafka does not tell about topic {topic}: {error!r}"
        raise Unavailable(message, subject=topic) from error
    return MessageTopic(
        topic,
        str(found["topic_id"]),
        {partition.partition: offset for partition, offset in starts.items()},
        {partition.partition: offset for partition, offset in ends.items()},
    )
