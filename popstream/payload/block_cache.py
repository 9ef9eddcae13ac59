"""Blocks of records that were read from queues, and a cache of them. Not safe for use by several threads at once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.outcome import QueueKey
    from popstream.payload.fetch_progress import FetchProgress
    from popstream.payload.payloads import Payload

__all__ = ["Block", "BlockCache"]

RECORD_BYTES = 500
"""Memory that CPython needs for a record beside the bytes of key, value and headers: 400 to 600."""
JOINED_BYTES_MAX = 256 * 1024
"""Adjacent blocks are joined up to this size, so that reading record by record does not make many blocks."""


class Block:
    """All records with offsets `first..end - 1`: other offsets of this range have no record.

    Args:
        first: First offset of the range.
        end: Offset after its last one.
        records: (offset, record), in ascending order.
    """

    def __init__(self, first: int, end: int, records: Sequence[tuple[int, Payload]] = ()) -> None:
        self.first = first
        self.end = end
        self.payloads = dict(records)
        self.offsets = [offset for offset, _ in records]
        self.payload_bytes = sum(payload.size_bytes for _, payload in records)
        self.read_s = 0.0

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory, in bytes."""
        return self.payload_bytes + RECORD_BYTES * (1 + len(self.offsets))

    def between(self, first: int, end: int) -> list[int]:
        """Return the offsets in `first..end - 1` that have a record.

        >>> from popstream.payload.payloads import Payload
        >>> Block(0, 9, [(n, Payload(None, None, [], 0)) for n in (2, 5, 7)]).between(3, 7)
        [5]
        """
        return self.offsets[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]

    def extend(self, following: Block) -> None:
        """Append the block that starts where this one ends."""
        assert following.first == self.end
        self.end = following.end
        self.payloads |= following.payloads
        self.offsets += following.offsets
        self.payload_bytes += following.payload_bytes


class BlockCache:
    """The blocks of all queues that were read lately; the least recently used ones are evicted first.

    Args:
        bytes_max: Approximate maximum of memory, in bytes.
        age_s_max: Blocks older than this are not used: the topic may have been deleted and created again.
    """

    def __init__(self, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._blocks: dict[QueueKey, list[Block]] = {}
        # In the order of their last use, the oldest first.
        self._queues: dict[Block, QueueKey] = {}
        self.size_bytes = 0

    def add(self, queue: QueueKey, block: Block, now_s: float) -> None:
        """Add a block; call `trim` after it has served the fetches that wait for it."""
        blocks = self._blocks.setdefault(queue, [])
        before = next((known for known in blocks if known.end == block.first and self._is_fresh(known, now_s)), None)
        if before is not None and before.size_bytes + block.size_bytes <= JOINED_BYTES_MAX:
            # The joined block is as old as its first part.
            self.size_bytes -= before.size_bytes
            before.extend(block)
            self._use(before)
            self.size_bytes += before.size_bytes
        else:
            block.read_s = now_s
            blocks.append(block)
            self._queues[block] = queue
            self.size_bytes += block.size_bytes

    def serve(self, queue: QueueKey, progress: FetchProgress, now_s: float) -> None:
        """Decide as many offsets of a fetch as the cached blocks allow."""
        while (at := progress.next_offset) is not None:
            block = self._find(queue, at, now_s)
            if block is None:
                return
            self._use(block)
            progress.take(block)

    def trim(self) -> None:
        """Evict blocks until the others fit."""
        while self.size_bytes > self._bytes_max:
            block, queue = next(iter(self._queues.items()))
            del self._queues[block]
            self._blocks[queue].remove(block)
            if not self._blocks[queue]:
                del self._blocks[queue]
            self.size_bytes -= block.size_bytes

    def clear(self) -> None:
        """Evict all blocks."""
        self._blocks.clear()
        self._queues.clear()
        self.size_bytes = 0

    def _find(self, queue: QueueKey, offset: int, now_s: float) -> Block | None:
        for block in reversed(self._blocks.get(queue, ())):
            if block.first <= offset < block.end and self._is_fresh(block, now_s):
                return block
        return None

    def _is_fresh(self, block: Block, now_s: float) -> bool:
        return now_s - block.read_s <= self._age_s_max

    def _use(self, block: Block) -> None:
        self._queues[block] = self._queues.pop(block)
