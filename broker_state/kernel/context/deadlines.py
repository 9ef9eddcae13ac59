"""The deadlines of a queue while a micro-batch is decided."""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from broker_state.store.keys import NEVER_MS, DeadlineRef
from broker_state.store.overlay import Overlay

__all__ = ["Deadlines"]

_SCAN_MAX: Final = 1_000


class Deadlines:
    """The deadlines of one queue during one micro-batch: stored ones merged with those set since."""

    __slots__ = ("_heap", "_overlay", "_prefix", "_stored", "generation")

    def __init__(self, overlay: Overlay, prefix: bytes) -> None:
        self._overlay = overlay
        self._prefix = prefix
        self._heap: list[DeadlineRef] = []
        self._stored = deque(overlay.stored_deadlines(prefix, None, NEVER_MS, 1))
        """The next stored ones; when it is empty, there are no more."""
        self.generation = overlay.generation

    @property
    def earliest_ms(self) -> int:
        """No deadline is earlier; `NEVER_MS` if there is none."""
        heap = self._heap[0].deadline_ms if self._heap else NEVER_MS
        return min(heap, self._stored[0].deadline_ms) if self._stored else heap

    def push(self, ref: DeadlineRef) -> None:
        """Add a deadline. One that moves later stays in the heap too, and is passed over by `due`."""
        heapq.heappush(self._heap, ref)

    def due(self, now_ms: int) -> Iterator[DeadlineRef]:
        """Yield the deadlines up to `now_ms`, each once, in order; what was yielded is removed.

        Those that are pushed meanwhile are yielded in their place. The caller stops when it has enough.
        """
        last: DeadlineRef | None = None
        while self.earliest_ms <= now_ms:
            if self._stored and not (self._heap and self._heap[0] < self._stored[0]):
                ref = self._stored.popleft()
                if not self._stored:
                    self._stored.extend(self._overlay.stored_deadlines(self._prefix, ref, NEVER_MS, _SCAN_MAX))
            else:
                ref = heapq.heappop(self._heap)
            if ref != last and self._overlay.holds_deadline(self._prefix, ref):
                last = ref
                yield ref
