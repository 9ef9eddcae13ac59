"""Topics in memory, with dead letters as `copy_of` makes them, and a consumer of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition

from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HOUR_MS", "LETTER", "NOW_MS", "Consumer", "Topics"]

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
LETTER = DeadLetter("orders", 0, "g", 10, 12, "attempt_limit", 16, 1, 7, NOW_MS, 0, 99)


class Topics:
    """Kafka: the records of each partition, by offset."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[Any]] = {}

    def add(self, topic: str, time_ms: int, headers: Iterable[tuple[str, bytes]] = (), partition: int = 0) -> None:
        log = self.records.setdefault(TopicPartition(topic, partition), [])
        log.append(
            SimpleNamespace(
                topic=topic,
                partition=partition,
                offset=len(log),
                timestamp=time_ms,
                headers=list(headers),
                key=None,
                value=b"v",
            )
        )

    def letter(
        self,
        letter: DeadLetter,
        queue_offset: int,
        time_ms: int = NOW_MS,
        partition: int = 0,
        *,
        topic: str = "dead",
    ) -> None:
        message: Any = SimpleNamespace(headers=[("popstream.group", b"of an older letter")], key=b"k", value=b"v")
        self.add(topic, time_ms, copy_of(letter, queue_offset, message).headers, partition)


class Consumer:
    """Reads them, one record at a time."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._position: dict[TopicPartition, int] = {}
        self.read: list[TopicPartition] = []
        self.silent: set[TopicPartition] = set()

    def partitions_for_topic(self, name: str) -> set[int]:
        return {place.partition for place in self._topics.records if place.topic == name}

    def assign(self, places: list[TopicPartition]) -> None:
        self._position = dict.fromkeys(places, 0)

    def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: len(self._topics.records.get(place, ())) for place in places}

    def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return {
            place: next((record for record in self._topics.records[place] if record.timestamp >= time_ms), None)
            for place, time_ms in times.items()
        }

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._position[place] = offset

    def position(self, place: TopicPartition) -> int:
        return self._position[place]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        assert timeout_ms
        for place, position in self._position.items():
            if place not in self.silent and position < len(self._topics.records.get(place, ())):
                self._position[place] += 1
                self.read.append(place)
                return {place: [self._topics.records[place][position]]}
        return {}

    def close(self) -> None:
        """Nothing is open."""
