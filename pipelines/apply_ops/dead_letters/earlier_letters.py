"""The dead letters that are in their topic already, when a start decides or delivers records again.

A killed process may have sent letters without noting it, and a restored state decides records again whose letters were
sent before. A letter is recognised by the headers that name its message, its group and the operation that gave it up.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from kafka import TopicPartition

from popstream.wire.base_errors import Unavailable
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import identity_of

__all__ = ["MARGIN_MS", "EarlierLetters", "SentLetters", "letters_of"]

_log = structlog.get_logger(__name__)

MARGIN_MS = 600_000
"""Letters have the time of the job's host, and operations that of a broker."""
POLL_MS = 200
_POLLS_MAX = 50
"""Polls in a row that do not go on, after which the start fails: a letter that is not known would be sent twice."""


class SentLetters:
    """Letters that were sent before.

    Args:
        known: Their identities (`identity_of`).
    """

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        self._known = set(known)

    def take(self, headers: Iterable[tuple[str, bytes]]) -> bool:
        """Return whether a letter with these headers was sent before. Each counts once."""
        if not self._known:
            return False
        identity = identity_of(headers)
        if identity not in self._known:
            return False
        self._known.remove(identity)
        return True


class EarlierLetters(SentLetters):
    """Knows the letters that were sent before this start, once they are loaded.

    Args:
        topic: The dead-letter topic.
        ops_topic: The ops topic.
        next_offset: First offset of it that the state has not decided at its start, by partition.
        undelivered: Letters that the outbox holds at the start.
    """

    def __init__(
        self, topic: str, ops_topic: str, next_offset: Mapping[int, int], undelivered: Iterable[DeadLetter] = ()
    ) -> None:
        super().__init__()
        self._topic = topic
        self._ops_topic = ops_topic
        self._next_offset = dict(next_offset)
        self._oldest_ms = [letter.at_ms for letter in undelivered]
        self._is_loaded = False

    def load(self, consumer: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        """Read the letters that may be sent again, before the first one is sent. Later calls do nothing.

        Args:
            consumer: A KafkaConsumer, whose assignment is replaced.

        Raises:
            Unavailable: Kafka does not answer, so it is not known which letters were sent.
        """
        if self._is_loaded:
            return
        times = [*self._oldest_ms, *self._undecided_ms(consumer)]
        if times:
            self._known = letters_of(consumer, self._topic, min(times))
        self._is_loaded = True

    def _undecided_ms(self, consumer: Any) -> list[int]:  # noqa: ANN401
        """Return the time of the first undecided operation of each partition that has one."""
        first = {TopicPartition(self._ops_topic, number): offset for number, offset in self._next_offset.items()}
        times: dict[int, int] = {}
        for place, offset in first.items():
            for record in _records(consumer, {place: offset}):
                times[place.partition] = record.timestamp
                break
        return list(times.values())


def letters_of(consumer: Any, topic: str, given_up_ms: int) -> set[bytes]:  # noqa: ANN401 - kafka-python has no types
    """Return the identities of the letters in a topic whose messages were given up at a time, or later.

    Args:
        consumer: A KafkaConsumer, whose assignment is replaced.
        topic: The dead-letter topic.
        given_up_ms: The time (`DeadLetter.at_ms`).

    Raises:
        Unavailable: Kafka does not answer, so it is not known which letters were sent.
    """
    since_ms = max(0, given_up_ms - MARGIN_MS)
    places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    if not places:
        message = f"Kafka does not say which partitions {topic} has"
        raise Unavailable(message, subject=topic)
    found = consumer.offsets_for_times(dict.fromkeys(places, since_ms))
    first = {place: at.offset for place, at in found.items() if at is not None}
    known = {identity_of(record.headers) for record in _records(consumer, first)}
    _log.info("earlier_letters", since_ms=since_ms, letters=len(known))
    return known


def _records(consumer: Any, first: Mapping[TopicPartition, int]) -> Iterable[Any]:  # noqa: ANN401
    """Yield the records of partitions from `first` to their present ends.

    Raises:
        Unavailable: Kafka does not hand them all out.
    """
    places = list(first)
    if not places:
        return
    consumer.assign(places)
    end = consumer.end_offsets(places)
    for place, beginning in consumer.beginning_offsets(places).items():
        consumer.seek(place, max(first[place], beginning))
    idle, reached = 0, [consumer.position(place) for place in places]
    while any(at < end[place] for place, at in zip(places, reached, strict=True)):
        for records in consumer.poll(timeout_ms=POLL_MS).values():
            yield from (
                record for record in records if record.offset < end[TopicPartition(record.topic, record.partition)]
            )
        # Not whether there were records: those of aborted transactions are passed over.
        before, reached = reached, [consumer.position(place) for place in places]
        idle = 0 if reached != before else idle + 1
        if idle == _POLLS_MAX:
            topic = places[0].topic
            message = f"Kafka hands out no more records of {topic}, so it is not known which dead letters were sent"
            raise Unavailable(message, subject=topic)
