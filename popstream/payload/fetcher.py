"""Brings the records of leased ranges of queue offsets, and tells which of them no longer exist.

One fetcher serves a process (`shared_payloads`). A thread of it reads for all calls that wait: queues side by side, in
each of them upwards, so that what two groups want is read once. A queue that cannot be read holds up nobody else, for
each call ends at its own deadline, whatever the thread is doing.

One KafkaConsumer, which stands still between calls: its buffer keeps what was fetched and decompressed already, so
popping a compressed batch bit by bit neither transfers nor decompresses it again. It moves (seeks) only backwards, and
forwards over a gap that is longer than what reading through it costs. What was read beside the wanted is kept for a
while, within `KEPT_BYTES_MAX`.

An offset is *gone* only when it is certain: Kafka has given a later record or position (a control record, an aborted
transaction, compaction), or the log starts after it (retention). An offset that Kafka does not give in time - an open
transaction, a partition without a leader - is *late*.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.errors import (
    AuthorizationError,
    CorruptRecordError,
    InvalidTopicError,
    KafkaError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    for_code,
)

from popstream.errors import ClientClosed
from popstream.payload.partition_reader import BOOTSTRAP_TIMEOUT_MS, PartitionReader
from popstream.payload.payloads import Demand, FetchCounts, Fetched, Kept, Payload, Wanted
from popstream.wire.failures import Corrupt, Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.outcome import QueueKey
    from popstream.settings import ClientSettings

__all__ = ["KafkaPayloads", "closed"]

LOG = logging.getLogger(__name__)

Answered = TypeVar("Answered")

KEPT_BYTES_MAX = 16 * 1024 * 1024
KEPT_S_MAX = 30.0
ADMIN_TIMEOUT_MS = 10_000


class _Call(Wanted):
    """One call that waits, and how it ends early."""

    def __init__(self, ranges: Sequence[tuple[int, int]], **limits: int | None) -> None:
        super().__init__(ranges, **limits)
        self.error: Exception | None = None
        self.done = threading.Event()


class KafkaPayloads:
    """Payloads from Kafka. Safe for use by many threads; not after a fork, see `shared_payloads`.

    Args:
        settings: Where Kafka is.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """Connect at the first fetch."""
        self._settings = settings
        self._reader = PartitionReader(settings)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._demand = Demand[_Call](Kept(KEPT_BYTES_MAX, KEPT_S_MAX))
        self._delivered_bytes = 0
        self._delivered_records = 0
        self._asking = threading.Lock()
        self._admin: Any = None

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,
        bytes_max: int | None = None,
    ) -> Fetched:
        """Records of the ranges."""
        return self._bring(TopicPartition(topic, queue_id), _Call(ranges, bytes_max=bytes_max), timeout_s)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int, timeout_s: float
    ) -> list[tuple[int, Payload]]:
        """Records from an offset on."""
        deadline_s = time.monotonic() + timeout_s
        queue = TopicPartition(topic, queue_id)
        start, end = self._bounds(queue, timeout_s)
        first = max(start, queue_offset)
        if first >= end or count < 1:
            return []
        call = _Call([(first, end - 1)], count_max=count)
        return [*self._bring(queue, call, max(0.0, deadline_s - time.monotonic())).payloads.items()]

    def queue_ids(self, topic: str) -> list[int]:
        """The partitions of a topic."""

        def describe(admin: Any) -> list[int]:  # noqa: ANN401 - kafka-python has no types
            (found,) = admin.describe_topics([topic])
            if found["error_code"]:
                raise for_code(found["error_code"])
            return sorted(partition["partition_index"] for partition in found["partitions"])

        return self._ask(topic, describe)

    def counts(self) -> FetchCounts:
        """What was read and handed out so far."""
        with self._changed:
            return FetchCounts(
                bytes_read=self._reader.bytes_read,
                records_read=self._reader.records_read,
                bytes_delivered=self._delivered_bytes,
                records_delivered=self._delivered_records,
            )

    def close(self) -> None:
        """Disconnect; calls that wait end first, at their deadlines at the latest."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        with self._asking:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def _bring(self, queue: QueueKey, call: _Call, timeout_s: float) -> Fetched:
        with self._changed:
            self._require_open()
            if self._demand.ask(queue, call, time.monotonic()):
                return self._deliver(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="popstream-payloads", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            call.done.wait(timeout_s)
        finally:
            with self._changed:
                self._demand.withdraw(queue, call)
        if call.error is not None:
            raise _raised(f"{queue[0]}/{queue[1]}", call.error) from call.error
        with self._changed:
            return self._deliver(call)

    def _bounds(self, queue: QueueKey, timeout_s: float) -> tuple[int, int]:
        """Where the log of a queue starts, and where the committed part of it ends."""
        options = {"isolation_level": "read_committed", "timeout_ms": max(1, int(timeout_s * 1000))}

        def bounds(admin: Any) -> tuple[int, int]:  # noqa: ANN401 - kafka-python has no types
            start = admin.list_partition_offsets({queue: OffsetSpec.EARLIEST}, **options)[queue].offset
            end = admin.list_partition_offsets({queue: OffsetSpec.LATEST}, **options)[queue].offset
            return start, end

        return self._ask(f"{queue[0]}/{queue[1]}", bounds)

    def _ask(self, subject: str, question: Callable[[Any], Answered]) -> Answered:
        """Ask Kafka about what there is, on the caller's thread and over a connection for that."""
        try:
            with self._asking:
                self._require_open()
                if self._admin is None:
                    self._admin = KafkaAdminClient(
                        **{
                            "bootstrap_servers": self._settings.bootstrap_servers.split(","),
                            "client_id": f"{self._settings.client_id}-admin",
                            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
                            "request_timeout_ms": ADMIN_TIMEOUT_MS,
                            **self._settings.kafka,
                        }
                    )
                admin = self._admin
            return question(admin)
        except (InvalidTopicError, UnknownTopicOrPartitionError) as error:
            message = f"{subject} does not exist"
            raise Invalid(message, subject=subject) from error
        except KafkaError as error:
            raise _raised(subject, error) from error

    def _deliver(self, call: _Call) -> Fetched:
        fetched = call.result()
        self._delivered_bytes += call.payload_bytes
        self._delivered_records += len(fetched.payloads)
        return fetched

    def _require_open(self) -> None:
        if self._is_closed:
            raise closed(self._settings)

    def _run(self) -> None:
        """Read for those who wait; the only thread that touches the reader."""
        while True:
            with self._changed:
                while not self._demand and not self._is_closed:
                    self._changed.wait()
                if not self._demand:
                    break
                targets = self._demand.targets(time.monotonic())
            try:
                blocks = self._reader.read(targets)
            except Exception as error:
                LOG.info("reading %s failed", targets, exc_info=True)
                self._fail(targets, error)
            else:
                with self._changed:
                    for call in self._demand.bring(blocks, time.monotonic()):
                        call.done.set()
        self._reader.close()

    def _fail(self, targets: dict[QueueKey, int], error: Exception) -> None:
        """Connect anew, for the state of kafka-python after an error is not known; end the calls it is about."""
        is_connected = self._reader.is_connected
        is_at_target = all(self._reader.is_at(queue, offset) for queue, offset in targets.items())
        self._reader.close()
        with self._changed:
            if not is_connected:
                failed = self._demand.fail_all()
            elif len(targets) > 1 or is_at_target:
                failed = self._demand.fail(targets, time.monotonic())
            else:
                # It may be about what was read through on the way. Without a place there will be a seek.
                failed = []
            for call in failed:
                call.error = error
                call.done.set()


def _raised(subject: str, error: Exception) -> PopstreamError:
    """What a call raises when its queue cannot be read."""
    message = f"{subject} cannot be read: {error!r}"
    if isinstance(error, (AuthorizationError, Invalid)):
        return Invalid(message, subject=subject)
    is_damaged = isinstance(error, (CorruptRecordError, UnsupportedCodecError)) or not isinstance(error, KafkaError)
    return (Corrupt if is_damaged else Unavailable)(message, subject=subject)


def closed(settings: ClientSettings) -> ClientClosed:
    """What is raised once nothing is fetched any more."""
    message = f"the payloads of {settings.client_id} are closed"
    return ClientClosed(message, subject=settings.client_id)
