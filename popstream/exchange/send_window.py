"""Bounds what is handed to Kafka and not confirmed yet, so that senders slow down to the rate at which Kafka takes it.

A KafkaProducer takes records until its buffer is full, and gives up those that have waited in it for longer than its
delivery time-out: a sender that is faster than Kafka would lose operations.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SendWindow"]

RECORDS_MAX = 10_000
"""About what kafka-python sends in a second."""
BYTES_MAX = 8 * 1024 * 1024


class SendWindow:
    """Counts records in flight to Kafka. Safe for use by many threads.

    Args:
        records_max: Records in flight at most.
        bytes_max: Their size at most; a single larger record is let through alone.
    """

    def __init__(self, records_max: int = RECORDS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._records = 0
        self._bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._confirming = threading.local()

    def wait_for_room(self, size: int, timeout_s: float) -> bool:
        """Wait until a record of `size` bytes fits; return whether it does.

        Does not wait within a confirmation: only further confirmations would end the wait.
        """
        if self._fits(size):
            return True
        if getattr(self._confirming, "is_active", False):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._fits(size), timeout_s)
        return self._fits(size)

    def enter(self, size: int, on_sent: Callable[[Exception | None], None]) -> Callable[[Exception | None], None]:
        """Count a record as in flight; return what to call, once, when it is confirmed or has failed."""
        with self._changed:
            self._records += 1
            self._bytes += size
        is_in_flight = True

        def confirm(error: Exception | None) -> None:
            nonlocal is_in_flight
            if not is_in_flight:
                return
            is_in_flight = False
            with self._changed:
                self._records -= 1
                self._bytes -= size
                self._changed.notify_all()
            self._confirming.is_active = True
            try:
                on_sent(error)
            finally:
                self._confirming.is_active = False

        return confirm

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._records or (self._records < self._records_max and self._bytes + size <= self._bytes_max)
