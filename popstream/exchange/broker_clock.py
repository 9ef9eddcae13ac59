"""An estimate of the broker's clock from the times in its answers, never ahead of the true clock."""

from __future__ import annotations

import threading

__all__ = ["BrokerClock"]

FORGET_AFTER_S = 600.0


class BrokerClock:
    """Learns from the `now_ms` of answers. Safe for use by many threads.

    `now_ms` is the time of the decision, which is before the answer arrives. So the greatest difference to the local
    clock is the best estimate, and too small by the latency of the fastest answer. Differences older than 20 minutes
    are dropped, as the clocks may drift apart.

    >>> clock = BrokerClock()
    >>> clock.now_ms(5.0) is None
    True
    >>> clock.learn(1_000_000, received_s=5.0); clock.learn(1_000_000, received_s=5.3)
    >>> clock.now_ms(6.0), clock.local_s(1_002_000)
    (1001000, 7.0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_ms: float | None = None
        self._newest_ahead_ms: float | None = None
        self._newest_from_s = 0.0

    def learn(self, now_ms: int, received_s: float) -> None:
        """Learn from an answer that arrived at `received_s`, in monotonic seconds."""
        ahead_ms = now_ms - received_s * 1000
        with self._lock:
            if self._newest_ahead_ms is None or received_s - self._newest_from_s > FORGET_AFTER_S:
                self._ahead_ms, self._newest_ahead_ms = self._newest_ahead_ms, ahead_ms
                self._newest_from_s = received_s
            else:
                self._newest_ahead_ms = max(self._newest_ahead_ms, ahead_ms)
            self._ahead_ms = max(self._newest_ahead_ms, self._ahead_ms or self._newest_ahead_ms)

    def now_ms(self, at_s: float) -> int | None:
        """Return the least time that the broker's clock showed at a monotonic second; None before the first answer."""
        return None if self._ahead_ms is None else int(at_s * 1000 + self._ahead_ms)

    def local_s(self, broker_ms: int) -> float:
        """Return the monotonic second by which the broker's clock certainly shows `broker_ms`.

        Raises:
            ValueError: No answer has come yet.
        """
        if self._ahead_ms is None:
            message = "the broker's time is not known before the first answer"
            raise ValueError(message)
        return (broker_ms - self._ahead_ms) / 1000
