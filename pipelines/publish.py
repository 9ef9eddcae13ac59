"""Step 6, publish: from the outbox to Kafka. What is decided may arrive twice, never not at all."""

import queue
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from broker_state.errors import Unavailable
from broker_state.kernel.turn import DeadLetter
from connectors.kafka.topics import Topics
from pipelines.frames import read_frame, read_notifications
from pipelines.outbox import Entry, EntryKind, Outbox

__all__ = ["Publisher"]

_log = structlog.get_logger(__name__)

_REQUEST_BYTES_MAX = 17 * 1024 * 1024
_FETCH_SECONDS = 30.0


class Publisher:
    """Sends frames and notifications at once, copies dead letters in a thread of its own.

    Args:
        bootstrap_servers: Of the Kafka that has the job's topics and the messages.
        topics: The job's own topics.
        outbox: Told of every entry that Kafka has acknowledged.
        client: Further settings for kafka-python, such as security.
    """

    def __init__(
        self, bootstrap_servers: str, topics: Topics, outbox: Outbox, client: Mapping[str, Any] | None = None
    ) -> None:
        self._topics = topics
        self._outbox = outbox
        self._settings = {"bootstrap_servers": bootstrap_servers, **(client or {})}
        self._producer = KafkaProducer(
            **self._settings, acks="all", enable_idempotence=True, linger_ms=0, max_request_size=_REQUEST_BYTES_MAX
        )
        self._failure: Exception | None = None
        self._letters: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._copier = threading.Thread(target=self._copy_letters, name="dead-letters", daemon=True)
        self._copier.start()
        for kind in (EntryKind.ANSWERS, EntryKind.NOTIFICATIONS, EntryKind.DEAD_LETTER):
            self.publish(outbox.undelivered(kind))

    def publish(self, entries: Iterable[Entry]) -> None:
        """Send entries, in order; the outbox hears of each when Kafka has it.

        Raises:
            Unavailable: Kafka refused an earlier one for good.
        """
        self.check()
        for entry in entries:
            if entry.kind == EntryKind.ANSWERS:
                partition, frame = read_frame(entry.value)
                self._send(entry, [(self._topics.results, partition, None, frame, [])])
            elif entry.kind == EntryKind.NOTIFICATIONS:
                records = read_notifications(entry.value)
                self._send(entry, [(self._topics.notifications, None, key, value, []) for key, value in records])
            elif entry.kind == EntryKind.DEAD_LETTER:
                self._letters.put(entry)

    def check(self) -> None:
        """Raise Unavailable when something could not be published."""
        if self._failure is not None:
            message = f"publishing failed, so nothing more is decided: {self._failure}"
            raise Unavailable(message) from self._failure

    def close(self) -> None:
        """Send what is under way; what does not get through stays in the outbox."""
        self._letters.put(None)
        self._copier.join(timeout=_FETCH_SECONDS)
        self._producer.close(timeout=10)

    def _send(
        self, entry: Entry, records: list[tuple[str, int | None, bytes | None, bytes | None, list[tuple[str, bytes]]]]
    ) -> None:
        left = len(records)
        lock = threading.Lock()

        def on_success(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            self._outbox.delivered([entry.key])

        for topic, partition, key, value, headers in records:
            future = self._producer.send(topic, value=value, key=key, partition=partition, headers=headers)
            future.add_callback(on_success)
            future.add_errback(self._fail)

    def _fail(self, error: Exception) -> None:
        _log.error("publish_failed", error=str(error))
        self._failure = error

    def _copy_letters(self) -> None:
        consumer: KafkaConsumer | None = None
        try:
            while (entry := self._letters.get()) is not None:
                letter = msgspec.msgpack.decode(entry.value, type=DeadLetter)
                if consumer is None:
                    consumer = KafkaConsumer(
                        **self._settings,
                        group_id=None,
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        max_partition_fetch_bytes=_REQUEST_BYTES_MAX,
                        fetch_max_bytes=_REQUEST_BYTES_MAX,
                    )
                self._send(entry, [self._copy_of(letter, record) for record in _read(consumer, letter)])
        except Exception as error:  # noqa: BLE001 - whatever it is, no letter gets through any more
            self._fail(error)
        finally:
            if consumer is not None:
                consumer.close()

    def _copy_of(
        self, letter: DeadLetter, record: "tuple[int, Any]"
    ) -> tuple[str, int | None, bytes | None, bytes | None, list[tuple[str, bytes]]]:
        """The message itself, with headers that say where it was and why it is here."""
        queue_offset, message = record
        headers = [
            ("popstream.reason", letter.reason.encode()),
            ("popstream.group", letter.group.encode()),
            ("popstream.topic", letter.topic.encode()),
            ("popstream.queue_id", str(letter.queue_id).encode()),
            ("popstream.queue_offset", str(queue_offset).encode()),
            ("popstream.attempts", str(letter.attempts).encode()),
            ("popstream.history", msgspec.json.encode(_history(letter))),
        ]
        if message is None:
            headers.append(("popstream.gone", b"the message had left the log; these are its coordinates"))
            return self._topics.dead_letters, None, None, b"", headers
        # kafka-python sends no record without key and value; the message may have been one.
        value = b"" if message.key is None and message.value is None else message.value
        return self._topics.dead_letters, None, message.key, value, [*(message.headers or []), *headers]


def _history(letter: DeadLetter) -> dict[str, int]:
    return {
        "epoch": letter.epoch,
        "last_pop_time_ms": letter.pop_time_ms,
        "dead_lettered_ms": letter.at_ms,
        "ops_partition": letter.partition,
        "ops_kafka_offset": letter.kafka_offset,
    }


def _read(consumer: KafkaConsumer, letter: DeadLetter) -> list[tuple[int, Any]]:
    """(queue offset, record or None if it is gone) of every message of the letter."""
    partition = TopicPartition(letter.topic, letter.queue_id)
    found: dict[int, Any] = {}
    # The topic may be gone, or never was: a queue is what a `declare` says, and asking such a partition takes for ever.
    if letter.queue_id not in (consumer.partitions_for_topic(letter.topic) or ()):
        return [(offset, None) for offset in range(letter.first, letter.last + 1)]
    consumer.assign([partition])
    first = max(letter.first, consumer.beginning_offsets([partition])[partition])
    end = min(letter.last + 1, consumer.end_offsets([partition])[partition])
    if first < end:
        consumer.seek(partition, first)
    while first < end and consumer.position(partition) < end:
        for message in consumer.poll(timeout_ms=1000).get(partition, []):
            if message.offset < end:
                found[message.offset] = message
    return [(offset, found.get(offset)) for offset in range(letter.first, letter.last + 1)]
