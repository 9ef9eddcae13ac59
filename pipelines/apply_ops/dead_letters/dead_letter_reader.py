"""Reads the messages of dead letters from their topics, for the copies in the dead-letter topic."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from kafka import KafkaConsumer, TopicPartition

from pipelines.apply_ops.dead_letters.earlier_letters import EarlierLetters, SentLetters
from pipelines.decide_ops.entry import Entry
from popstream.kafka_connection import KafkaConnection
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import headers_of

__all__ = ["REQUEST_BYTES_MAX", "DeadLetterReader", "KafkaDeadLetterReader", "message_consumer", "unsent_messages"]

REQUEST_BYTES_MAX = 17 * 1024 * 1024
"""Size of a fetch or produce request. The topics take records of 16 MiB."""

_CLOSE_TIMEOUT_S = 30.0

OnRead = Callable[[Entry, DeadLetter, Iterator[tuple[int, Any]]], None]
"""Takes an entry, its dead letter, and (queue offset, Kafka record or None if it left the log) of each message to send.

The iterator reads lazily: a dead letter may name ten thousand messages, of a mebibyte each.
"""


class DeadLetterReader(Protocol):
    """Reads the messages of dead letters."""

    def start(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        """Begin to call `on_read` for each dead letter, or once `on_failure`."""

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        """Queue a dead letter for reading; does not block."""

    def close(self) -> None:
        """Finish the dead letters that are queued."""


class KafkaDeadLetterReader:
    """Reads from the message topics, in its own thread.

    Args:
        connection: The Kafka with the message topics.
        earlier: The letters that are in the dead-letter topic already: their messages are left out.
    """

    def __init__(self, connection: KafkaConnection, earlier: EarlierLetters) -> None:
        self._connection = connection
        self._earlier = earlier
        self._queue: queue.SimpleQueue[tuple[Entry, DeadLetter] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        """See `DeadLetterReader.start`."""
        self._thread = threading.Thread(target=self._run, args=(on_read, on_failure), name="dead-letters", daemon=True)
        self._thread.start()

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        """See `DeadLetterReader.read`."""
        self._queue.put((entry, letter))

    def close(self) -> None:
        """Finish the dead letters that are queued, for at most 30 s."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_TIMEOUT_S)

    def _run(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        consumer: KafkaConsumer | None = None
        try:
            while (queued := self._queue.get()) is not None:
                entry, letter = queued
                if consumer is None:
                    consumer = message_consumer(self._connection)
                    self._earlier.load(consumer)
                on_read(entry, letter, unsent_messages(consumer, letter, self._earlier))
        except Exception as error:  # noqa: BLE001 - any error means that no dead letter is published any more
            on_failure(error)
        finally:
            if consumer is not None:
                consumer.close()


def message_consumer(connection: KafkaConnection) -> KafkaConsumer:
    """Return a consumer that reads the messages of dead letters, one partition at a time."""
    return KafkaConsumer(
        **connection.for_kafka_python(),
        group_id=None,
        enable_auto_commit=False,
        # Where retention passes between two requests, the rest of a letter is still there.
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=REQUEST_BYTES_MAX,
        fetch_max_bytes=REQUEST_BYTES_MAX,
    )


def unsent_messages(consumer: KafkaConsumer, letter: DeadLetter, earlier: SentLetters) -> Iterator[tuple[int, Any]]:
    """Yield (queue offset, Kafka record or None if it left the log) of messages whose letters were not sent before."""
    for queue_offset, message in _read(consumer, letter):
        if not earlier.take(headers_of(letter, queue_offset)):
            yield queue_offset, message


def _read(consumer: KafkaConsumer, letter: DeadLetter) -> Iterator[tuple[int, Any]]:
    """Yield (queue offset, Kafka record or None if it left the log) of each message of a dead letter."""
    queue_offset = letter.first
    for message in _present_messages(consumer, letter):
        yield from ((gone, None) for gone in range(queue_offset, message.offset))
        yield message.offset, message
        queue_offset = message.offset + 1
    yield from ((gone, None) for gone in range(queue_offset, letter.last + 1))


def _present_messages(consumer: KafkaConsumer, letter: DeadLetter) -> Iterator[Any]:
    """Yield the messages of a dead letter that are still in the log."""
    partition = TopicPartition(letter.topic, letter.queue_id)
    # A queue exists by `declare`: its topic may be deleted, or never existed, and a fetch from it would never return.
    if letter.queue_id not in (consumer.partitions_for_topic(letter.topic) or ()):
        return
    consumer.assign([partition])
    first = max(letter.first, consumer.beginning_offsets([partition])[partition])
    end = min(letter.last + 1, consumer.end_offsets([partition])[partition])
    if first < end:
        consumer.seek(partition, first)
    while first < end and consumer.position(partition) < end:
        for message in consumer.poll(timeout_ms=1000).get(partition, []):
            if message.offset < end:
                yield message
