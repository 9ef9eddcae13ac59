"""The clock of a job in memory, as its clients know it."""

from __future__ import annotations

from popstream.exchange.broker_clock import BrokerClock

__all__ = ["MemoryClock"]


class MemoryClock(BrokerClock):
    """A broker's clock that only a test moves: it shows what the last answer says.

    A `BrokerClock` would take an answer with an old time for one that has travelled for long, and each lease of a job
    that is older than its invisible time for one that has ended on the way.

    >>> clock = MemoryClock()
    >>> clock.learn(1_000_000, received_s=5.0); clock.learn(1_000_000, received_s=3_605.0)
    >>> clock.now_ms(3_605.0), clock.local_s(1_060_000)
    (1000000, 3665.0)
    """

    def learn(self, now_ms: int, received_s: float) -> None:
        """Learn from an answer that arrived at `received_s`, in monotonic seconds."""
        with self._lock:
            self._ahead_ms = now_ms - received_s * 1000
