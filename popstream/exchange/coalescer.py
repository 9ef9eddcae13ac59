"""Collects the requests of many callers about one queue for a few milliseconds, to send them as ranges in one record.

Acks and dispatches use both parts: `ranges_by_label` turns single offsets into inclusive ranges, and a `Coalescer`
delays items and emits all items of a queue at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["Coalescer", "ranges_by_label", "ranges_of"]

LOG = logging.getLogger(__name__)

Label = TypeVar("Label", bound="Hashable")
Key = TypeVar("Key", bound="Hashable")
Item = TypeVar("Item")


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return the smallest ascending list of inclusive ranges that covers exactly `offsets`.

    >>> ranges_of([7, 3, 4, 5, 4])
    [(3, 5), (7, 7)]
    >>> ranges_of([])
    []
    """
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for offset in sorted(offsets):
        if offset - last in (0, 1):
            last = offset
            continue
        if last >= 0:
            ranges.append((first, last))
        first = last = offset
    if last >= 0:
        ranges.append((first, last))
    return ranges


def ranges_by_label(items: Iterable[tuple[int, Label]]) -> dict[Label, list[tuple[int, int]]]:
    """Return the inclusive ranges of the offsets of each label, labels in the order of their first offset.

    >>> ranges_by_label([(2, "a"), (0, "a"), (1, "b"), (3, "b"), (1, "a")])
    {'a': [(0, 2)], 'b': [(1, 1), (3, 3)]}
    """
    offsets: defaultdict[Label, list[int]] = defaultdict(list)
    for offset, label in items:
        offsets[label].append(offset)
    return {label: ranges_of(found) for label, found in offsets.items()}


class Coalescer(Generic[Key, Item]):
    """Delays items for at most `delay_ms` after the first one, then emits them, by one call for each key.

    Items of a key are emitted in the order in which they were added. `emit` runs on the coalescer's thread, or on that
    of a caller of `flush`, and never twice at once. When it raises, its items go to `failed`, and later items are still
    emitted. Safe for use by many threads.

    Args:
        name: Name of the thread.
        delay_ms: Longer: fewer and fuller records; shorter: less latency. 0: as soon as the thread runs.
        items_max: Emit early when this many items wait.
        emit: Takes a key and its items.
        failed: Takes the items for which `emit` raised, and the error.
    """

    def __init__(
        self,
        name: str,
        *,
        delay_ms: float,
        items_max: int,
        emit: Callable[[Key, list[Item]], None],
        failed: Callable[[list[Item], Exception], None],
    ) -> None:
        """Start the thread, a daemon; `close` ends it."""
        self._delay_s = delay_ms / 1000
        self._items_max = items_max
        self._emit = emit
        self._failed = failed
        self._changed = threading.Condition()
        # Reentrant: `emit` may run callbacks that flush; then the rest of the older items is emitted first.
        self._emitting = threading.RLock()
        self._to_emit: deque[tuple[Key, list[Item]]] = deque()
        self._waiting: dict[Key, list[Item]] = {}
        self._waiting_count = 0
        self._due_s = 0.0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, items: Iterable[tuple[Key, Item]]) -> None:
        """Add items, to be emitted soon.

        Raises:
            RuntimeError: The coalescer is closed.
        """
        with self._changed:
            if self._is_closed:
                message = "the coalescer is closed"
                raise RuntimeError(message)
            was_empty = not self._waiting_count
            for key, item in items:
                self._waiting.setdefault(key, []).append(item)
                self._waiting_count += 1
            if was_empty and self._waiting_count:
                self._due_s = time.monotonic() + self._delay_s
            if was_empty or self._waiting_count >= self._items_max:
                self._changed.notify()

    def flush(self) -> None:
        """Emit the waiting items; on return all items that were added before have been emitted."""
        with self._emitting:
            with self._changed:
                self._to_emit.extend(self._waiting.items())
                self._waiting, self._waiting_count = {}, 0
            while self._to_emit:
                key, items = self._to_emit.popleft()
                try:
                    self._emit(key, items)
                except Exception as error:
                    LOG.exception("%d items of %s could not be emitted", len(items), key)
                    self._failed(items, error)

    def close(self, timeout_s: float | None = None) -> None:
        """Emit the waiting items and end the thread; more calls do nothing.

        Args:
            timeout_s: How long to wait for that; the thread goes on with it then. None: as long as it takes.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is self._thread:
            self.flush()
        else:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting_count and not self._is_closed:
                    self._changed.wait()
                while not self._is_closed and self._waiting_count < self._items_max:
                    left_s = self._due_s - time.monotonic()
                    if left_s <= 0 or not self._waiting_count:
                        break
                    self._changed.wait(left_s)
                is_last = self._is_closed
            self.flush()
            if is_last:
                return
