"""A compacted topic with one partition, as a mapping that is read to its end and followed."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.kafka_errors import kafka_errors
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable

__all__ = ["KeyedLog"]

_POLL_MS = 500
_TIMEOUT_S = 60.0
"""Without any record."""


class KeyedLog:
    """The records of the topic, from its first one on. For one thread.

    Args:
        connection: The Kafka.
        topic: Its name.

    Raises:
        Unavailable: Kafka does not answer.
    """

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._partition = TopicPartition(topic, 0)
        self._topic = topic
        with self._errors():
            self._consumer: Any = KafkaConsumer(
                **connection.for_kafka_python(), group_id=None, enable_auto_commit=False, fetch_max_wait_ms=100
            )
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)

    def to_end(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the records up to the present end of the topic.

        Raises:
            Unavailable: Kafka does not answer.
        """
        with self._errors():
            end = self._consumer.end_offsets([self._partition])[self._partition]
        at, moved_s = self._position(), time.monotonic()
        while at < end:
            yield from self.next(_POLL_MS)
            before, at = at, self._position()
            if at > before:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _TIMEOUT_S:
                message = f"{self._topic} cannot be read: no record within {_TIMEOUT_S:.0f} s"
                raise Unavailable(message, subject=self._topic)

    def next(self, timeout_ms: int) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of the next records; none after a time without any.

        Raises:
            Unavailable: Kafka does not answer.
        """
        with self._errors():
            found = self._consumer.poll(timeout_ms=timeout_ms).get(self._partition, ())
        return [(record.key, record.value) for record in found if record.key is not None and record.value is not None]

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def _position(self) -> int:
        with self._errors():
            return int(self._consumer.position(self._partition))

    def _errors(self) -> AbstractContextManager[None]:
        return kafka_errors(f"{self._topic} cannot be read", self._topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
