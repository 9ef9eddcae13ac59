"""Reads partitions of message topics in parallel, with one consumer of librdkafka (`popstream[librdkafka]`).

librdkafka fetches in threads of its own, without the interpreter lock, and puts what it has fetched of all assigned
partitions into one queue. Here that is sorted by partition. A partition is assigned while somebody wants it, and
afterwards until `READ_AHEAD_BYTES` of it have arrived; it is assigned again at the offset after them.

An offset is passed over only when librdkafka has returned a later record, or the end of the partition after it, and no
error before that: of a damaged batch it reports an error and goes on behind it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
    for_code,
)
from kafka.errors import KafkaError as RaisedError

from popstream.payload.librdkafka_config import translate
from popstream.payload.partition_reader import (
    BEYOND_END_PAUSE_S,
    BOOTSTRAP_TIMEOUT_MS,
    FETCH_WAIT_MS,
    IDLE_MAX,
    IDLE_S_MAX,
    POLL_BYTES,
    POLL_MS,
    POLL_RECORDS_MAX,
    READ_THROUGH_MAX,
    START_TIMEOUT_MS,
)
from popstream.payload.payload_block import RECORD_BYTES, PayloadBlock
from popstream.payload.payloads import Payload
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Message

    from popstream.settings import ClientSettings

__all__ = ["LibrdkafkaReader"]

LOG = logging.getLogger(__name__)

# Of a partition that nobody wants at present; what librdkafka has fetched beyond is thrown away, so that the partitions
# behind it in the queue are reached.
READ_AHEAD_BYTES = 1024 * 1024
# Small, as this much may be thrown away; librdkafka requests more while less than FETCHED_RECORDS_MIN are left.
PARTITION_FETCH_BYTES = 256 * 1024
FETCHED_RECORDS_MIN = 1_000
FETCHED_KBYTES_MAX = 8 * 1024
# Not less than the default of message.max.bytes, which librdkafka requires.
FETCH_BYTES_MAX = 4 * 1024 * 1024
# How long librdkafka waits before it looks again whether its queue has room.
FULL_PAUSE_MS = 10
RECONNECT_MS_MAX = 1_000
STATISTICS_MS = 1_000
UNKNOWN_PAUSE_S = 1.0

_UNKNOWN = frozenset((KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART))  # noqa: SLF001 - public names of the C module
_DAMAGED = frozenset((KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION))  # noqa: SLF001
_NOT_SUPPORTED = frozenset((KafkaError._NOT_IMPLEMENTED, KafkaError._UNSUPPORTED_FEATURE))  # noqa: SLF001
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001

_open: list[Consumer] = []


def _keep_of_parent() -> None:
    """Keep the consumers of the parent for ever: to destroy one, librdkafka waits for threads that a fork ends."""
    for consumer in _open:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
    _open.clear()


os.register_at_fork(after_in_child=_keep_of_parent)


class _Statistics(msgspec.Struct):
    rx_bytes: int = 0


class _Place:
    """The state of a partition: `position` is the offset to return next, `end` the one to receive next."""

    def __init__(self) -> None:
        self.position = -1
        self.end = -1
        self.received: deque[Message | RaisedError] = deque()
        self.received_bytes = 0
        self.wanted_s = 0.0
        self.not_before_s = 0.0
        self.is_assigned = False

    def restart(self, offset: int) -> None:
        """Go to an offset, without what was received."""
        self.position = self.end = offset
        self.received.clear()
        self.received_bytes = 0

    def receive(self, message: Message) -> None:
        """Add a record, an end or an error behind what was received."""
        offset, error = message.offset() or 0, message.error()
        if error is None:
            if offset < self.end:
                return
            self.received_bytes += _size_bytes(message)
            self.end = offset + 1
        elif error.code() == _END:
            self.end = max(self.end, offset)
        else:
            self.received.append(_raised(error))
            return
        self.received.append(message)

    def take(self) -> tuple[PayloadBlock | None, RaisedError | None]:
        """Return the next records as a block; or the error that comes next, which stays."""
        records: list[tuple[int, Payload]] = []
        end, size_bytes = self.position, 0
        while self.received and len(records) < POLL_RECORDS_MAX and size_bytes < POLL_BYTES:
            message = self.received[0]
            if isinstance(message, RaisedError):
                if end == self.position:
                    return None, message
                break
            offset = message.offset() or 0
            if message.error() is not None:
                end = max(end, offset)
            else:
                try:
                    records.append((offset, _payload(message)))
                except CorruptRecordError as error:
                    # Not to be asked for its headers again, which would end the process.
                    self.received[0] = error
                    continue
                end = offset + 1
                size_bytes += len(message)
                self.received_bytes -= _size_bytes(message)
            self.received.popleft()
        if end == self.position:
            return None, None
        block = PayloadBlock(self.position, end, records)
        self.position = end
        return block, None


class LibrdkafkaReader:
    """A `PayloadReader` over librdkafka; only metadata requests still go through kafka-python.

    Args:
        settings: Where Kafka is.

    Raises:
        Invalid: librdkafka lacks one of the `kafka` settings.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._config = translate(settings.kafka)
        self._consumer: Any = None
        self._places: dict[QueueName, _Place] = {}
        self._received_bytes = 0
        self._closed_bytes = 0
        self._last_error = ""
        self.records_read = 0

    @property
    def is_connected(self) -> bool:
        """See `PayloadReader`."""
        return self._consumer is not None

    @property
    def bytes_read(self) -> int:
        """See `PayloadReader`; it is a second old."""
        return self._closed_bytes + self._received_bytes

    def is_at(self, queue: QueueName, offset: int) -> bool:
        """See `PayloadReader`."""
        return queue in self._places and self._places[queue].position == offset

    def close(self) -> None:
        """See `PayloadReader`."""
        consumer, self._consumer = self._consumer, None
        self._places.clear()
        self._closed_bytes, self._received_bytes = self.bytes_read, 0
        if consumer is not None:
            _open.remove(consumer)
            try:
                consumer.close()
            except Exception:
                LOG.warning("could not close a consumer", exc_info=True)

    def rest(self) -> None:
        """Let librdkafka fetch nothing, and serve what it wants to tell, which would pile up."""
        if self._consumer is None:
            return
        try:
            self._assign((), [queue for queue, place in self._places.items() if place.is_assigned])
            self._consumer.consume(POLL_RECORDS_MAX, 0)
        except KafkaException:
            LOG.info("librdkafka cannot go on; the next read connects again", exc_info=True)
            self.close()

    def read(self, targets: dict[QueueName, int]) -> dict[QueueName, PayloadBlock]:
        """See `PayloadReader`."""
        try:
            if self._consumer is None:
                self._connect(next(iter(targets)))
            self._turn_to(targets, time.monotonic())
            blocks = self._take(targets)
            if len(blocks) < len(targets):
                self._receive(0 if blocks else POLL_MS / 1000)
                blocks |= self._take(queue for queue in targets if queue not in blocks)
        except KafkaException as error:
            raise _raised(error.args[0]) from error
        return blocks

    def _connect(self, queue: QueueName) -> None:
        settings = self._settings
        config = {
            **settings.connection.for_librdkafka(),
            "client.id": f"{settings.client_id}-payloads",
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            **self._config,
            # It has to have a name, and is never joined.
            "group.id": f"{settings.client_id}-payloads",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.max.bytes": FETCH_BYTES_MAX,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES,
            "queued.min.messages": FETCHED_RECORDS_MIN,
            "queued.max.messages.kbytes": FETCHED_KBYTES_MAX,
            "fetch.queue.backoff.ms": FULL_PAUSE_MS,
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": self._on_statistics,
            "error_cb": self._on_error,
        }
        self._last_error = ""
        _require_token(config)
        try:
            consumer = Consumer(config, logger=LOG)
        except SystemError as error:  # what it raises when it gets no token
            message = "librdkafka has no token: its endpoint has just failed"
            raise KafkaConnectionError(message) from error
        except (KafkaException, TypeError, ValueError) as error:
            message = f"librdkafka refuses its settings: {error}"
            raise Invalid(message, subject=settings.client_id) from error
        timeout_ms = settings.kafka.get("bootstrap_timeout_ms") or BOOTSTRAP_TIMEOUT_MS
        try:
            # librdkafka itself never says that no broker can be reached.
            consumer.list_topics(queue[0], timeout=timeout_ms / 1000)
            consumer.poll(0)
        except KafkaException as error:
            consumer.poll(0)
            consumer.close()
            message = f"{error.args[0].str()}; {self._last_error}" if self._last_error else error.args[0].str()
            raise KafkaConnectionError(message) from error
        self._consumer = consumer
        _open.append(consumer)

    def _on_statistics(self, text: str) -> None:
        self._received_bytes = msgspec.json.decode(text, type=_Statistics).rx_bytes

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()
        LOG.info("librdkafka: %s", error)

    def _turn_to(self, targets: dict[QueueName, int], now_s: float) -> None:
        """Assign the targets, where reading on is not faster at their offsets; give up what nobody wants."""
        started: list[QueueName] = []
        stopped: list[QueueName] = []
        for queue, offset in targets.items():
            place = self._places.pop(queue, None) or _Place()
            place.wanted_s = now_s
            self._places[queue] = place
            if place.position < 0 or not place.position <= offset <= place.position + READ_THROUGH_MAX:
                place.restart(offset)
                if place.is_assigned:
                    stopped.append(queue)
                started.append(queue)
            elif not place.is_assigned and place.not_before_s <= now_s:
                started.append(queue)
        given_up: list[QueueName] = []
        idle = [queue for queue in self._places if queue not in targets]
        for number, queue in enumerate(reversed(idle)):
            place = self._places[queue]
            is_given_up = number >= IDLE_MAX or now_s - place.wanted_s > IDLE_S_MAX
            if is_given_up:
                given_up.append(queue)
            if place.is_assigned and (is_given_up or place.received_bytes > READ_AHEAD_BYTES):
                stopped.append(queue)
        self._assign(started, stopped)
        for queue in given_up:
            del self._places[queue]

    def _assign(self, started: Iterable[QueueName], stopped: Iterable[QueueName]) -> None:
        """End the assignment of some partitions, and begin that of others at the offset to receive next."""
        for queue in stopped:
            self._places[queue].is_assigned = False
        ends = [TopicPartition(*queue) for queue in stopped]
        if ends:
            self._consumer.incremental_unassign(ends)
        begins = [TopicPartition(*queue, self._places[queue].end) for queue in started]
        if begins:
            self._consumer.incremental_assign(begins)
        for queue in started:
            self._places[queue].is_assigned = True

    def _receive(self, timeout_s: float) -> None:
        """Sort what librdkafka has fetched, after waiting for the first of it."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        # `consume` with a time-out would wait until it has as many as it may return.
        for message in (first, *self._consumer.consume(POLL_RECORDS_MAX, 0)):
            queue = (message.topic(), message.partition())
            place = self._places.get(queue)
            if place is None or not place.is_assigned:
                # About no partition, such as the coordinator of the group that is not used; or given up.
                continue
            error = message.error()
            if error is not None and error.code() in _UNKNOWN:
                place.not_before_s = time.monotonic() + UNKNOWN_PAUSE_S
                self._assign((), [queue])
            else:
                place.receive(message)

    def _take(self, queues: Iterable[QueueName]) -> dict[QueueName, PayloadBlock]:
        """Return a block of what was received of each queue."""
        blocks: dict[QueueName, PayloadBlock] = {}
        for queue in queues:
            block, error = self._places[queue].take()
            if isinstance(error, OffsetOutOfRangeError):
                block = self._find_start(queue)
            elif error is not None:
                raise error
            if block is not None:
                blocks[queue] = block
                self.records_read += len(block.offsets)
        return blocks

    def _find_start(self, queue: QueueName) -> PayloadBlock | None:
        """Return the offsets that are gone, after Kafka has reported the position as out of range."""
        place = self._places[queue]
        try:
            start, _ = self._consumer.get_watermark_offsets(
                TopicPartition(*queue), timeout=START_TIMEOUT_MS / 1000, cached=False
            )
        except KafkaException:
            start = -1
        if place.is_assigned:
            self._assign((), [queue])
        first = place.position
        if start <= first:
            # Beyond the end: not written yet, or the log was truncated. Not certainly gone, so wait.
            place.not_before_s = time.monotonic() + BEYOND_END_PAUSE_S
            place.restart(first)
            return None
        LOG.warning("%s starts at %d now, so the offsets from %d to there are gone", queue, start, first)
        place.restart(start)
        return PayloadBlock(first, start)


def _require_token(config: dict[str, Any]) -> None:
    """Fail at once where there is no token: librdkafka would wait for one for ten seconds, and not say why."""
    if "oauth_cb" not in config:
        return
    try:
        config["oauth_cb"]("")
    except Unavailable as error:
        raise KafkaConnectionError(str(error)) from error


def _payload(message: Message) -> Payload:
    kind, timestamp_ms = message.timestamp()
    timestamp_ms = -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms
    try:
        # Of a name that is not UTF-8 `headers` returns a broken list besides its exception, which Python may not notice
        # before the next call: here.
        headers: Any = message.headers()
        return Payload(message.key(), message.value(), headers or [], timestamp_ms)
    except (SystemError, UnicodeDecodeError) as error:
        text = f"the name of a header at offset {message.offset()} is not UTF-8"
        raise CorruptRecordError(text) from error


def _size_bytes(message: Message) -> int:
    return len(message) + RECORD_BYTES


def _raised(error: KafkaError) -> RaisedError:
    """Return the error of kafka-python that means the same."""
    code, text = error.code(), f"{error.name()}: {error.str()}"
    if code == _OUT_OF_RANGE:
        return OffsetOutOfRangeError(text)
    if code in _DAMAGED:
        return CorruptRecordError(text)
    if code in _NOT_SUPPORTED:
        return UnsupportedCodecError(text)
    # Codes below zero are librdkafka's own.
    return for_code(code)(text) if code > 0 else KafkaConnectionError(text)
