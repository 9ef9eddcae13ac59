"""Step 6, publish: sends outbox entries to Kafka, at least once."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.dead_letters.dead_letter_reader import DeadLetterReader
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entries import read_frame, read_notifications
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.failpoints import failpoint
from popstream.exchange.resilient_producer import close_producer
from popstream.wire.base_errors import Fenced, PopstreamError, Unavailable
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of

__all__ = ["AcknowledgedSend", "HeldPrefix", "Publisher", "RecordProducer"]

_log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S = 10


class AcknowledgedSend(Protocol):
    """Completes when Kafka has acknowledged a record, or refused it for good."""

    def add_callback(self, callback: Callable[[Any], object]) -> object:
        """Call `callback` with the record's metadata on success."""

    def add_errback(self, callback: Callable[[Exception], object]) -> object:
        """Call `callback` with the error on failure."""


class RecordProducer(Protocol):
    """The part of kafka-python's KafkaProducer that the publisher needs."""

    def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes]],
    ) -> AcknowledgedSend:
        """Send one record, in order."""

    def close(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for requests in flight, and disconnect."""


class HeldPrefix(Protocol):
    """The right to answer for a prefix (`PrefixOwnership`)."""

    @property
    def is_fenced(self) -> bool:
        """Whether another job is known to answer now."""

    def require(self) -> None:
        """Raise Fenced if another job may answer now, or Unavailable if nobody knows."""


class _OutgoingRecord(NamedTuple):
    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class Publisher:
    """Sends answers and notifications at once, and dead letters as soon as their messages are read.

    Args:
        topics: The job's own topics.
        outbox: Is notified of every entry that Kafka has acknowledged.
        producer: Idempotent, with acks from all replicas.
        dead_letters: Reads the messages of dead letters.
        prefix: Is asked before each record: a dead letter may be ten thousand of them.
        on_failure: Called once something cannot be published, from any thread; nothing more will be published.
    """

    def __init__(
        self,
        topics: Topics,
        outbox: Outbox,
        producer: RecordProducer,
        dead_letters: DeadLetterReader,
        prefix: HeldPrefix,
        on_failure: Callable[[PopstreamError], None],
    ) -> None:
        self._topics = topics
        self._outbox = outbox
        self._producer = producer
        self._dead_letters = dead_letters
        self._prefix = prefix
        self._on_failure = on_failure
        self._failure: PopstreamError | None = None

    def start(self) -> None:
        """Start to read dead letters, and send what an earlier process left in the outbox.

        Raises:
            Unavailable: Kafka refused an entry for good.
            Fenced: Another job answers now.
        """
        self._dead_letters.start(self._send_dead_letter, self._fail)
        for kind in (EntryKind.ANSWERS, EntryKind.NOTIFICATIONS, EntryKind.DEAD_LETTER):
            self.publish(self._outbox.undelivered(kind))

    def publish(self, entries: Iterable[Entry]) -> None:
        """Send entries, in order; the outbox is notified of each once Kafka has acknowledged it.

        Raises:
            Unavailable: Kafka refused an earlier entry for good.
            Fenced: Another job answers now.
        """
        self.check()
        for entry in entries:
            if entry.kind == EntryKind.ANSWERS:
                failpoint("emit")
                partition, frame = read_frame(entry.value)
                self._send(entry, [_OutgoingRecord(self._topics.results, frame, partition=partition)])
            elif entry.kind == EntryKind.NOTIFICATIONS:
                topic = self._topics.notifications
                self._send(
                    entry, [_OutgoingRecord(topic, value, key) for key, value in read_notifications(entry.value)]
                )
            elif entry.kind == EntryKind.DEAD_LETTER:
                self._dead_letters.read(entry, msgspec.msgpack.decode(entry.value, type=DeadLetter))

    def check(self) -> None:
        """Raise Unavailable if something could not be published, or Fenced if another job answers now."""
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> None:
        """Send nothing more, nor what is in flight: another job answers now."""
        close_producer(self._producer, 0)

    def stop(self) -> None:
        """Finish requests in flight, and close the producer.

        Whatever Kafka does not acknowledge in time stays in the outbox. A job that is fenced abandons all requests.
        """
        if self._prefix.is_fenced:
            self.abandon()
            self._dead_letters.close()
            return
        self._dead_letters.close()
        close_producer(self._producer, _CLOSE_TIMEOUT_S)

    def _send(self, entry: Entry, records: Iterable[_OutgoingRecord]) -> None:
        """Send the records of one entry, which is delivered when all of them are acknowledged."""
        pending = 1  # this loop, so that the count does not reach 0 before all records are sent
        lock = threading.Lock()

        def complete_one(_: object = None) -> None:
            nonlocal pending
            with lock:
                pending -= 1
                if pending:
                    return
            self._outbox.delivered([entry.key])

        for record in records:
            self._prefix.require()
            with lock:
                pending += 1
            future = self._producer.send(
                record.topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
            )
            future.add_callback(complete_one)
            future.add_errback(self._fail)
        complete_one()

    def _fail(self, error: Exception) -> None:
        _log.error("publish_failed", error=str(error))
        failure: PopstreamError = Unavailable(f"publishing failed, so the job stops deciding: {error}")
        failure.__cause__ = error
        self._failure = error if isinstance(error, Fenced) else failure
        self._on_failure(self._failure)

    def _send_dead_letter(self, entry: Entry, letter: DeadLetter, messages: Iterator[tuple[int, Any]]) -> None:
        copies = (copy_of(letter, queue_offset, message) for queue_offset, message in messages)
        topic = self._topics.dead_letters
        self._send(entry, (_OutgoingRecord(topic, copy.value, copy.key, headers=copy.headers) for copy in copies))
