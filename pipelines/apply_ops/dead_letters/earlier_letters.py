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

__all__ = ["EarlierLetters"]

_log = structlog.get_logger(__name__)

MARGIN_MS = 600_000
"""Letters have the time of the job's host, and operations that of a broker."""
POLL_MS = 200
_POLLS_MAX = 50
"""Polls in a row that do not go on, after which the start fails: a letter that is not known would be sent twice."""


class EarlierLetters:
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
        self._topic = topic
        self._ops_topic = ops_topic
        self._next_offset = dict(next_offset)
        self._oldest_ms = [letter.at_ms for letter in undelivered]
        self._known: set[bytes] = set()
        self._is_loaded = False

    def take(self, headers: Iterable[tuple[str, bytes]]) -> bool:
        """Return whether a letter with these headers was sent before. Each counts once."""
        if not self._known:
            return False
        identity = identity_of(headers)
        if identity not in self._known:
            return False
        self._known.remove(identity)
        return True

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
            since = min(times) - MARGIN_MS
            places = [TopicPartition(self._topic, number) for number in consumer.partitions_for_topic(self._topic)]
            if not places:
                message = f"Kafka does not say which partitions {self._topic} has"
                raise Unavailable(message, subject=self._topic)
            found = consumer.offsets_for_times(dict.fromkeys(places, max(0, since)))
            first = {place: at.offset for place, at in found.items() if at is not None}
            for record in _records(consumer, first):
                self._known.add(identity_of(record.headers))
            _log.info("earlier_letters", since_ms=since, letters=len(self._known))
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
