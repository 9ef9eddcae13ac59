"""Chooses what to read next for the fetches that wait, and serves them. Not safe for use by several threads at once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from popstream.payload.fetch_progress import FetchProgress, ReadAhead
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popstream.payload.block_cache import BlockCache
    from popstream.payload.payload_block import PayloadBlock

__all__ = ["ReadPlanner"]

QUEUES_AHEAD_MAX = 32
"""Queues that are read at once while some are read ahead: each of them makes every poll of the client dearer."""
AHEAD_S = 2.0
"""A record that does not come in this time, in an open transaction for instance, is left to its fetch."""

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
    """The fetches that wait or are expected, and the offsets to read for them.

    Args:
        cache: Blocks that were read before.
    """

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._waiting: dict[QueueName, list[Call]] = {}
        self._ahead: dict[QueueName, list[ReadAhead]] = {}
        self._turns: dict[QueueName, _Turn] = {}
        self._suspects: list[QueueName] = []
        self._alone_until_s = 0.0

    def __bool__(self) -> bool:
        """Tell whether there is something to read."""
        return bool(self._waiting or self._ahead)

    def add(self, queue: QueueName, call: Call, now_s: float) -> bool:
        """Serve a fetch from the cache; return True when it is done, otherwise it waits from now on."""
        self._cache.serve(queue, call, now_s)
        if call.next_offset is None:
            return True
        self._waiting.setdefault(queue, []).append(call)
        return False

    def expect(self, queue: QueueName, ranges: Sequence[tuple[int, int]], now_s: float) -> bool:
        """Read the records of a fetch that will come; return False when they are here.

        Also while it is not known which queue cannot be read: then it is left to the fetch.
        """
        ahead = ReadAhead(ranges, now_s + AHEAD_S)
        self._cache.serve(queue, ahead, now_s)
        if self._suspects or ahead.next_offset is None:
            return False
        self._ahead.setdefault(queue, []).append(ahead)
        return True

    def expect_no_more(self) -> None:
        """Forget the fetches that have not come yet."""
        for queue in [*self._ahead]:
            self._forget_ahead(queue, lambda _: True)

    def withdraw(self, queue: QueueName, call: Call) -> None:
        """Remove a fetch, if it waits."""
        calls = self._waiting.get(queue, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._waiting[queue]
                self._end_turn(queue)

    def targets(self, now_s: float) -> dict[QueueName, int]:
        """Return the offset to read next in each queue with waiting fetches."""
        while self._suspects and (self._suspects[0] not in self._waiting or now_s > self._alone_until_s):
            self._clear(self._suspects[0], now_s)
        for queue in [*self._ahead]:
            self._forget_ahead(queue, lambda ahead: ahead.until_s < now_s)
        targets = {}
        room = max(0, QUEUES_AHEAD_MAX - len(self._waiting))
        ahead = islice((queue for queue in self._ahead if queue not in self._waiting), room)
        for queue in self._suspects[:1] or (*self._waiting, *ahead):
            wanted = (*self._waiting.get(queue, ()), *self._ahead.get(queue, ()))
            needs = {offset for call in wanted if (offset := call.next_offset) is not None}
            targets[queue] = self._turns.setdefault(queue, _Turn(now_s)).choose(needs, now_s)
        return targets

    def serve(self, blocks: Mapping[QueueName, PayloadBlock], now_s: float) -> list[Call]:
        """Serve the waiting fetches with blocks that were read; remove and return those that are done."""
        done: list[Call] = []
        for queue, block in blocks.items():
            self._cache.add(queue, block, now_s)
            if queue in self._turns:
                self._turns[queue].moved_s = now_s
            self._clear(queue, now_s)
            calls = self._waiting.get(queue, [])
            for call in (*calls, *self._ahead.get(queue, ())):
                self._cache.serve(queue, call, now_s)
            self._forget_ahead(queue, lambda ahead: ahead.next_offset is None)
            done += self._end(queue, [call for call in calls if call.next_offset is None])
        self._cache.trim()
        return done

    def fail(self, targets: Mapping[QueueName, int], now_s: float) -> list[Call]:
        """Remove and return the fetches that fail after an error in reading the targets.

        With several queues the error may be of any of them: no fetch fails yet, and the queues are read one by one.
        With a single queue it is of the target: fetches that need other offsets of the queue go on.
        """
        self._cache.clear()
        self.expect_no_more()
        if len(targets) > 1:
            self._suspects, self._alone_until_s = [*targets], now_s + STALL_S
            return []
        ((queue, target),) = targets.items()
        self._clear(queue, now_s)
        return self._end(queue, [call for call in self._waiting.get(queue, ()) if call.next_offset == target])

    def fail_all(self) -> list[Call]:
        """Remove and return all fetches, after an error that concerns all queues."""
        self.expect_no_more()
        return [call for queue, calls in [*self._waiting.items()] for call in self._end(queue, [*calls])]

    def _forget_ahead(self, queue: QueueName, is_over: Callable[[ReadAhead], bool]) -> None:
        kept = [ahead for ahead in self._ahead.pop(queue, ()) if not is_over(ahead)]
        if kept:
            self._ahead[queue] = kept
        else:
            self._end_turn(queue)

    def _end_turn(self, queue: QueueName) -> None:
        if queue not in self._waiting and queue not in self._ahead:
            self._turns.pop(queue, None)

    def _end(self, queue: QueueName, calls: list[Call]) -> list[Call]:
        for call in calls:
            self.withdraw(queue, call)
        return calls

    def _clear(self, queue: QueueName, now_s: float) -> None:
        if queue in self._suspects:
            self._suspects.remove(queue)
            self._alone_until_s = now_s + STALL_S
