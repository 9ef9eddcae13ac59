"""Releases of all leases of this client in a queue, and the pops that they have overtaken.

The answer of a pop that was decided before such a release may come after its answer, or while it is awaited: then it
brings leases that have ended.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.message import Message

__all__ = ["OwnReturn", "OwnReturns"]


class OwnReturn(msgspec.Struct, eq=False):
    """One release.

    Attributes:
        queue: Its queue.
        sent_before: op_ids of pops that were in flight when it was sent: records of one moment are decided in order.
        decided_ms: When it was decided, by the broker's clock; None: it is not answered yet.
        leased: What pops have leased until it is answered, with their op_ids.
    """

    queue: QueueName
    sent_before: frozenset[str]
    decided_ms: int | None = None
    leased: list[tuple[str, list[Message]]] = []

    def has_released(self, op_id: str, pop_time_ms: int) -> bool:
        """Tell whether a lease of such a pop was decided before, so that it has ended."""
        if self.decided_ms is None:
            return False
        return pop_time_ms < self.decided_ms or (pop_time_ms == self.decided_ms and op_id in self.sent_before)


class OwnReturns:
    """The releases of one consumer. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_queue: defaultdict[QueueName, list[OwnReturn]] = defaultdict(list)

    def begin(self, queue: QueueName, *, sent_before: frozenset[str]) -> OwnReturn:
        """Record a release that is about to be sent, or was sent before all pops; call `end` in any case."""
        returned = OwnReturn(queue, sent_before)
        with self._lock:
            self._of_queue[queue].append(returned)
        return returned

    def end(self, returned: OwnReturn, decided_ms: int | None) -> list[Message]:
        """Record when a release was decided (None: it was not); return the messages leased meanwhile that it ended."""
        with self._lock:
            others = [other for other in self._of_queue[returned.queue] if other is not returned]
            leased, returned.leased = returned.leased, []
            returned.decided_ms = decided_ms
            if decided_ms is not None:  # it has ended what earlier ones have
                others = [other for other in others if other.decided_ms is None or other.decided_ms > decided_ms]
                others.append(returned)
            self._of_queue[returned.queue] = others
            # A lease that was extended since then was leased again.
            return [
                message
                for op_id, messages in leased
                for message in messages
                if returned.has_released(op_id, message.pop_time_ms)
            ]

    def hold(self, op_id: str, messages: list[Message], hold: Callable[[], None]) -> bool:
        """Hold what a pop has leased, at least one message, by the call; return False if it was released since."""
        first = messages[0]
        with self._lock:
            returns = self._of_queue.get((first.topic, first.queue_id), [])
            if any(returned.has_released(op_id, first.pop_time_ms) for returned in returns):
                return False
            hold()
            for returned in returns:
                if returned.decided_ms is None:
                    returned.leased.append((op_id, messages))
            return True
