"""Ctrl-C, SIGTERM and SIGHUP: the first one interrupts, as long as the demo is not ending anyway."""

import signal
import threading
from types import FrameType
from typing import Self

__all__ = ["Interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into KeyboardInterrupt, once, from entry to exit; does nothing outside the main thread."""

    def __init__(self) -> None:
        self.number = signal.SIGINT
        self._is_open = True
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        return 128 + self.number

    def take(self) -> None:
        """Handle signals from now on; again, when somebody else has taken them over."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def hold_off(self) -> None:
        """From now on a signal changes nothing: everything is being stopped."""
        self._is_open = False
        self.take()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_open:
            self._is_open = False
            self.number = signal.Signals(number)
            raise KeyboardInterrupt
