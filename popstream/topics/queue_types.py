"""The queue types of message topics - simple, batch or sparse - published by the job for its clients.

They are in the compacted Kafka topic `<prefix>.queue_types` with one partition, so that clients need not ask the job:
the key is the name of the topic, the value is JSON. RocketMQ has the topic attribute `queue.type`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from popstream.wire.base_errors import Unavailable
from popstream.wire.command import QueueType
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from popstream.kafka_connection import KafkaConnection
    from popstream.settings import ClientSettings

__all__ = ["QueueTypes", "QueueTypesPublisher"]

LOG = logging.getLogger(__name__)

POLL_MS = 500
FETCH_WAIT_MS = 5_000
FIRST_READ_S = 5.0
RETRY_PAUSE_S = 5.0
PUBLISH_TIMEOUT_MS = 10_000
RECONNECT_MS_MAX = 1_000
CLOSE_S = 5.0


class TopicType(msgspec.Struct, frozen=True):
    """The value of a record: the type of the queues of the topic with this id."""

    topic: str
    topic_id: str
    queue_type: QueueType


class QueueTypesPublisher:
    """Publishes the types of topics, each when it is new or has changed. For one thread.

    Args:
        connection: Which Kafka.
        topic: The topic to publish to.
    """

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._kafka: Any = None
        self._published: set[TopicType] = set()

    def publish(self, types: set[tuple[str, str, QueueType]]) -> None:
        """Publish the new ones among (topic, topic id, type), and delete those that are missing now.

        Raises:
            Unavailable: Kafka did not confirm the records; the next call sends them again.
        """
        current = {TopicType(*found) for found in types}
        values: dict[str, bytes | None] = dict.fromkeys(
            {found.topic for found in self._published} - {found.topic for found in current}
        )
        values |= {found.topic: msgspec.json.encode(found) for found in current - self._published}
        if not values:
            return
        try:
            if self._kafka is None:
                self._kafka = KafkaProducer(
                    **self._connection.for_kafka_python(),
                    client_id="popstream-queue-types",
                    allow_auto_create_topics=False,
                    max_block_ms=PUBLISH_TIMEOUT_MS,
                    delivery_timeout_ms=PUBLISH_TIMEOUT_MS,
                    request_timeout_ms=PUBLISH_TIMEOUT_MS // 3,
                )
            sent = [self._kafka.send(self._topic, key=topic.encode(), value=value) for topic, value in values.items()]
            self._kafka.flush(PUBLISH_TIMEOUT_MS / 1000)
            for one in sent:
                one.get(0)
        except KafkaError as error:
            # A KafkaProducer may not recover from this (popstream/exchange/resilient_producer.py).
            self.close()
            message = f"cannot publish the queue types: {error!r}"
            raise Unavailable(message, subject=self._topic) from error
        self._published = current

    def close(self) -> None:
        """Disconnect."""
        kafka, self._kafka = self._kafka, None
        if kafka is not None:
            try:
                kafka.close(timeout=1)
            except KafkaError as error:
                LOG.warning("queue types were not published: %r", error)


class QueueTypes:
    """Reads the types of topics in a thread of its own, which the first call starts.

    Args:
        settings: Those of the client that asks for them.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._topic = settings.queue_types
        self._client_id = f"{settings.client_id}-queue-types"
        self._types: dict[str, QueueType] = {}
        self._has_read = threading.Event()
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def of(self, topic: str) -> QueueType | None:
        """Return the type of a topic; None: it is not published. The first call may wait for up to 5 s."""
        if not self._has_read.is_set():
            with self._starting:
                if self._thread is None and not self._closing.is_set():
                    self._thread = threading.Thread(target=self._run, name=self._client_id, daemon=True)
                    self._thread.start()
            self._has_read.wait(FIRST_READ_S)
            self._has_read.set()
        return self._types.get(topic)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - until then topics keep their known types, or are simple
                LOG.warning("cannot read the queue types, retrying: %r", error)
            self._has_read.set()
            self._closing.wait(RETRY_PAUSE_S)

    def _follow(self) -> None:
        consumer: Any = KafkaConsumer(
            client_id=self._client_id,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=FETCH_WAIT_MS * 4,
            allow_auto_create_topics=False,
            reconnect_backoff_max_ms=RECONNECT_MS_MAX,
            **self._settings.connection.for_kafka_python(),
        )
        try:
            if not consumer.partitions_for_topic(self._topic):
                LOG.info("topic %s does not exist: all topics are of the type simple", self._topic)
                return
            place = TopicPartition(self._topic, 0)
            consumer.assign([place])
            end = consumer.end_offsets([place])[place]
            consumer.seek_to_beginning(place)
            until_s = time.monotonic() + FIRST_READ_S
            while not self._closing.is_set():
                for record in consumer.poll(timeout_ms=POLL_MS).get(place, ()):
                    self._take(record.key, record.value)
                if consumer.position(place) >= end or time.monotonic() > until_s:
                    self._has_read.set()
        finally:
            consumer.close(autocommit=False)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        topic = (key or b"").decode(errors="replace")
        if value is None:
            self._types.pop(topic, None)
            return
        try:
            self._types[topic] = msgspec.json.decode(value, type=TopicType).queue_type
        except DECODE_ERRORS as error:
            LOG.warning("cannot decode the type of topic %s: %s", topic, error)
