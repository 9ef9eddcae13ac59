"""Reads the dead-letter topic, oldest letters first, and what became of letters."""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING

import msgspec

from popstream.dead_letters.letter import Letter
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.letter_handling import LetterHandling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from popstream.dead_letters.letter_topics import LetterTopics, LogBounds
    from popstream.payload.payloads import Payload, Payloads

__all__ = ["HandledLetters", "read_letters"]

LOG = logging.getLogger(__name__)

FETCH_RECORDS = 4000
FETCH_BYTES_MAX = 8 * 1024 * 1024
TIMEOUT_S = 30.0


def read_letters(topics: LetterTopics, bounds: Mapping[int, LogBounds]) -> Iterator[Letter]:
    """Yield the letters of the topic between the bounds of each partition, in the order of their timestamps.

    The order is that of each partition: a letter with an older timestamp behind a newer one comes after it.

    Raises:
        Unavailable: Kafka does not answer.
        Corrupt: A record cannot be read.
    """

    def of_partition(partition: int, start: int, end: int) -> Iterator[tuple[int, Letter]]:
        for kafka_offset, record in _records(topics.payloads, topics.dead_letters, partition, start, end):
            yield record.timestamp_ms, Letter.of(partition, kafka_offset, record)

    partitions = [of_partition(partition, *found) for partition, found in sorted(bounds.items())]
    for _, letter in heapq.merge(*partitions, key=lambda found: found[0]):
        yield letter


class HandledLetters:
    """What became of letters, by their ids, as far as it was read.

    Attributes:
        last_redrive: The letters of the last call that has redriven any.
    """

    def __init__(self, topics: LetterTopics) -> None:
        self.last_redrive: list[LetterHandling] = []
        self._topics = topics
        self._next_offset = 0
        # Encoded: there may be millions.
        self._encoded: dict[str, bytes] = {}

    def read_on(self) -> None:
        """Read to the present end of the topic.

        Raises:
            Invalid: There is no such topic. That does not mean that no letter was handled.
            Unavailable: Kafka does not answer.
            Corrupt: A record cannot be read.
        """
        topic = self._topics.handled
        bounds = self._topics.bounds(topic)
        if not bounds:
            message = f"there is no topic {topic}: a job of this version makes it when it starts"
            raise Invalid(message, subject=topic)
        start, end = bounds[0]  # it has one partition
        first = max(start, self._next_offset)
        for _, record in _records(self._topics.payloads, topic, 0, first, end):
            if record.key is not None and record.value is not None:
                self._take(record.key.decode(errors="replace"), record.value)
        self._next_offset = max(first, end)

    def __contains__(self, letter_id: str) -> bool:
        """Return whether a letter was handled."""
        return letter_id in self._encoded

    def of(self, letter: Letter) -> Letter:
        """Return a letter with what became of it, as far as this version can read that."""
        encoded = self._encoded.get(letter.letter_id)
        return letter if encoded is None else msgspec.structs.replace(letter, handling=_decoded(encoded))

    def _take(self, letter_id: str, value: bytes) -> None:
        self._encoded[letter_id] = value
        handling = _decoded(value)
        if handling is None:
            LOG.warning(
                "what became of the dead letter %s cannot be decoded, perhaps a newer version did it", letter_id
            )
        elif handling.action == "redriven":
            if self.last_redrive and self.last_redrive[0].call != handling.call:
                self.last_redrive = []
            self.last_redrive.append(handling)


def _decoded(value: bytes) -> LetterHandling | None:
    try:
        return msgspec.json.decode(value, type=LetterHandling)
    except DECODE_ERRORS:
        return None


def _records(payloads: Payloads, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[int, Payload]]:
    """Yield the records of a partition from `start` on, below `end`, with their offsets."""
    position = start
    while position < end:
        last = min(position + FETCH_RECORDS, end) - 1
        fetched = payloads.fetch(topic, partition, [(position, last)], TIMEOUT_S, FETCH_BYTES_MAX)
        yield from sorted(fetched.payloads.items())
        reached = min((first for first, _ in (*fetched.left, *fetched.late)), default=last + 1)
        if reached == position:
            message = f"{topic}/{partition} cannot be read beyond offset {position} within {TIMEOUT_S:.0f} s"
            raise Unavailable(message, subject=topic)
        position = reached
