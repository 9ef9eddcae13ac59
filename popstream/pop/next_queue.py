"""Chooses which queues of the topics are popped next, and for how many messages each.

Pure: no clock, no thread. A queue has at most one pop in flight.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = ["NextQueue", "PlannedPop"]


class PlannedPop(msgspec.Struct, frozen=True):
    """A pop to send."""

    queue: QueueName
    max_messages: int


class NextQueue:
    """Divides the free prefetch room of a consumer among its queues.

    A queue is *promising* when its last pop returned as many messages as it asked for, or when a notification has
    come since. Promising queues share most of the room; each of the others gets a small share, to park a pop on. A
    queue that gets none for lack of room is first next time (RocketMQ's queue id -1 begins each pop at another queue:
    PopMessageProcessor, a counter for each group and topic).

    >>> queues = NextQueue([("orders", 0), ("orders", 1), ("orders", 2)])
    >>> [pop.max_messages for pop in queues.plan(room=90, now_s=0)]
    [30, 30, 30]
    >>> queues.ended(("orders", 1), asked_count=30, got_count=30); queues.plan(room=30, now_s=0)
    [PlannedPop(queue=('orders', 1), max_messages=30)]
    """

    def __init__(self, queues: Iterable[QueueName] = ()) -> None:
        self._waiting: deque[QueueName] = deque()
        self._in_flight: set[QueueName] = set()
        self._promising: set[QueueName] = set()
        self._not_before_s: dict[QueueName, float] = {}
        self.add(queues)

    def __len__(self) -> int:
        """Count the queues."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def waiting_count(self) -> int:
        """Number of queues without a pop in flight."""
        return len(self._waiting)

    def has_free(self, now_s: float) -> bool:
        """Tell whether a queue could be popped, if there were room."""
        return any(self._is_free(queue, now_s) for queue in self._waiting)

    def add(self, queues: Iterable[QueueName]) -> None:
        """Add the queues that are not known yet."""
        known = self._in_flight.union(self._waiting)
        self._waiting.extend(queue for queue in queues if queue not in known)

    def notified(self, queue: QueueName) -> None:
        """Pop a queue next, because it has become poppable."""
        if queue in self._waiting:
            self._waiting.remove(queue)
            self._waiting.appendleft(queue)
            self._promising.add(queue)
            self._not_before_s.pop(queue, None)

    def ended(self, queue: QueueName, *, asked_count: int, got_count: int, not_before_s: float = 0.0) -> None:
        """Record that a pop has ended; the next one of its queue begins at `not_before_s` at the earliest."""
        self._in_flight.discard(queue)
        self._waiting.append(queue)
        if got_count >= asked_count:
            self._promising.add(queue)
        else:
            self._promising.discard(queue)
        if not_before_s:
            self._not_before_s[queue] = not_before_s

    def plan(self, room: int, now_s: float) -> list[PlannedPop]:
        """Return pops that together ask for at most `room` messages; they are in flight from now on."""
        free = [queue for queue in self._waiting if self._is_free(queue, now_s)]
        if not free or room <= 0:
            return []
        promising = [queue for queue in free if queue in self._promising]
        others = [queue for queue in free if queue not in self._promising]
        for_others = min(room // 4, len(others)) if promising else room
        planned = self._share(others, for_others)
        planned += self._share(promising, room - sum(pop.max_messages for pop in planned))
        for pop in planned:
            self._waiting.remove(pop.queue)
            self._in_flight.add(pop.queue)
            self._not_before_s.pop(pop.queue, None)
        return planned

    def _is_free(self, queue: QueueName, now_s: float) -> bool:
        return self._not_before_s.get(queue, 0.0) <= now_s

    @staticmethod
    def _share(queues: list[QueueName], room: int) -> list[PlannedPop]:
        """Divide the room equally among the first queues; each pop asks for at least one message."""
        chosen = queues[: max(room, 0)]
        if not chosen:
            return []
        share, more = divmod(room, len(chosen))
        return [PlannedPop(queue, share + (place < more)) for place, queue in enumerate(chosen)]
