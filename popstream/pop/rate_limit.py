"""How many messages a consumer may hand out now, so that a second brings no more of them than was asked for.

Pure: no clock, no thread.
"""

from __future__ import annotations

__all__ = ["RateLimit"]

BURST_S = 0.1
"""What a consumer has not handed out for a while it hands out at once, at most for this time."""
PAUSE_S_MIN = 0.02
"""Many workers that wait are not woken for each message; what accumulates meanwhile is less than a burst."""


class RateLimit:
    """A bucket that fills with `per_s` messages a second, up to the messages of a tenth of a second, and at least one.

    >>> rate = RateLimit(20, now_s=0.0)
    >>> rate.allowed(0.0); rate.took(2); rate.allowed(0.0), rate.pause_s(0.0), rate.allowed(0.05)
    2
    (0, 0.05, 1)

    Args:
        per_s: Messages a second, more than 0.
        now_s: The time at the start, in seconds.
    """

    def __init__(self, per_s: float, *, now_s: float) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s * BURST_S)
        self._left = self._burst
        self._at_s = now_s

    def allowed(self, now_s: float) -> int:
        """Return how many messages may be handed out now."""
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        # The sum of parts that make a whole message may be a little less than one.
        return max(0, int(self._left + 1e-9))

    def took(self, count: int) -> None:
        """Record that messages are handed out, more than are allowed if they could not be divided."""
        self._left -= count

    def pause_s(self, now_s: float) -> float:
        """Return after how many seconds to ask again when none is allowed."""
        return max(PAUSE_S_MIN, (1 - self._left) / self._per_s - (now_s - self._at_s))
