"""Dead letters: reads the messages from their topic, and makes the copies for the dead-letter topic."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
from kafka import KafkaConsumer, TopicPartition

from pipelines.apply_ops.dead_letters.earlier_letters import EarlierLetters
from pipelines.apply_ops.outbox import Entry
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.headers import (
    DEAD_LETTER_ATTEMPTS_HEADER,
    DEAD_LETTER_CAUSE_HEADER,
    DEAD_LETTER_GONE_HEADER,
    DEAD_LETTER_GROUP_HEADER,
    DEAD_LETTER_HISTORY_HEADER,
    DEAD_LETTER_QUEUE_ID_HEADER,
    DEAD_LETTER_QUEUE_OFFSET_HEADER,
    DEAD_LETTER_REASON_HEADER,
    DEAD_LETTER_TOO_LARGE_HEADER,
    DEAD_LETTER_TOPIC_HEADER,
)

__all__ = [
    "COPY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "DeadLetterCopy",
    "DeadLetterReader",
    "KafkaDeadLetterReader",
    "copy_of",
]

REQUEST_BYTES_MAX = 17 * 1024 * 1024
"""Size of a fetch or produce request. The topics take records of 16 MiB."""

COPY_BYTES_MAX = 15 * 1024 * 1024
"""Key, value and headers of a message that is copied whole; the rest of 16 MiB is for our headers and Kafka's."""

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
        client: Settings for kafka-python, `bootstrap_servers` among them.
        earlier: The letters that are in the dead-letter topic already: their messages are left out.
    """

    def __init__(self, client: Mapping[str, Any], earlier: EarlierLetters) -> None:
        self._client = client
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
                    consumer = KafkaConsumer(
                        **self._client,
                        group_id=None,
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        max_partition_fetch_bytes=REQUEST_BYTES_MAX,
                        fetch_max_bytes=REQUEST_BYTES_MAX,
                    )
                    self._earlier.load(consumer)
                on_read(entry, letter, self._unsent(consumer, letter))
        except Exception as error:  # noqa: BLE001 - any error means that no dead letter is published any more
            on_failure(error)
        finally:
            if consumer is not None:
                consumer.close()

    def _unsent(self, consumer: KafkaConsumer, letter: DeadLetter) -> Iterator[tuple[int, Any]]:
        for queue_offset, message in _read(consumer, letter):
            if not self._earlier.take(_own_headers(letter, queue_offset)):
                yield queue_offset, message


class DeadLetterCopy(NamedTuple):
    """A record of the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def copy_of(letter: DeadLetter, queue_offset: int, message: Any | None) -> DeadLetterCopy:  # noqa: ANN401 - kafka-python has no types
    """Return the copy of a message, with headers that name its place, the reason and the history.

    A message that left the log, or is too long to be copied, is represented by the headers alone.
    """
    headers = _own_headers(letter, queue_offset)
    if message is None:
        headers.append((DEAD_LETTER_GONE_HEADER, b"the message had left the log; these are its coordinates"))
        return DeadLetterCopy(None, b"", headers)
    message_headers = message.headers or []
    size = sum(len(part or b"") for part in (message.key, message.value))
    size += sum(len(name.encode()) + len(text or b"") for name, text in message_headers)
    if size > COPY_BYTES_MAX:
        why = f"the message takes {size} bytes, more than a dead letter may; it is still at its coordinates"
        headers.append((DEAD_LETTER_TOO_LARGE_HEADER, why.encode()))
        return DeadLetterCopy(None, b"", headers)
    # kafka-python cannot send a record with neither key nor value.
    value = b"" if message.key is None and message.value is None else message.value
    return DeadLetterCopy(message.key, value, [*message_headers, *headers])


def _own_headers(letter: DeadLetter, queue_offset: int) -> list[tuple[str, bytes]]:
    headers = [
        (DEAD_LETTER_REASON_HEADER, letter.reason.encode()),
        (DEAD_LETTER_GROUP_HEADER, letter.group.encode()),
        (DEAD_LETTER_TOPIC_HEADER, letter.topic.encode()),
        (DEAD_LETTER_QUEUE_ID_HEADER, str(letter.queue_id).encode()),
        (DEAD_LETTER_QUEUE_OFFSET_HEADER, str(queue_offset).encode()),
        (DEAD_LETTER_ATTEMPTS_HEADER, str(letter.attempts).encode()),
        (DEAD_LETTER_HISTORY_HEADER, msgspec.json.encode(_history(letter))),
    ]
    if letter.cause is not None:
        headers.append((DEAD_LETTER_CAUSE_HEADER, letter.cause.encode()))
    return headers


def _history(letter: DeadLetter) -> dict[str, int]:
    return {
        "epoch": letter.epoch,
        "last_pop_time_ms": letter.pop_time_ms,
        "dead_lettered_ms": letter.at_ms,
        "ops_partition": letter.partition,
        "ops_kafka_offset": letter.kafka_offset,
    }


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
