"""The deadlines of one shard: sorted by queue in memory, and stored in buckets of 64 neighbours.

    bucket   queue, lane no u32, kind u8, number >> 6 u64  ->  (ms u64, number u64) of each, sorted

A bucket changes as rarely as its 64 pages, and a lane's pages are popped one after the other: a micro-batch stores few.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator

from sortedcontainers import SortedList

from broker_state.store.keys import DeadlineRef, read_deadline_key
from broker_state.store.value_format import CorruptValueError

__all__ = ["DeadlineIndex"]

_PLACE = struct.Struct(">IBQ")
_ENTRY = struct.Struct(">QQ")
_DEADLINE_BYTES = 21
_BUCKET_BITS = 6


class DeadlineIndex:
    """All deadlines of the queues of a shard."""

    def __init__(self) -> None:
        self._queues: dict[bytes, SortedList[DeadlineRef]] = {}
        self._buckets: dict[bytes, set[DeadlineRef]] = {}

    def load(self, buckets: Iterable[tuple[bytes, bytes]]) -> None:
        """Add stored buckets.

        Raises:
            CorruptValueError: One cannot be decoded.
        """
        found: dict[bytes, list[DeadlineRef]] = defaultdict(list)
        for key, value in buckets:
            if not value or len(value) % _ENTRY.size or len(key) <= _PLACE.size:
                raise CorruptValueError("bucket of deadlines", value)
            queue = key[: -_PLACE.size]
            lane_no, kind, _ = _PLACE.unpack_from(key, len(queue))
            refs = [DeadlineRef(ms, lane_no, kind, number) for ms, number in _ENTRY.iter_unpack(value)]
            self._buckets[key] = set(refs)
            found[queue] += refs
        for queue, refs in found.items():
            self._queues[queue] = SortedList(refs)

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
        """Apply changes of deadline keys (value None removes), and yield the buckets to store: (key, value or None)."""
        touched: dict[bytes, None] = {}
        for key, value in changes:
            queue = key[:-_DEADLINE_BYTES]
            ref = read_deadline_key(queue, key)
            bucket = queue + _PLACE.pack(ref.lane_no, ref.kind, ref.number >> _BUCKET_BITS)
            touched[bucket] = None
            if value is None:
                self._remove(queue, bucket, ref)
            else:
                self._add(queue, bucket, ref)
        for bucket in touched:
            refs = self._buckets.get(bucket)
            yield bucket, b"".join(_ENTRY.pack(ref.deadline_ms, ref.number) for ref in sorted(refs)) if refs else None

    def after(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """Return at most `limit` deadlines of a queue, in order, after `after` and not later than `until_ms`."""
        refs = self._queues.get(queue)
        if refs is None:
            return []
        first = 0 if after is None else refs.bisect_right(after)
        found = []
        for ref in refs.islice(first, first + limit):
            if ref.deadline_ms > until_ms:
                break
            found.append(ref)
        return found

    def queues(self) -> list[bytes]:
        """Return the prefixes of the queues that have deadlines."""
        return list(self._queues)

    def of(self, queue: bytes) -> list[DeadlineRef]:
        """Return all deadlines of a queue, in order."""
        return list(self._queues.get(queue, ()))

    def earliest_of(self, queue: bytes) -> int | None:
        """Return the earliest deadline of a queue in ms; None: it has none."""
        refs = self._queues.get(queue)
        return refs[0].deadline_ms if refs else None

    def _add(self, queue: bytes, bucket: bytes, ref: DeadlineRef) -> None:
        refs = self._buckets.setdefault(bucket, set())
        if ref not in refs:
            refs.add(ref)
            self._queues.setdefault(queue, SortedList()).add(ref)

    def _remove(self, queue: bytes, bucket: bytes, ref: DeadlineRef) -> None:
        refs = self._buckets.get(bucket)
        if refs is None or ref not in refs:
            return
        refs.discard(ref)
        if not refs:
            del self._buckets[bucket]
        in_queue = self._queues[queue]
        in_queue.remove(ref)
        if not in_queue:
            del self._queues[queue]
