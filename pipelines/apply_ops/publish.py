"""Step 6, publish: from the outbox to Kafka. What is decided may arrive twice, never not at all."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec
import structlog

from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.dead_letter_copy import LetterReader
from pipelines.apply_ops.outbox import Entry, EntryKind, Outbox
from pipelines.apply_ops.outbox_entries import read_frame, read_notifications
from pipelines.failpoints import failpoint
from popstream.exchange.resilient_producer import close_producer
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.failures import Unavailable

__all__ = ["Producer", "Publisher", "Sent"]

_log = structlog.get_logger(__name__)


class Sent(Protocol):
    """What `Topic.send` gives: tells when Kafka has the record, or never will."""

    def add_callback(self, callback: Callable[[Any], object]) -> object:
        """Called with what Kafka says of the record."""

    def add_errback(self, callback: Callable[[Exception], object]) -> object:
        """Called with the error."""


class Producer(Protocol):
    """What is needed of a producer: kafka-python's, or a test's."""

    def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes]],
    ) -> Sent:
        """Write one record, in order."""

    def close(self, timeout: float | None = None) -> None:
        """Send what is under way, and end."""


LETTER_BYTES_MAX = 15 * 1024 * 1024
"""Key, value and headers of a message. Below what the topic takes, for a batch of Kafka's has some bytes of its own."""

OutgoingRecord = tuple[str, int | None, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""(topic, partition, key, value, headers)."""


class Publisher:
    """Sends frames and notifications at once, and dead letters as soon as their messages are read.

    Args:
        topics: The job's own topics.
        outbox: Told of every entry that Kafka has acknowledged.
        producer: Idempotent, all replicas.
        letters: Reads the messages of dead letters.
        on_failure: Told, from any thread, when something cannot be published: nothing more will be.
    """

    def __init__(
        self,
        topics: Topics,
        outbox: Outbox,
        producer: Producer,
        letters: LetterReader,
        on_failure: Callable[[Unavailable], None],
    ) -> None:
        self._topics = topics
        self._outbox = outbox
        self._producer = producer
        self._letters = letters
        self._on_failure = on_failure
        self._failure: Unavailable | None = None
        letters.start(self._send_letter, self._fail)
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
                self._letters.read(entry, msgspec.msgpack.decode(entry.value, type=DeadLetter))

    def check(self) -> None:
        """Raise Unavailable when something could not be published."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Send what is under way; what does not get through stays in the outbox."""
        self._letters.close()
        close_producer(self._producer, 10)

    def _send(self, entry: Entry, records: Iterable[OutgoingRecord]) -> None:
        failpoint("emit")
        left = 1  # this loop
        lock = threading.Lock()

        def one_less(_: object = None) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            self._outbox.delivered([entry.key])

        for topic, partition, key, value, headers in records:
            with lock:
                left += 1
            sent = self._producer.send(topic, value=value, key=key, partition=partition, headers=headers)
            sent.add_callback(one_less)
            sent.add_errback(self._fail)
        one_less()

    def _fail(self, error: Exception) -> None:
        _log.error("publish_failed", error=str(error))
        self._failure = Unavailable(f"publishing failed, so nothing more is decided: {error}")
        self._failure.__cause__ = error
        self._on_failure(self._failure)

    def _send_letter(self, entry: Entry, letter: DeadLetter, messages: Iterator[tuple[int, Any]]) -> None:
        self._send(entry, (self._copy_of(letter, message) for message in messages))

    def _copy_of(self, letter: DeadLetter, record: "tuple[int, Any]") -> OutgoingRecord:
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
        own = message.headers or []
        size = sum(len(part or b"") for part in (message.key, message.value))
        size += sum(len(name.encode()) + len(text or b"") for name, text in own)
        if size > LETTER_BYTES_MAX:
            said = f"the message takes {size} bytes, more than a dead letter may; it is still at its coordinates"
            headers.append(("popstream.too_large", said.encode()))
            return self._topics.dead_letters, None, None, b"", headers
        # kafka-python sends no record without key and value; the message may have been one.
        value = b"" if message.key is None and message.value is None else message.value
        return self._topics.dead_letters, None, message.key, value, [*own, *headers]


def _history(letter: DeadLetter) -> dict[str, int]:
    return {
        "epoch": letter.epoch,
        "last_pop_time_ms": letter.pop_time_ms,
        "dead_lettered_ms": letter.at_ms,
        "ops_partition": letter.partition,
        "ops_kafka_offset": letter.kafka_offset,
    }
