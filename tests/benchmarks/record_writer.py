"""Writes the topics of the measurements: a record that Kafka did not take must not be waited for by a job."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kafka import KafkaProducer

from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection

__all__ = ["RecordWriter", "open_writer"]

IN_FLIGHT_MAX = 50_000
"""Records that are sent and not confirmed: more of 100 bytes than fit into a batch of 512 KiB of each of eight
partitions."""
PROGRESS_EVERY = 200_000
WAIT_S = 150.0
"""For a record: longer than kafka-python's `delivery_timeout_ms`, after which it has failed."""


class RecordWriter:
    """Writes records, and counts those that Kafka has taken.

    kafka-python has no bound of its own: what is sent faster than Kafka takes it expires after two minutes.

    Args:
        producer: What sends them.
        on_progress: Called with a line each time that 200,000 more records are sent.

    Attributes:
        confirmed: How many records Kafka has taken; all that were sent, once `finish` has returned.
    """

    def __init__(self, producer: KafkaProducer, on_progress: Callable[[str], None]) -> None:
        self._producer = producer
        self._on_progress = on_progress
        self._in_flight: deque[Any] = deque()
        self.confirmed = 0

    def send(self, topic: str, value: bytes | None, **fields: Any) -> None:
        """Send a record; waits while too many are not confirmed.

        Raises:
            kafka.errors.KafkaError: Kafka did not take an earlier record.
        """
        in_flight = self._in_flight
        if len(in_flight) >= IN_FLIGHT_MAX:
            self._confirm_first()
        in_flight.append(self._producer.send(topic, value, **fields))
        sent = self.confirmed + len(in_flight)
        if not sent % PROGRESS_EVERY:
            self._on_progress(f"{sent:,} records written to {topic}")

    def finish(self) -> int:
        """Wait until all records are confirmed; return how many they are.

        Raises:
            kafka.errors.KafkaError: Kafka did not take one.
        """
        self._producer.flush()
        while self._in_flight:
            self._confirm_first()
        return self.confirmed

    def _confirm_first(self) -> None:
        first = self._in_flight.popleft()
        if not first.succeeded():  # `get` costs a timer
            first.get(WAIT_S)
        self.confirmed += 1


@contextlib.contextmanager
def open_writer(
    connection: KafkaConnection, *, on_progress: Callable[[str], None] = lambda _: None, **options: Any
) -> Iterator[RecordWriter]:
    """Connect; at the exit finish, unless the block raised, and disconnect.

    Args:
        connection: How to connect to Kafka.
        on_progress: As of `RecordWriter`.
        options: Settings of the `KafkaProducer` that replace those made here.
    """
    settings = {"acks": 1, "linger_ms": 50, "batch_size": 512 * 1024, "max_request_size": 1 << 24, **options}
    producer = KafkaProducer(**connection.for_kafka_python(), **settings)
    try:
        writer = RecordWriter(producer, on_progress)
        yield writer
        writer.finish()
    finally:
        close_producer(producer, 0)
