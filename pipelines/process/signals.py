"""The signals that ask a process to stop, and who handles them for a while."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["STOP_SIGNALS", "handled_signals", "held_signals", "interrupt_once", "interrupted_by_signals"]

AGAIN_S = 0.1

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


def interrupt_once(number: int, _frame: FrameType | None) -> NoReturn:
    """Handle a signal: unwind the stack. A second one must not interrupt the stop, and is ignored.

    Raises:
        KeyboardInterrupt: Always, with the number of the signal.
    """
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


@contextlib.contextmanager
def interrupted_by_signals(interrupt: Callable[[], object]) -> Iterator[None]:
    """Call `interrupt` from a thread when a stop signal arrives, from entry to exit, and again until the exit.

    For a library that works for minutes without Python: handlers of signals run late, and their error may be lost in
    that of the library. Does nothing outside the main thread.

    Raises:
        KeyboardInterrupt: In place of any error of the block after a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()
    received: list[int] = []

    def watch() -> None:
        while not received and (number := reader.recv(1)):
            received.extend(set(number) & set(STOP_SIGNALS))
        if received:
            while not ended.wait(AGAIN_S):  # the call may not have begun yet
                interrupt()

    thread = threading.Thread(target=watch, name="interrupt", daemon=True)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()

    def stop_watching() -> None:
        if not ended.is_set():
            signal.set_wakeup_fd(before)
            ended.set()
            writer.close()
            thread.join()
            reader.close()

    try:
        yield
    except Exception:
        stop_watching()  # the library may have noticed the signal first
        if received:
            raise KeyboardInterrupt(received[0]) from None
        raise
    finally:
        stop_watching()


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
