"""Brings the records of leased ranges of queue offsets, and tells which of them no longer exist.

One KafkaConsumer, which stands still between calls: its buffer keeps what was fetched and decompressed already, so
popping a compressed batch bit by bit neither transfers nor decompresses it again. It moves (seeks) only backwards, and
forwards over a gap that is longer than what reading through it costs.

An offset is *gone* only when it is certain: Kafka has given a later record or position (a control record, an aborted
transaction, compaction), or the log starts after it (retention). An offset that Kafka does not give in time - an open
transaction, a partition without a leader - is *late*.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from connectors.client.coalescer import ranges_of
from connectors.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connectors.client.settings import ClientSettings

__all__ = ["Fetched", "KafkaPayloads", "Payload", "Payloads", "merge_ranges"]

LOG = logging.getLogger(__name__)

FETCH_BYTES_MAX = 50 * 1024 * 1024
# What one request brings of a partition; Kafka gives the first batch whole even if it is larger, so any message fits.
PARTITION_FETCH_BYTES = 1024 * 1024
# Only what exists is asked for. A long wait here would hold up the next queue on the same broker: one request at a time
# each.
FETCH_WAIT_MS = 20
POLL_S = 0.1
POLL_RECORDS_MAX = 2_000
# Reading a record costs about 10 us, a seek at least one request of up to 1 MiB.
READ_THROUGH_MAX = 500
NOWHERE = -1


class Payload(msgspec.Struct, frozen=True):
    """What a record of a message topic holds."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class Fetched(msgspec.Struct, frozen=True):
    """Every offset asked for is in exactly one of these."""

    payloads: dict[int, Payload]
    gone: list[tuple[int, int]]
    late: list[tuple[int, int]]


class Payloads(Protocol):
    """Where a consumer gets its payloads from: Kafka, or memory in tests."""

    def fetch(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]], timeout_s: float) -> Fetched:
        """Records of inclusive ranges of queue offsets.

        Raises:
            Unavailable: Kafka does not answer, or refuses.
            Corrupt: A record cannot be read: damaged, or compressed with a codec that is not installed here.
        """

    def close(self) -> None:
        """Disconnect; a fetch that is under way ends first."""


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, those that touch or overlap made one.

    >>> merge_ranges([(5, 9), (0, 4), (12, 12), (8, 10)])
    [(0, 10), (12, 12)]
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


class _Place:
    """Where the consumer stands in one partition: it reads `position` next, and still has `ahead` of what it read.

    Everything in `known_from..position - 1` was read and not handed out: it is in `ahead`, or does not exist.
    """

    def __init__(self) -> None:
        self.known_from = NOWHERE
        self.position = NOWHERE
        self.ahead: dict[int, Payload] = {}

    def reaches(self, offset: int) -> bool:
        """Whether reading on gives `offset` sooner than a seek."""
        return self.position >= 0 and self.known_from <= offset <= self.position + READ_THROUGH_MAX

    def stand_at(self, offset: int) -> None:
        self.known_from = self.position = offset
        self.ahead.clear()

    def forget_until(self, offset: int) -> None:
        """Nothing below `offset` is needed from here on."""
        self.known_from = max(self.known_from, offset)
        for passed in [known for known in self.ahead if known < offset]:
            del self.ahead[passed]


class KafkaPayloads:
    """Payloads from Kafka. Safe for use by many threads, one fetch at a time.

    Args:
        settings: Where Kafka is.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """Connect at the first fetch."""
        self._settings = settings
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._places: dict[TopicPartition, _Place] = {}
        self._reading: TopicPartition | None = None

    def fetch(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]], timeout_s: float) -> Fetched:
        """Records of the ranges."""
        partition = TopicPartition(topic, queue_id)
        deadline_s = time.monotonic() + timeout_s
        fetched = Fetched({}, [], [])
        with self._lock:
            try:
                place = self._turn_to(partition)
                for first, last in merge_ranges(ranges):
                    self._fetch_range(partition, place, (first, last), deadline_s, fetched)
            except KafkaError as error:
                if partition in self._places:
                    self._places[partition].stand_at(NOWHERE)
                kind = Unavailable if error.retriable else Corrupt
                message = f"payloads of {topic}/{queue_id} cannot be read: {error!r}"
                raise kind(message, subject=f"{topic}/{queue_id}") from error
        return fetched

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close(autocommit=False)
                self._consumer = None

    def _turn_to(self, partition: TopicPartition) -> _Place:
        """Let only this partition be read; the others keep what they have buffered."""
        if self._consumer is None:
            self._consumer = KafkaConsumer(
                bootstrap_servers=self._settings.bootstrap_servers.split(","),
                client_id=f"{self._settings.client_id}-payloads",
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                fetch_max_bytes=FETCH_BYTES_MAX,
                max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
                **self._settings.kafka,
            )
        place = self._places.get(partition)
        if place is None:
            place = self._places[partition] = _Place()
            self._consumer.assign([*self._places])
        if self._reading != partition:
            others = [other for other in self._places if other != partition]
            if others:
                self._consumer.pause(*others)
            self._consumer.resume(partition)
            self._reading = partition
        return place

    def _fetch_range(
        self, partition: TopicPartition, place: _Place, wanted: tuple[int, int], deadline_s: float, fetched: Fetched
    ) -> None:
        first, last = wanted
        if not place.reaches(first):
            self._seek(partition, place, first)
        while place.position <= last and time.monotonic() < deadline_s:
            self._read(partition, place, first, last)
        missing = []
        for offset in range(first, min(last + 1, place.position)):
            payload = place.ahead.get(offset)
            if payload is None:
                missing.append(offset)
            else:
                fetched.payloads[offset] = payload
        fetched.gone.extend(ranges_of(missing))
        if place.position <= last:
            fetched.late.append((max(first, place.position), last))
        place.forget_until(min(last + 1, place.position))

    def _read(self, partition: TopicPartition, place: _Place, first: int, last: int) -> None:
        """Read on a little. Records from `first` on are kept, also beyond `last`: the next call may want them."""
        count = min(last - place.position + 1, POLL_RECORDS_MAX)
        try:
            polled = self._consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=count)
        except OffsetOutOfRangeError:
            start = self._consumer.beginning_offsets([partition])[partition]
            if start <= place.position:
                # Beyond the end: not written yet, or the log was cut. Not gone, so let time pass.
                time.sleep(POLL_S)
                self._consumer.seek(partition, place.position)
                return
            LOG.warning("%s starts at %d now, so offsets from %d on are gone", partition, start, place.position)
            place.position = start
            self._consumer.seek(partition, start)
            return
        for record in polled.get(partition, ()):
            if record.offset >= first:
                place.ahead[record.offset] = Payload(
                    record.key, record.value, list(record.headers or ()), record.timestamp
                )
        place.position = max(place.position, self._consumer.position(partition))

    def _seek(self, partition: TopicPartition, place: _Place, offset: int) -> None:
        self._consumer.seek(partition, offset)
        place.stand_at(offset)
