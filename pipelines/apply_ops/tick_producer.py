"""Sends ticks to the ops topic."""

from collections.abc import Callable

from kafka import KafkaProducer

from popstream.exchange.partitioner import ops_key, partition_of
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection
from popstream.wire.queue_name import QueueName

__all__ = ["TickProducer"]

_CLOSE_TIMEOUT_S = 5


class TickProducer:
    """A producer for a `Ticker`.

    Args:
        connection: The Kafka.
        topic: The ops topic.
        partition_count: Its partitions.
    """

    def __init__(self, connection: KafkaConnection, topic: str, partition_count: int) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._producer = KafkaProducer(
            **connection.for_kafka_python(),
            acks="all",
            # A repeated tick changes nothing, and an idempotent producer may not survive an outage
            # (popstream/exchange/resilient_producer.py).
            enable_idempotence=False,
            linger_ms=0,
        )

    def send(self, queue: QueueName, value: bytes, answered: Callable[[int | None], None]) -> None:
        """Send a tick to (topic, queue id); `answered` gets its append time in ms, or None if it could not be sent."""
        key = ops_key(*queue)
        partition = partition_of(key, self._partition_count)
        future = self._producer.send(self._topic, value=value, key=key, partition=partition)
        future.add_callback(lambda metadata: answered(metadata.timestamp))
        future.add_errback(lambda _: answered(None))

    def close(self) -> None:
        """Finish requests in flight, for a few seconds."""
        close_producer(self._producer, _CLOSE_TIMEOUT_S)
