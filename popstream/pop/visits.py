"""Which queues of its topics are popped next, and for how many messages: fair, and led by what is known of them.

Pure: no clock, no thread. A *visit* is a pop of one queue; a queue has at most one at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popstream.outcome import QueueKey

__all__ = ["Visit", "Visits"]


class Visit(msgspec.Struct, frozen=True):
    """One pop to be sent."""

    queue: QueueKey
    max_messages: int


class Visits:
    """Divides what a consumer may still take among the queues of a topic.

    A queue is *promising* when its last visit brought all that was asked for, or a notification came since. Promising
    queues share most of the room in turns; the others get a small share each, to park on. A queue that is left out for
    want of room is the first one next time (RocketMQ's queue id -1 begins each pop at another queue:
    PopMessageProcessor, a counter per group and topic).

    >>> visits = Visits([("orders", 0), ("orders", 1), ("orders", 2)])
    >>> [visit.max_messages for visit in visits.plan(room=90, now_s=0)]
    [30, 30, 30]
    >>> visits.ended(("orders", 1), asked_count=30, got_count=30); visits.plan(room=30, now_s=0)
    [Visit(queue=('orders', 1), max_messages=30)]
    """

    def __init__(self, queues: Iterable[QueueKey] = ()) -> None:
        """Start with queues nothing is known of."""
        self._waiting: deque[QueueKey] = deque()
        self._in_flight: set[QueueKey] = set()
        self._promising: set[QueueKey] = set()
        self._not_before_s: dict[QueueKey, float] = {}
        self.add(queues)

    def __len__(self) -> int:
        """Count the queues."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def waiting_count(self) -> int:
        """Count the queues without a visit."""
        return len(self._waiting)

    def add(self, queues: Iterable[QueueKey]) -> None:
        """Take in queues that are not known yet."""
        known = self._in_flight.union(self._waiting)
        self._waiting.extend(queue for queue in queues if queue not in known)

    def notified(self, queue: QueueKey) -> None:
        """Something can be popped from a queue: it is visited next."""
        if queue in self._waiting:
            self._waiting.remove(queue)
            self._waiting.appendleft(queue)
            self._promising.add(queue)
            self._not_before_s.pop(queue, None)

    def ended(self, queue: QueueKey, *, asked_count: int, got_count: int, not_before_s: float = 0.0) -> None:
        """A visit is over; the next one may begin at `not_before_s`."""
        self._in_flight.discard(queue)
        self._waiting.append(queue)
        if got_count >= asked_count:
            self._promising.add(queue)
        else:
            self._promising.discard(queue)
        if not_before_s:
            self._not_before_s[queue] = not_before_s

    def plan(self, room: int, now_s: float) -> list[Visit]:
        """Visits to begin now, which together ask for at most `room` messages; they are under way from here on."""
        free = [queue for queue in self._waiting if self._not_before_s.get(queue, 0.0) <= now_s]
        if not free or room <= 0:
            return []
        promising = [queue for queue in free if queue in self._promising]
        others = [queue for queue in free if queue not in self._promising]
        for_others = min(room // 4, len(others)) if promising else room
        visits = self._share(others, for_others)
        visits += self._share(promising, room - sum(visit.max_messages for visit in visits))
        for visit in visits:
            self._waiting.remove(visit.queue)
            self._in_flight.add(visit.queue)
            self._not_before_s.pop(visit.queue, None)
        return visits

    @staticmethod
    def _share(queues: list[QueueKey], room: int) -> list[Visit]:
        """Equal shares of at least one, the first queues first."""
        chosen = queues[: max(room, 0)]
        if not chosen:
            return []
        share, more = divmod(room, len(chosen))
        return [Visit(queue, share + (place < more)) for place, queue in enumerate(chosen)]
