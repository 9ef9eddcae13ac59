"""A worker's standard input and output: orders come in by line, notes go out by line."""

import threading
from collections.abc import Callable
from io import FileIO
from typing import IO, Literal

import msgspec

from pipelines.demo.orders import GO, STOP, Note

__all__ = ["Lifeline"]

_NOTE_EVERY_S = 0.5


class Lifeline:
    """Connects a worker with the demo.

    Args:
        orders: `GO` and `STOP` come here.
        notes: Notes go here.
        on_end: Called when `orders` ends: the demo has died, or wants this process to.
    """

    def __init__(self, orders: IO[bytes] | FileIO, notes: IO[bytes], *, on_end: Callable[[], None]) -> None:
        self._orders = orders
        self._notes = notes
        self._on_end = on_end
        self._lock = threading.Lock()
        self._go = threading.Event()
        self._stop = threading.Event()
        self._counts = {"sent": 0, "popped": 0, "redelivered": 0, "acked": 0}
        self._state: Literal["ready", "working", "armed", "done"] = "ready"
        self._on_stop: Callable[[], None] = lambda: None
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    @property
    def is_stopping(self) -> bool:
        """Whether `STOP` has come."""
        return self._stop.is_set()

    def wait_for_go(self) -> None:
        """Say that all is ready, and wait until the demo wants to begin; then notes go out regularly."""
        self.tell("ready")
        self._go.wait()
        self._state = "working"
        threading.Thread(target=self._report, name="notes", daemon=True).start()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait for `STOP`; whether it has come."""
        return self._stop.wait(timeout_s)

    def on_stop(self, action: Callable[[], None]) -> None:
        """Call `action` once when `STOP` comes, or now if it has."""
        with self._lock:
            self._on_stop = action
            has_come = self._stop.is_set()
        if has_come:
            action()

    def count(self, **counts: int) -> None:
        """Add to the counts that notes carry."""
        with self._lock:
            for name, number in counts.items():
                self._counts[name] += number

    def tell(self, state: Literal["ready", "working", "armed", "done"]) -> None:
        """Send a note now."""
        with self._lock:
            self._state = state
            note = Note(state=state, **self._counts)
            self._notes.write(msgspec.json.encode(note) + b"\n")
            self._notes.flush()

    def _report(self) -> None:
        while not self._stop.wait(_NOTE_EVERY_S):
            self.tell(self._state)

    def _listen(self) -> None:
        for line in iter(self._orders.readline, b""):
            if line == GO:
                self._go.set()
            elif line == STOP:
                with self._lock:
                    self._stop.set()
                    action = self._on_stop
                self._go.set()
                action()
        self._on_end()
