"""Step 6, publish: from the outbox to Kafka. What is decided may arrive twice, never not at all."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
import structlog

from broker_state.errors import Unavailable
from broker_state.kernel.turn import DeadLetter
from connectors.kafka.topics import Topics
from pipelines.dead_letters import LetterReader
from pipelines.failpoints import failpoint
from pipelines.frames import read_frame, read_notifications
from pipelines.outbox import Entry, EntryKind, Outbox

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


OutgoingRecord = tuple[str, int | None, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""(topic, partition, key, value, headers)."""


class Publisher:
    """Sends frames and notifications at once, and dead letters as soon as their messages are read.

    Args:
        topics: The job's own topics.
        outbox: Told of every entry that Kafka has acknowledged.
        producer: Idempotent, all replicas.
        letters: Reads the messages of dead letters.
    """

    def __init__(self, topics: Topics, outbox: Outbox, producer: Producer, letters: LetterReader) -> None:
        self._topics = topics
        self._outbox = outbox
        self._producer = producer
        self._letters = letters
        self._failure: Exception | None = None
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
            message = f"publishing failed, so nothing more is decided: {self._failure}"
            raise Unavailable(message) from self._failure

    def close(self) -> None:
        """Send what is under way; what does not get through stays in the outbox."""
        self._letters.close()
        self._producer.close(timeout=10)

    def _send(self, entry: Entry, records: list[OutgoingRecord]) -> None:
        failpoint("emit")
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
            sent = self._producer.send(topic, value=value, key=key, partition=partition, headers=headers)
            sent.add_callback(on_success)
            sent.add_errback(self._fail)

    def _fail(self, error: Exception) -> None:
        _log.error("publish_failed", error=str(error))
        self._failure = error

    def _send_letter(self, entry: Entry, letter: DeadLetter, messages: list[tuple[int, Any]]) -> None:
        self._send(entry, [self._copy_of(letter, message) for message in messages])

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
