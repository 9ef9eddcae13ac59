"""A cache of the blocks that were read from queues. Not safe for use by several threads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from popstream.payload.fetch_progress import FetchProgress
    from popstream.payload.payload_block import PayloadBlock

__all__ = ["BlockCache"]

JOINED_BYTES_MAX = 256 * 1024
"""Adjacent blocks are joined up to this size, so that reading record by record does not make many blocks."""


class BlockCache:
    """The blocks of all queues that were read lately; the least recently used ones are evicted first.

    Args:
        bytes_max: Approximate maximum of memory, in bytes.
        age_s_max: Blocks older than this are not used: the topic may have been deleted and created again.
    """

    def __init__(self, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._blocks: dict[QueueName, list[PayloadBlock]] = {}
        # In the order of their last use, the oldest first.
        self._queues: dict[PayloadBlock, QueueName] = {}
        self.size_bytes = 0

    def add(self, queue: QueueName, block: PayloadBlock, now_s: float) -> None:
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

    def serve(self, queue: QueueName, progress: FetchProgress, now_s: float) -> None:
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

    def _find(self, queue: QueueName, offset: int, now_s: float) -> PayloadBlock | None:
        for block in reversed(self._blocks.get(queue, ())):
            if block.first <= offset < block.end and self._is_fresh(block, now_s):
                return block
        return None

    def _is_fresh(self, block: PayloadBlock, now_s: float) -> bool:
        return now_s - block.read_s <= self._age_s_max

    def _use(self, block: PayloadBlock) -> None:
        self._queues[block] = self._queues.pop(block)
