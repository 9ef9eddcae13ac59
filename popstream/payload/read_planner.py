"""Chooses what to read next for the fetches that wait, and serves them. Not safe for use by several threads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from popstream.payload.fetch_progress import FetchProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popstream.outcome import QueueKey
    from popstream.payload.block_cache import BlockCache
    from popstream.payload.payload_block import PayloadBlock

__all__ = ["ReadPlanner"]

STALL_S = 0.5
"""After this time without progress other offsets of the queue are read first; also how long a queue is read alone."""


class _Turn:
    """Chooses which of the needed offsets of a queue is read: in ascending order, and past one that does not come.

    >>> turn = _Turn(now_s=0.0)
    >>> [turn.choose({3, 8}, now_s) for now_s in (0.0, 0.1, 0.6, 0.7, 1.2)]
    [3, 3, 8, 8, 3]
    """

    def __init__(self, now_s: float) -> None:
        self._floor = 0
        self.moved_s = now_s

    def choose(self, needs: set[int], now_s: float) -> int:
        if now_s - self.moved_s > STALL_S:
            self._floor += 1
            self.moved_s = now_s
        self._floor = min((need for need in needs if need >= self._floor), default=min(needs))
        return self._floor


Call = TypeVar("Call", bound=FetchProgress)


class ReadPlanner(Generic[Call]):
    """The fetches that wait, and the offsets to read for them.

    Args:
        cache: Blocks that were read before.
    """

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._waiting: dict[QueueKey, list[Call]] = {}
        self._turns: dict[QueueKey, _Turn] = {}
        self._suspects: list[QueueKey] = []
        self._alone_until_s = 0.0

    def __bool__(self) -> bool:
        """Tell whether a fetch waits."""
        return bool(self._waiting)

    def add(self, queue: QueueKey, call: Call, now_s: float) -> bool:
        """Serve a fetch from the cache; return True when it is done, otherwise it waits from now on."""
        self._cache.serve(queue, call, now_s)
        if call.next_offset is None:
            return True
        self._waiting.setdefault(queue, []).append(call)
        return False

    def withdraw(self, queue: QueueKey, call: Call) -> None:
        """Remove a fetch, if it waits."""
        calls = self._waiting.get(queue, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._waiting[queue]
                self._turns.pop(queue, None)

    def targets(self, now_s: float) -> dict[QueueKey, int]:
        """Return the offset to read next in each queue with waiting fetches."""
        while self._suspects and (self._suspects[0] not in self._waiting or now_s > self._alone_until_s):
            self._clear(self._suspects[0], now_s)
        targets = {}
        for queue in self._suspects[:1] or self._waiting:
            needs = {offset for call in self._waiting[queue] if (offset := call.next_offset) is not None}
            targets[queue] = self._turns.setdefault(queue, _Turn(now_s)).choose(needs, now_s)
        return targets

    def serve(self, blocks: Mapping[QueueKey, PayloadBlock], now_s: float) -> list[Call]:
        """Serve the waiting fetches with blocks that were read; remove and return those that are done."""
        done: list[Call] = []
        for queue, block in blocks.items():
            self._cache.add(queue, block, now_s)
            if queue in self._turns:
                self._turns[queue].moved_s = now_s
            self._clear(queue, now_s)
            calls = self._waiting.get(queue, [])
            for call in calls:
                self._cache.serve(queue, call, now_s)
            done += self._end(queue, [call for call in calls if call.next_offset is None])
        self._cache.trim()
        return done

    def fail(self, targets: Mapping[QueueKey, int], now_s: float) -> list[Call]:
        """Remove and return the fetches that fail after an error in reading the targets.

        With several queues the error may be of any of them: no fetch fails yet, and the queues are read one by one.
        With a single queue it is of the target: fetches that need other offsets of the queue go on.
        """
        self._cache.clear()
        if len(targets) > 1:
            self._suspects, self._alone_until_s = [*targets], now_s + STALL_S
            return []
        ((queue, target),) = targets.items()
        self._clear(queue, now_s)
        return self._end(queue, [call for call in self._waiting.get(queue, ()) if call.next_offset == target])

    def fail_all(self) -> list[Call]:
        """Remove and return all fetches, after an error that concerns all queues."""
        return [call for queue, calls in [*self._waiting.items()] for call in self._end(queue, [*calls])]

    def _end(self, queue: QueueKey, calls: list[Call]) -> list[Call]:
        for call in calls:
            self.withdraw(queue, call)
        return calls

    def _clear(self, queue: QueueKey, now_s: float) -> None:
        if queue in self._suspects:
            self._suspects.remove(queue)
            self._alone_until_s = now_s + STALL_S
