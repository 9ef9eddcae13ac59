"""An hour of four workers, of which each pops a message, handles it and acks it; some take longer than their lease."""

from __future__ import annotations

import heapq

from tests.support.kernel_history import NOON_MS, KernelHistory

__all__ = ["slow_handlers"]

WORKERS = 4


def slow_handlers(messages: int = 1_200, group: str = "g") -> KernelHistory:
    """Return a history in which every 40th message takes 40 s when it is first delivered, and all others 1 to 4 s.

    Leases are of 30 s: those 40 s are lost, and another worker gets the message again.
    """
    history = KernelHistory(messages, group)
    delivered: set[int] = set()
    turns = [(float(number), number, "", -1) for number in range(WORKERS)]
    while turns:
        at_s, worker, handle, offset = heapq.heappop(turns)
        client = f"worker-{worker + 1}"
        if handle:
            history.ack(at_s, client, handle, offset)
        handle = history.pop(at_s + 0.01, client)
        if not handle:
            continue
        offset = history.operations[-1].first_offset or 0
        handles_s = 40.0 if offset % 40 == 39 and offset not in delivered else 1.0 + offset % 4
        delivered.add(offset)
        heapq.heappush(turns, (at_s + 0.01 + handles_s, worker, handle, offset))
    history.tick((history.records[-1].timestamp_ms - NOON_MS) / 1000 + 1)
    return history
