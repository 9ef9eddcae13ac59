"""Fetches the records of leased ranges of queue offsets, and finds out which of them no longer exist.

One fetcher serves a process (`shared_payloads`). Its thread reads for all calls that wait: queues in parallel, each in
ascending order, so that a record that two groups need is read once. A queue that cannot be read does not delay others,
because each call ends at its own deadline.

It has one consumer, of kafka-python or of librdkafka (`payload_reader`), whose position is kept between calls: its
buffer keeps records that were fetched and decompressed before, so popping a compressed batch in parts neither transfers
nor decompresses it again. It seeks only backwards, and forwards over gaps that would cost more to read. Other records
that it reads on the way are cached, up to `CACHE_BYTES_MAX`.

An offset is *gone* only when this is certain: Kafka has returned a later record or position (control records, aborted
transactions, compaction), or the log starts after it (retention). An offset that Kafka does not return in time - an
open transaction, a partition without a leader - is *late*.
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

from popstream.deadline import left_s
from popstream.errors import ClientClosed
from popstream.payload.block_cache import BlockCache
from popstream.payload.fetch_progress import FetchProgress
from popstream.payload.partition_reader import BOOTSTRAP_TIMEOUT_MS
from popstream.payload.payload_reader import make_reader
from popstream.payload.payloads import FetchCounts, Fetched, Payload
from popstream.payload.read_planner import ReadPlanner
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError, Unavailable
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.settings import ClientSettings

__all__ = ["KafkaPayloads"]

LOG = logging.getLogger(__name__)

Answered = TypeVar("Answered")

CACHE_BYTES_MAX = 32 * 1024 * 1024
CACHE_S_MAX = 30.0
ADMIN_TIMEOUT_MS = 10_000
# After this time without a call the reader rests.
REST_S = 1.0


class _FetchCall(FetchProgress):
    """One call that waits, with its error, if any."""

    def __init__(self, ranges: Sequence[tuple[int, int]], **limits: int | None) -> None:
        super().__init__(ranges, **limits)
        self.error: Exception | None = None
        self.done = threading.Event()


class KafkaPayloads:
    """The records of Kafka. Safe for use by many threads, but not after a fork, see `shared_payloads`.

    It connects at the first fetch.

    Args:
        settings: Where Kafka is.

    Raises:
        Invalid: The `fetch_client` of the settings cannot be used.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._reader = make_reader(settings)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._planner = ReadPlanner[_FetchCall](BlockCache(CACHE_BYTES_MAX, CACHE_S_MAX))
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
        """Fetch the records of the ranges, see `Payloads`."""
        return self._bring(TopicPartition(topic, queue_id), _FetchCall(ranges, bytes_max=bytes_max), timeout_s)

    def expect(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Read records ahead of their fetch, see `Payloads`."""
        with self._changed:
            if not self._is_closed and self._planner.expect(TopicPartition(topic, queue_id), ranges, time.monotonic()):
                self._wake()

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int, timeout_s: float
    ) -> list[tuple[int, Payload]]:
        """Return records from an offset on, see `Payloads`."""
        deadline_s = time.monotonic() + timeout_s
        queue = TopicPartition(topic, queue_id)
        start, end = self._bounds(queue, timeout_s)
        first = max(start, queue_offset)
        if first >= end or count < 1:
            return []
        call = _FetchCall([(first, end - 1)], count_max=count)
        return [*self._bring(queue, call, left_s(deadline_s)).payloads.items()]

    def queue_ids(self, topic: str) -> list[int]:
        """Return the partitions of a topic."""

        def describe(admin: Any) -> list[int]:  # noqa: ANN401 - kafka-python has no types
            (found,) = admin.describe_topics([topic])
            if found["error_code"]:
                raise for_code(found["error_code"])
            return sorted(partition["partition_index"] for partition in found["partitions"])

        return self._ask(topic, describe)

    def counts(self) -> FetchCounts:
        """Return the counts so far."""
        with self._changed:
            return FetchCounts(
                bytes_read=self._reader.bytes_read,
                records_read=self._reader.records_read,
                bytes_delivered=self._delivered_bytes,
                records_delivered=self._delivered_records,
            )

    def close(self) -> None:
        """Disconnect, after all calls have ended, at their deadlines at the latest."""
        with self._changed:
            self._is_closed = True
            self._planner.expect_no_more()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        with self._asking:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def _bring(self, queue: QueueName, call: _FetchCall, timeout_s: float) -> Fetched:
        with self._changed:
            self._require_open()
            if self._planner.add(queue, call, time.monotonic()):
                return self._deliver(call)
            self._wake()
        try:
            call.done.wait(timeout_s)
        finally:
            with self._changed:
                self._planner.withdraw(queue, call)
        if call.error is not None:
            raise _raised(f"{queue[0]}/{queue[1]}", call.error) from call.error
        with self._changed:
            return self._deliver(call)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="popstream-payloads", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _bounds(self, queue: QueueName, timeout_s: float) -> tuple[int, int]:
        """Return where the log of a queue starts, and where its committed part ends."""
        options = {"isolation_level": "read_committed", "timeout_ms": max(1, int(timeout_s * 1000))}

        def bounds(admin: Any) -> tuple[int, int]:  # noqa: ANN401 - kafka-python has no types
            start = admin.list_partition_offsets({queue: OffsetSpec.EARLIEST}, **options)[queue].offset
            end = admin.list_partition_offsets({queue: OffsetSpec.LATEST}, **options)[queue].offset
            return start, end

        return self._ask(f"{queue[0]}/{queue[1]}", bounds)

    def _ask(self, subject: str, question: Callable[[Any], Answered]) -> Answered:
        """Send a metadata request on the caller's thread, over the admin connection."""
        try:
            with self._asking:
                self._require_open()
                if self._admin is None:
                    self._admin = KafkaAdminClient(
                        **{
                            "client_id": f"{self._settings.client_id}-admin",
                            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
                            "request_timeout_ms": ADMIN_TIMEOUT_MS,
                            **self._settings.connection.for_kafka_python(),
                        }
                    )
                admin = self._admin
            return question(admin)
        except (InvalidTopicError, UnknownTopicOrPartitionError) as error:
            message = f"{subject} does not exist"
            raise Invalid(message, subject=subject) from error
        except KafkaError as error:
            raise _raised(subject, error) from error

    def _deliver(self, call: _FetchCall) -> Fetched:
        fetched = call.result()
        self._delivered_bytes += call.payload_bytes
        self._delivered_records += len(fetched.payloads)
        return fetched

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosed.of("fetcher of", self._settings.client_id)

    def _run(self) -> None:
        """Read for the calls that wait; only this thread uses the reader. All consumers of the process depend on it."""
        while self._wait_for_calls():
            targets: dict[QueueName, int] = {}
            try:
                with self._changed:
                    targets = self._planner.targets(time.monotonic())
                if not targets:
                    continue  # what was expected has not been asked for in time
                blocks = self._reader.read(targets)
                with self._changed:
                    for call in self._planner.serve(blocks, time.monotonic()):
                        call.done.set()
            except Exception as error:
                LOG.info("could not read %s", targets, exc_info=True)
                self._fail(targets, error)
        self._reader.close()

    def _wait_for_calls(self) -> bool:
        """Wait until there is something to read; return False when the last call has ended after `close`."""
        with self._changed:
            while not self._planner and not self._is_closed:
                if not self._changed.wait(REST_S):
                    self._reader.rest()
            return bool(self._planner)

    def _fail(self, targets: dict[QueueName, int], error: Exception) -> None:
        """Disconnect, as the state of a consumer after an error is unknown, and end the calls that it concerns."""
        is_connected = self._reader.is_connected
        is_at_target = all(self._reader.is_at(queue, offset) for queue, offset in targets.items())
        self._reader.close()
        with self._changed:
            if not is_connected or not targets:
                failed = self._planner.fail_all()
            elif len(targets) > 1 or is_at_target:
                failed = self._planner.fail(targets, time.monotonic())
            else:
                # It may concern a record before the target. After the reconnect the reader seeks to the target.
                failed = []
            for call in failed:
                call.error = error
                call.done.set()


def _raised(subject: str, error: Exception) -> PopstreamError:
    """Return the error that a call raises when its queue cannot be read."""
    message = f"{subject} cannot be read: {error!r}"
    if isinstance(error, (AuthorizationError, Invalid)):
        return Invalid(message, subject=subject)
    is_damaged = isinstance(error, (CorruptRecordError, UnsupportedCodecError)) or not isinstance(error, KafkaError)
    return (Corrupt if is_damaged else Unavailable)(message, subject=subject)
