"""The broker's clock as far as its answers tell: never ahead of the true one."""

from __future__ import annotations

import threading

__all__ = ["BrokerClock"]

FORGET_AFTER_S = 600.0


class BrokerClock:
    """Learns from `now_ms` of answers. Safe for use by many threads.

    An answer says what the broker's clock showed when it was decided, and that was before the answer came. So the
    greatest difference seen is the best one, and still too small by the shortest way of an answer. What was learnt more
    than 20 minutes ago counts no longer, as the clocks may drift apart.

    >>> clock = BrokerClock()
    >>> clock.now_ms(5.0) is None
    True
    >>> clock.learn(1_000_000, received_s=5.0); clock.learn(1_000_000, received_s=5.3)
    >>> clock.now_ms(6.0), clock.local_s(1_002_000)
    (1001000, 7.0)
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._ahead_ms: float | None = None
        self._newest_ahead_ms: float | None = None
        self._newest_from_s = 0.0

    def learn(self, now_ms: int, received_s: float) -> None:
        """Take the time of an answer that came at `received_s`, monotonic seconds."""
        ahead_ms = now_ms - received_s * 1000
        with self._lock:
            if self._newest_ahead_ms is None or received_s - self._newest_from_s > FORGET_AFTER_S:
                self._ahead_ms, self._newest_ahead_ms = self._newest_ahead_ms, ahead_ms
                self._newest_from_s = received_s
            else:
                self._newest_ahead_ms = max(self._newest_ahead_ms, ahead_ms)
            self._ahead_ms = max(self._newest_ahead_ms, self._ahead_ms or self._newest_ahead_ms)

    def now_ms(self, at_s: float) -> int | None:
        """What the broker's clock showed at least, at a monotonic second; None before the first answer."""
        return None if self._ahead_ms is None else int(at_s * 1000 + self._ahead_ms)

    def local_s(self, broker_ms: int) -> float:
        """Monotonic second by which the broker's clock shows `broker_ms` for certain.

        Raises:
            ValueError: No answer has come yet.
        """
        if self._ahead_ms is None:
            message = "no answer has told the broker's time yet"
            raise ValueError(message)
        return (broker_ms - self._ahead_ms) / 1000
