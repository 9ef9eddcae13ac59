"""Which messages a consumer holds: popped, and neither finished nor given back. `close` returns those."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from connectors.client.message import queue_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connectors.client.message import QueueKey, Receipt

__all__ = ["Held"]

PRUNE_COUNT_MIN = 10_000


class Held:
    """Messages in hand, each until a moment after which its lease is over in any case. Safe for use by many threads."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._lock = threading.Lock()
        self._queues: dict[QueueKey, dict[int, tuple[Receipt, float]]] = {}
        self._count = 0
        self._prune_at_count = PRUNE_COUNT_MIN

    def __len__(self) -> int:
        """Count the messages in hand, and those whose lease has ended unnoticed."""
        return self._count

    def hold(self, receipts: Iterable[Receipt], until_s: float, now_s: float) -> None:
        """Take messages in hand, or hold them longer. Forgets those that are over, now and then."""
        with self._lock:
            for receipt in receipts:
                queue = self._queues.setdefault(queue_of(receipt), {})
                self._count += receipt.queue_offset not in queue
                queue[receipt.queue_offset] = (receipt, until_s)
            if self._count >= self._prune_at_count:
                self._prune(now_s)
                self._prune_at_count = max(PRUNE_COUNT_MIN, 2 * self._count)

    def release(self, receipts: Iterable[Receipt]) -> None:
        """Let go of messages; unknown ones do not matter."""
        with self._lock:
            for receipt in receipts:
                queue = self._queues.get(queue_of(receipt))
                if queue is not None and queue.pop(receipt.queue_offset, None) is not None:
                    self._count -= 1

    def take_all(self, now_s: float) -> list[Receipt]:
        """Everything whose lease may still last, by queue and offset; nothing is held afterwards."""
        with self._lock:
            self._prune(now_s)
            queues, self._queues, self._count = self._queues, {}, 0
        return [queue[offset][0] for _, queue in sorted(queues.items()) for offset in sorted(queue)]

    def _prune(self, now_s: float) -> None:
        for key, queue in list(self._queues.items()):
            kept = {offset: held for offset, held in queue.items() if held[1] > now_s}
            self._count -= len(queue) - len(kept)
            if kept:
                self._queues[key] = kept
            else:
                del self._queues[key]
