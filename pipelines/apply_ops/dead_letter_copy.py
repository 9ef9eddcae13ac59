"""Reads the messages that nobody could process, so that a dead letter is the message and not only its coordinates."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from kafka import KafkaConsumer, TopicPartition

from pipelines.apply_ops.outbox import Entry
from popstream.wire.dead_letter import DeadLetter

__all__ = ["REQUEST_BYTES_MAX", "KafkaLetterReader", "LetterReader"]

REQUEST_BYTES_MAX = 17 * 1024 * 1024
_FETCH_SECONDS = 30.0

OnRead = Callable[[Entry, DeadLetter, Iterator[tuple[int, Any]]], None]
"""Takes an entry, its letter, and (queue offset, record or None if it is gone) of every message of the letter.

They come as they are read: a letter may be of ten thousand messages, of a mebibyte each.
"""


class LetterReader(Protocol):
    """What finds the messages of a letter."""

    def start(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        """Begin; from now on `on_read` is called for each letter, or `on_failure` once."""

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        """Find the messages of a letter; does not wait."""

    def close(self) -> None:
        """Finish what is under way."""


class KafkaLetterReader:
    """Reads from the message topics, in a thread of its own.

    Args:
        client: Settings for kafka-python, `bootstrap_servers` among them.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._letters: queue.SimpleQueue[tuple[Entry, DeadLetter] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        """See `LetterReader.start`."""
        self._thread = threading.Thread(target=self._run, args=(on_read, on_failure), name="dead-letters", daemon=True)
        self._thread.start()

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        """See `LetterReader.read`."""
        self._letters.put((entry, letter))

    def close(self) -> None:
        """See `LetterReader.close`."""
        self._letters.put(None)
        if self._thread is not None:
            self._thread.join(timeout=_FETCH_SECONDS)

    def _run(self, on_read: OnRead, on_failure: Callable[[Exception], None]) -> None:
        consumer: KafkaConsumer | None = None
        try:
            while (next_letter := self._letters.get()) is not None:
                entry, letter = next_letter
                if consumer is None:
                    consumer = KafkaConsumer(
                        **self._client,
                        group_id=None,
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        max_partition_fetch_bytes=REQUEST_BYTES_MAX,
                        fetch_max_bytes=REQUEST_BYTES_MAX,
                    )
                on_read(entry, letter, _read(consumer, letter))
        except Exception as error:  # noqa: BLE001 - whatever it is, no letter gets through any more
            on_failure(error)
        finally:
            if consumer is not None:
                consumer.close()


def _read(consumer: KafkaConsumer, letter: DeadLetter) -> Iterator[tuple[int, Any]]:
    at = letter.first
    for message in _found(consumer, letter):
        yield from ((gone, None) for gone in range(at, message.offset))
        yield message.offset, message
        at = message.offset + 1
    yield from ((gone, None) for gone in range(at, letter.last + 1))


def _found(consumer: KafkaConsumer, letter: DeadLetter) -> Iterator[Any]:
    """Those messages of the letter that are still in the log."""
    partition = TopicPartition(letter.topic, letter.queue_id)
    # The topic may be gone, or never was: a queue is what a `declare` says, and asking such a partition takes for ever.
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
