"""The signals that ask a process to stop, and who handles them for a while."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["STOP_SIGNALS", "handled_signals", "held_signals"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the stop signals with `handler`, from entry to exit. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Hold the stop signals back until the exit, where the first of them reaches the handlers from before.

    PySpark must not be interrupted while it launches its JVM: it removes the folder that the JVM is about to write to,
    and the JVM then runs forever, unknown to any process. PySpark also leaves its own handler for Ctrl-C behind, which
    the exit removes.
    """
    received: list[int] = []
    with handled_signals(lambda number, _: received.append(number)):
        yield
    if received:
        signal.raise_signal(received[0])
