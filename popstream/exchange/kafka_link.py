"""The transport's link over Kafka: a producer for the ops topic, a consumer on one partition of the results topic."""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from popstream.exchange.partitioner import partition_of
from popstream.exchange.resilient_producer import ResilientProducer
from popstream.topics.access_rights import require_rights
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.settings import ClientSettings

__all__ = ["KafkaLink", "producer_options"]

LOG = logging.getLogger(__name__)

OPEN_TIMEOUT_MS = 30_000
FRAMES_MAX = 500
RECONNECT_MS_MAX = 1_000
# Answers arrive without this delay. It bounds how long `close` waits for the thread, as two partitions of one broker
# share a fetch request.
FETCH_WAIT_MS = 250


def producer_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the options of all producers here: acknowledged by all in-sync replicas, and idempotent."""
    return {
        "acks": "all",
        "enable_idempotence": True,
        "delivery_timeout_ms": settings.delivery_timeout_ms,
        "request_timeout_ms": min(10_000, settings.delivery_timeout_ms // 2),
        "max_block_ms": settings.delivery_timeout_ms,
        "max_request_size": OPS_TOPIC_RECORD_BYTES_MAX,
        "allow_auto_create_topics": False,
        # The default of kafka-python, 30 s, is as long as the delivery time-out of a record.
        "reconnect_backoff_max_ms": RECONNECT_MS_MAX,
        **settings.connection.for_kafka_python(),
    }


class KafkaLink:
    """Carries operations and frames over Kafka; `open` connects.

    Args:
        settings: Names and time-outs.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer = ResilientProducer(
            {"client_id": settings.client_id, **producer_options(settings)}, refusals=(), on_connected=lambda: None
        )
        self._consumer: Any = None

    def open(self) -> int:
        """Choose a partition of answers by the client id, and seek to its end before anything is sent.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: Kafka refuses the client, the topics of the job do not exist, or the release of kafka-python is
                not supported.
        """
        settings = self._settings
        settings.reach_kafka()
        require_rights(
            settings.connection, settings.client_id, {settings.operations: ["Write"], settings.results: ["Read"]}
        )
        try:
            self._consumer = KafkaConsumer(
                client_id=settings.client_id,
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                # A client that falls behind the retention of answers loses the oldest ones, and reads on.
                auto_offset_reset="earliest",
                fetch_max_wait_ms=FETCH_WAIT_MS,
                allow_auto_create_topics=False,
                **settings.connection.for_kafka_python(),
            )
            partition = zlib.crc32(settings.client_id.encode()) % self._count_reply_partitions()
            place = TopicPartition(settings.results, partition)
            self._consumer.assign([place])
            self._consumer.seek(place, self._consumer.end_offsets([place], timeout_ms=OPEN_TIMEOUT_MS)[place])
            self._producer.open()
        except KafkaError as error:
            self.close()
            message = f"Kafka does not answer: {error!r}"
            raise Unavailable(message, subject=settings.bootstrap_servers) from error
        except (Invalid, Unavailable):
            self.close()
            raise
        LOG.debug("%s reads %s", settings.client_id, place)
        return partition

    def _count_reply_partitions(self) -> int:
        topics = (self._settings.operations, self._settings.results)
        counts = [len(self._consumer.partitions_for_topic(topic)) for topic in topics]
        missing = [f"{topic} does not exist" for topic, count in zip(topics, counts, strict=True) if not count]
        if missing:
            message = "the topics of the job do not exist: has the job been started, and is the prefix right?"
            raise Invalid(message, subject=self._settings.prefix, details=missing)
        return counts[1]

    def send(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        """Write one operation to the partition of its key.

        Raises:
            Unavailable: Kafka does not answer, and the producer is being replaced.
        """
        kafka = self._producer.current
        if kafka is None:
            message = "Kafka does not answer"
            raise Unavailable(message, subject=self._settings.bootstrap_servers)

        def on_failure(error: Exception) -> None:
            # After any error the producer may be unable to send again.
            self._producer.replace(kafka)
            on_sent(error)

        topic = self._settings.operations
        count = len(kafka.partitions_for(topic))
        future = kafka.send(topic, key=key, value=value, partition=partition_of(key, count))
        future.add_callback(lambda _: on_sent(None))
        future.add_errback(on_failure)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the values of the records that have arrived."""
        polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=FRAMES_MAX)
        return [record.value for records in polled.values() for record in records if record.value is not None]

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait for records in flight, at most for the time-out, and disconnect."""
        self._producer.close(timeout_s)
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
