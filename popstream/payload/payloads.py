"""The records that a consumer reads, and where it reads them from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FetchCounts", "Fetched", "Payload", "Payloads", "merge_ranges", "size_bytes_of"]


class Payload(msgspec.Struct, frozen=True):
    """The content of a record of a message topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Size of key, value and headers, in bytes.

        >>> Payload(b"k", b"four", [("n", b"22"), ("é", None)], 0).size_bytes
        10
        """
        return size_bytes_of(self.key, self.value, self.headers)


class Fetched(msgspec.Struct, frozen=True):
    """The result of a fetch: each requested offset is in exactly one of these fields.

    Attributes:
        payloads: The records, by queue offset.
        gone: Ranges of offsets that have no record, or whose records were deleted.
        late: Ranges of offsets whose records did not come in time.
        left: Ranges of offsets whose records did not fit into the byte limit.
    """

    payloads: dict[int, Payload]
    gone: list[tuple[int, int]]
    late: list[tuple[int, int]]
    left: list[tuple[int, int]] = []


class FetchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Records read from Kafka, compared with those handed out; a record that two calls get counts twice as handed out.

    Attributes:
        bytes_read: Bytes received on the connections, including protocol overhead and records that were skipped or
            transferred again. It is the sensor `bytes-received` of kafka-python; with `metrics_enabled` false, the
            sizes of the records read, as in `bytes_delivered`. librdkafka reports it once a second.
        bytes_delivered: Size of the keys, values and headers handed out.
        records_read: Records read, including those that were skipped.
        records_delivered: Records handed out.
    """

    bytes_read: int = 0
    bytes_delivered: int = 0
    records_read: int = 0
    records_delivered: int = 0


class Payloads(Protocol):
    """A source of records: Kafka, or memory in tests. Safe for use by many threads."""

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,
        bytes_max: int | None = None,
    ) -> Fetched:
        """Fetch the records of inclusive ranges of queue offsets.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            ranges: In any order.
            timeout_s: Records that have not come by then are late.
            bytes_max: Maximum size of all keys, values and headers. Records are taken in ascending order, at least one;
                the others are left.

        Raises:
            Unavailable: Kafka does not answer, or reports an error.
            Corrupt: A record cannot be read: it is damaged, or its compression codec is not installed.
            Invalid: The client is not authorized to read the topic.
            ClientClosed: The source was closed.
        """

    def expect(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Read records ahead of the `fetch` that will soon be called for them, those of many queues by one request.

        A hint: it neither waits nor raises. What is read ahead and not fetched soon is dropped.
        """

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int, timeout_s: float
    ) -> list[tuple[int, Payload]]:
        """Return up to `count` records with their queue offsets, from the first one at or after `queue_offset` on.

        Returns fewer at the end of the committed records, without waiting for more, and when the time is over.

        Raises:
            Invalid: The topic or the partition does not exist, or the client is not authorized to read it.
            Unavailable: Kafka does not answer, or reports an error.
            Corrupt: A record cannot be read.
            ClientClosed: The source was closed.
        """

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the partitions of a topic.

        Raises:
            Invalid: The topic does not exist, or the client is not authorized to read it.
            Unavailable: Kafka does not answer.
            ClientClosed: The source was closed.
        """

    def counts(self) -> FetchCounts:
        """Return the counts so far, of all consumers that share the source."""

    def close(self) -> None:
        """Disconnect, after the fetches in flight have ended."""


def size_bytes_of(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return the size of key, value and headers, in bytes."""
    size_bytes = len(key or b"") + len(value or b"")
    for name, header in headers:  # not a generator: it is asked for several times for each record
        size_bytes += len(name.encode()) + len(header or b"")
    return size_bytes


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in ascending order; those that touch or overlap are joined.

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
