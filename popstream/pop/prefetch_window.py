"""How many messages a consumer may request or hold: as many as keep its workers busy, and few at the start.

Pure: no clock, no thread.
"""

from __future__ import annotations

__all__ = ["ROOM_PER_QUEUE", "PrefetchWindow"]

START_MESSAGES = 16
ROOM_PER_QUEUE = 4
"""With less room per queue, pops cannot wait at every queue."""
AGE_PART = 4
"""A message that has waited for this part of its invisible time was popped too early."""
AGE_MS_MIN = 1_000
"""About two round trips: such an age is no reason to pop less."""


class PrefetchWindow:
    """Grows while workers wait for more than pops bring, and shrinks when leases get old before they are handed out.

    A pop that came full, while a worker waited, shows that more messages are there and that more could be handled: the
    window grows by the messages of that pop. As all of the window is popped once in a round trip, it doubles with each
    round trip, like the slow start of TCP, up to the product of the rate of the workers and the round trip. Workers
    that never wait leave it small, so that other consumers of the group get their share.

    >>> window = PrefetchWindow(bound=1_000, invisible_time_ms=60_000)
    >>> window.size
    16
    >>> window.pop_ended(asked_count=16, got_count=16, has_worker_waited=True); window.size
    32
    >>> window.claimed(1, age_ms=30_000); window.size
    16

    A rate limit bounds it as well: it never exceeds what is handed out in a quarter of the invisible time.

    >>> PrefetchWindow(bound=1_000, invisible_time_ms=60_000, rate_limit=0.5).bound
    7

    Args:
        bound: The size that it never exceeds.
        invisible_time_ms: Length of a lease, in milliseconds.
        rate_limit: Maximum number of messages that are handed out in a second; None: no limit.
    """

    def __init__(self, *, bound: int, invisible_time_ms: int, rate_limit: float | None = None) -> None:
        if rate_limit is not None:
            bound = min(bound, max(1, int(rate_limit * invisible_time_ms / 1000 / AGE_PART)))
        self._bound = bound
        self._age_ms_max = max(invisible_time_ms // AGE_PART, AGE_MS_MIN)
        self._least = min(START_MESSAGES, bound)
        self._size = self._least
        self._until_next_shrink = 0

    @property
    def bound(self) -> int:
        """The size that it never exceeds."""
        return self._bound

    @property
    def size(self) -> int:
        """Maximum number of messages that are requested or held."""
        return self._size

    def found_queues(self, count: int) -> None:
        """Leave room for a pop at each of this many queues."""
        self._least = min(max(START_MESSAGES, ROOM_PER_QUEUE * count), self._bound)
        self._size = max(self._size, self._least)

    def pop_ended(self, *, asked_count: int, got_count: int, has_worker_waited: bool) -> None:
        """Record a pop that was answered, and whether a worker waited for messages while it was in flight."""
        # That a pop for one message got one does not show that there are more.
        if has_worker_waited and got_count >= asked_count > 1:
            self._size = min(self._size + got_count, self._bound)

    def used_up(self) -> None:
        """Record that a worker waits and there is no room to pop a queue: messages are worked on, other pops wait."""
        self._size = min(self._size + START_MESSAGES, self._bound)

    def claimed(self, count: int, age_ms: float) -> None:
        """Record that messages are handed out next, of which the first one was popped `age_ms` ago.

        The messages that were popped before the window shrank are old as well. They do not shrink it again.
        """
        self._until_next_shrink -= count
        if age_ms <= self._age_ms_max or self._until_next_shrink > 0:
            return
        self._until_next_shrink = self._size
        self._size = max(int(self._size * self._age_ms_max / age_ms), self._least)
