"""A compacted topic with one partition, as a mapping that is read to its end and followed."""

from collections.abc import Iterator
from typing import Any, Self

from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.kafka_errors import kafka_errors
from popstream.kafka_connection import KafkaConnection

__all__ = ["KeyedLog"]


class KeyedLog:
    """The records of the topic, from its first one on. For one thread.

    Args:
        connection: The Kafka.
        topic: Its name.
    """

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._partition = TopicPartition(topic, 0)
        self._topic = topic
        self._consumer: Any = KafkaConsumer(**connection.for_kafka_python(), group_id=None, enable_auto_commit=False)
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)

    def to_end(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the records up to the present end of the topic.

        Raises:
            Unavailable: Kafka does not answer.
        """
        with kafka_errors(f"{self._topic} cannot be read", self._topic):
            end = self._consumer.end_offsets([self._partition])[self._partition]
            while self._consumer.position(self._partition) < end:
                for record in self._consumer.poll(timeout_ms=500).get(self._partition, []):
                    if record.key is not None and record.value is not None:
                        yield record.key, record.value

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
