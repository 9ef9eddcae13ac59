"""Reads partitions of message topics in parallel, with one KafkaConsumer that keeps its position between reads."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError
from kafka.metrics.stats import Total

from popstream.kafka_internals import require_members
from popstream.payload.payload_block import PayloadBlock
from popstream.payload.payloads import Payload
from popstream.wire.base_errors import Invalid
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from popstream.settings import ClientSettings

__all__ = ["IDLE_MAX", "PartitionReader"]

LOG = logging.getLogger(__name__)

FETCH_BYTES_MAX = 16 * 1024 * 1024
# Per partition and request, and less of each the more are read lately: what they bring together has to stay in the
# cache until it is wanted. Kafka returns the first batch whole even if it is larger, so any message fits.
PARTITION_FETCH_BYTES = 1024 * 1024
PARTITION_FETCH_BYTES_MIN = 16 * 1024
FETCH_BYTES_LATELY = 4 * 1024 * 1024
LATELY_S = 10.0
# Only existing offsets are read. A longer wait would delay the next queue on the same broker, which gets one request at
# a time.
FETCH_WAIT_MS = 20
# A call that arrives while the thread polls Kafka waits for this long at most.
POLL_MS = 20
# Records are unpacked in portions of about this size.
POLL_BYTES = 1024 * 1024
POLL_RECORDS_FIRST = 32
POLL_RECORDS_MAX = 500
# Larger gaps are skipped by a seek: a record costs about 10 us, a seek at least one request of up to 1 MiB.
READ_THROUGH_MAX = 500
# Number of partitions without waiting calls whose buffer is kept, each of PARTITION_FETCH_BYTES or one batch.
IDLE_MAX = 16
IDLE_S_MAX = 30.0
BEYOND_END_PAUSE_S = 0.1
START_TIMEOUT_MS = 1_000
BOOTSTRAP_TIMEOUT_MS = 10_000


class _Place:
    """The state of the consumer in one partition; `position` is the offset that it reads next."""

    def __init__(self) -> None:
        self.position = -1
        self.wanted_s = 0.0
        self.not_before_s = 0.0
        self.is_paused = False
        self.is_reached = True


class PartitionReader:
    """Reads partitions with one KafkaConsumer, for one thread; it can be used again after `close`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._places: dict[QueueName, _Place] = {}
        self._lately: dict[QueueName, float] = {}
        self._poll_records: dict[str, int] = {}
        self._received: Total | None = None
        self._closed_bytes = 0
        self.records_read = 0

    @property
    def is_connected(self) -> bool:
        """Whether it has a consumer."""
        return self._consumer is not None

    def is_at(self, queue: QueueName, offset: int) -> bool:
        """Tell whether it reads `offset` of a queue next."""
        return queue in self._places and self._places[queue].position == offset

    @property
    def bytes_read(self) -> int:
        """Number of bytes received so far; see `FetchCounts`."""
        received = self._received
        return self._closed_bytes + (int(received.measure(None, 0)) if received is not None else 0)

    def rest(self) -> None:
        """Nothing to do: kafka-python works only while it is polled."""

    def close(self) -> None:
        """Disconnect; the next read connects again."""
        consumer, self._consumer = self._consumer, None
        self._places.clear()
        self._closed_bytes, self._received = self.bytes_read, None
        if consumer is not None:
            try:
                consumer.close(autocommit=False)
            except Exception:
                LOG.warning("could not close a consumer", exc_info=True)

    def read(self, targets: dict[QueueName, int]) -> dict[QueueName, PayloadBlock]:
        """Read on towards the targets for a moment; return the block of each partition that moved."""
        if self._consumer is None:
            self._connect()
        now_s = time.monotonic()
        self._assign(targets, now_s)
        active = {queue for queue in targets if self._places[queue].not_before_s <= now_s}
        self._pause_all_but(active)
        if not active:
            time.sleep(POLL_MS / 1000)
            return {}
        for queue in active:
            self._turn_to(queue, targets[queue])
        blocks = self._poll(active, 0) or self._poll(active, POLL_MS)
        for queue, offset in targets.items():
            self._places[queue].is_reached = self._places[queue].position > offset
        return blocks

    def _connect(self) -> None:
        consumer = KafkaConsumer(
            **{
                "client_id": f"{self._settings.client_id}-payloads",
                "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
                "fetch_max_wait_ms": FETCH_WAIT_MS,
                "fetch_max_bytes": FETCH_BYTES_MAX,
                "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
                **self._settings.connection.for_kafka_python(),
                "group_id": None,
                "enable_auto_commit": False,
                "isolation_level": "read_committed",
                "auto_offset_reset": "none",
                "allow_auto_create_topics": False,
            }
        )
        try:
            require_members(consumer, "_fetcher._next_partition_records", "_fetcher.config")
        except Invalid:
            consumer.close(autocommit=False)
            raise
        self._consumer = consumer
        # kafka-python's metrics of bytes are rates over a window; their sensor can also keep a total.
        metrics: Any = getattr(consumer, "_metrics", None)
        sensor = metrics.get_sensor("bytes-received") if metrics else None
        if sensor:
            self._received = Total()
            sensor.add(metrics.metric_name("incoming-byte-total", "popstream"), self._received)

    def _assign(self, targets: dict[QueueName, int], now_s: float) -> None:
        """Assign the targets, and the idle partitions that were read last."""
        before = set(self._places)
        for queue in targets:
            place = self._places.pop(queue, None) or _Place()
            place.wanted_s = now_s
            self._places[queue] = place
        idle = [queue for queue in self._places if queue not in targets]
        for number, queue in enumerate(reversed(idle)):
            place = self._places[queue]
            # A partition that was given up may hold an error that was not raised yet, or half of a batch behind it:
            # resuming it would make kafka-python loop for ever.
            if number >= IDLE_MAX or now_s - place.wanted_s > IDLE_S_MAX or not place.is_reached:
                del self._places[queue]
        if set(self._places) != before:
            self._consumer.assign([*self._places])
            self._set_fetch_bytes(targets, now_s)

    def _set_fetch_bytes(self, targets: dict[QueueName, int], now_s: float) -> None:
        self._lately = {queue: read_s for queue, read_s in self._lately.items() if now_s - read_s < LATELY_S}
        self._lately |= dict.fromkeys(targets, now_s)
        fair_bytes = FETCH_BYTES_LATELY // len(self._lately)
        self._consumer._fetcher.config["max_partition_fetch_bytes"] = max(  # noqa: SLF001 - checked by `_connect`
            PARTITION_FETCH_BYTES_MIN, min(fair_bytes, PARTITION_FETCH_BYTES)
        )

    def _pause_all_but(self, active: set[QueueName]) -> None:
        for queue, place in self._places.items():
            if place.is_paused == (queue in active):
                (self._consumer.resume if place.is_paused else self._consumer.pause)(queue)
                place.is_paused = not place.is_paused

    def _turn_to(self, queue: QueueName, offset: int) -> None:
        """Seek to an offset, unless reading on is faster."""
        place = self._places[queue]
        if place.position < 0 or not place.position <= offset <= place.position + READ_THROUGH_MAX:
            self._consumer.seek(queue, offset)
            place.position = offset

    def _poll(self, active: set[QueueName], timeout_ms: int) -> dict[QueueName, PayloadBlock]:
        blocks: dict[QueueName, PayloadBlock] = {}
        polled: dict[QueueName, Any] = {}
        self._free_slot()
        try:
            max_records = min(
                self._poll_records.get(topic, POLL_RECORDS_FIRST) for topic in {topic for topic, _ in active}
            )
            polled = self._consumer.poll(timeout_ms=timeout_ms, max_records=max_records)
        except OffsetOutOfRangeError as error:
            for queue in error.args[0]:
                blocks |= self._find_start(queue)
        for queue in active:
            place = self._places[queue]
            end = self._consumer.position(queue, timeout_ms=0)
            if end is None or end <= place.position:
                continue
            found = polled.get(queue, ())
            block = PayloadBlock(
                place.position,
                end,
                [(one.offset, Payload(one.key, one.value, list(one.headers or ()), one.timestamp)) for one in found],
            )
            place.position = end
            blocks[queue] = block
            if found:
                self.records_read += len(found)
                before = self._poll_records.get(queue[0], POLL_RECORDS_FIRST)
                self._poll_records[queue[0]] = _poll_records(before, block.payload_bytes // len(found))
                if self._received is None:
                    self._closed_bytes += block.payload_bytes
        return blocks

    def _find_start(self, queue: QueueName) -> dict[QueueName, PayloadBlock]:
        """Return the offsets that are gone, after Kafka has reported the position as out of range."""
        place = self._places[queue]
        try:
            start = self._consumer.beginning_offsets([queue], timeout_ms=START_TIMEOUT_MS)[queue]
        except KafkaTimeoutError:
            start = -1
        if start <= place.position:
            # Beyond the end: not written yet, or the log was truncated. Not certainly gone, so wait.
            place.not_before_s = time.monotonic() + BEYOND_END_PAUSE_S
            return {}
        LOG.warning("%s starts at %d now, so the offsets from %d to there are gone", queue, start, place.position)
        block = PayloadBlock(place.position, start)
        self._consumer.seek(queue, start)
        place.position = start
        return {queue: block}

    def _free_slot(self) -> None:
        """Make kafka-python find the records of partitions that were paused while it unpacked them.

        Version 3.0.12 looks for them only while its slot for the partition being unpacked is None, but leaves an
        exhausted partition in the slot: a partition that is resumed then is neither unpacked nor fetched until another
        one is paused.
        """
        fetcher = self._consumer._fetcher  # noqa: SLF001 - checked by `_connect`
        if not fetcher._next_partition_records:  # noqa: SLF001
            fetcher._next_partition_records = None  # noqa: SLF001


def _poll_records(before: int, record_bytes: int) -> int:
    """Return the number of records to unpack next time: about POLL_BYTES, at most twice as many as before.

    >>> _poll_records(32, 100), _poll_records(64, 1024 * 1024)
    (64, 1)
    """
    return max(1, min(2 * before, POLL_BYTES // max(1, record_bytes), POLL_RECORDS_MAX))
