"""Message topics in memory: the source of records of a `MemoryJob`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from popstream.exchange.coalescer import ranges_of
from popstream.payload.payloads import FetchCounts, Fetched, Payload, merge_ranges
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


__all__ = ["MemoryTopics"]


class MemoryTopics:
    """The records of all queues, as `popstream.payload.payloads.Payloads`. Safe for use by many threads.

    Attributes:
        deleted: (topic, queue_id, queue_offset) of records that are gone.
        late: Likewise, of records that cannot be read yet.
        damaged: Likewise, of records that cannot be read at all.
    """

    def __init__(self) -> None:
        self.deleted: set[tuple[str, int, int]] = set()
        self.late: set[tuple[str, int, int]] = set()
        self.damaged: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()
        self._queues: dict[QueueName, list[Payload]] = {}
        self._counts = FetchCounts()

    @property
    def queues(self) -> list[QueueName]:
        """All queues."""
        return list(self._queues)

    def queue(self, topic: str, queue_id: int) -> list[Payload]:
        """Return the records of a queue, to append to; a queue that does not exist is created."""
        return self._queues.setdefault((topic, queue_id), [])

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic.

        Raises:
            Invalid: The topic does not exist.
        """
        found = sorted(queue_id for name, queue_id in self._queues if name == topic)
        if not found:
            message = f"topic {topic} does not exist"
            raise Invalid(message, subject=topic)
        return found

    def expect(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Nothing is read ahead: everything is here."""

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,  # noqa: ARG002
        bytes_max: int | None = None,
    ) -> Fetched:
        """Return the records of inclusive ranges of queue offsets."""
        written = self._queues[topic, queue_id]
        payloads: dict[int, Payload] = {}
        gone: list[int] = []
        late: list[int] = []
        left: list[int] = []
        wanted = [offset for first, last in merge_ranges(ranges) for offset in range(first, last + 1)]
        if any((topic, queue_id, offset) in self.damaged for offset in wanted):
            message = f"a record of {topic}/{queue_id} is damaged"
            raise Corrupt(message, subject=f"{topic}/{queue_id}")
        bytes_left = bytes_max
        for offset in wanted:
            size_bytes = written[offset].size_bytes
            if left:
                left.append(offset)
            elif (topic, queue_id, offset) in self.deleted:
                gone.append(offset)
            elif (topic, queue_id, offset) in self.late:
                late.append(offset)
            elif payloads and bytes_left is not None and size_bytes > bytes_left:
                left.append(offset)
            else:
                payloads[offset] = written[offset]
                bytes_left = None if bytes_left is None else bytes_left - size_bytes
        self._count(payloads.values())
        return Fetched(payloads, ranges_of(gone), ranges_of(late), ranges_of(left))

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count: int,
        timeout_s: float,  # noqa: ARG002
    ) -> list[tuple[int, Payload]]:
        """Return records from an offset on, up to the first late one."""
        if (topic, queue_id) not in self._queues:
            message = f"{topic}/{queue_id} does not exist"
            raise Invalid(message, subject=f"{topic}/{queue_id}")
        found: list[tuple[int, Payload]] = []
        for offset, payload in list(enumerate(self._queues[topic, queue_id]))[max(0, queue_offset) :]:
            if len(found) >= count or (topic, queue_id, offset) in self.late:
                break
            if (topic, queue_id, offset) not in self.deleted:
                found.append((offset, payload))
        self._count([payload for _, payload in found])
        return found

    def counts(self) -> FetchCounts:
        """Return the counts so far; all records that are read are handed out."""
        with self._lock:
            return self._counts

    def close(self) -> None:
        """Do nothing."""

    def _count(self, payloads: Collection[Payload]) -> None:
        with self._lock:
            size_bytes = self._counts.bytes_read + sum(payload.size_bytes for payload in payloads)
            count = self._counts.records_read + len(payloads)
            self._counts = FetchCounts(
                bytes_read=size_bytes, bytes_delivered=size_bytes, records_read=count, records_delivered=count
            )
