"""Shutdown hooks: a process that exits, or gets SIGTERM, closes its clients, which releases the messages they hold.

After a SIGKILL no hook runs: the leases expire, or another client sends `return_client`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Closable", "close_at_exit", "finish_before_exit", "install_sigterm_handler"]

EXIT_STATUS = 128 + signal.SIGTERM
"""The status that a shell reports for a process that SIGTERM has ended."""


class Closable(Protocol):
    """A client with work to finish before the process ends."""

    def stop(self) -> None:
        """Begin nothing new. Called within a signal handler, so it must be short."""

    def close(self) -> None:
        """Finish, and disconnect."""


_open: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()
"""The open clients, with the process that has made each: a forked child has no use of those of its parent."""
_finishing: list[int] = []
"""The process of each block of `finish_before_exit` that runs; a forked child inherits the list."""
_terminated: set[int] = set()
"""The processes that got SIGTERM during such a block."""


def close_at_exit(client: Closable) -> Callable[[], None]:
    """Close a client at interpreter exit, unless it has been collected; return a callable that unregisters it."""
    reference = weakref.ref(client)
    process_id = os.getpid()

    def run() -> None:
        found = reference()
        # A forked child has neither the threads nor the connections of the client.
        if found is not None and os.getpid() == process_id:
            found.close()

    def unregister() -> None:
        _open.pop(client, None)
        atexit.unregister(run)

    _open[client] = process_id
    atexit.register(run)
    return unregister


@contextlib.contextmanager
def finish_before_exit() -> Iterator[None]:
    """Let SIGTERM only stop the clients while the block runs; the last such block raises `SystemExit` when it ends.

    For a block that an event loop runs in the main thread: an exception of a signal handler would end the loop, which
    cancels all that runs in it. In other threads it changes nothing.

    Raises:
        SystemExit: The process got SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process_id = os.getpid()
    _exit_if_terminated(process_id)
    _finishing.append(process_id)
    try:
        yield
    finally:
        _finishing.remove(process_id)
        if process_id not in _finishing:
            _exit_if_terminated(process_id)


def _exit_if_terminated(process_id: int) -> None:
    if process_id in _terminated:
        raise SystemExit(EXIT_STATUS)


def install_sigterm_handler() -> bool:
    """Make SIGTERM end the process as `sys.exit` does, so that `with` blocks and exit hooks run.

    All clients are stopped, so that threads which wait for messages can end. A block of `finish_before_exit` ends
    first. A second SIGTERM has its default effect,
    and so has one in a forked child that has made no client.

    Returns:
        True when the handler is installed. It is not installed outside the main thread, nor when SIGTERM has a handler
        or is ignored.
    """
    found = signal.getsignal(signal.SIGTERM)
    is_free = found == signal.SIG_DFL or (isinstance(found, _ExitProcess) and found.is_inherited)
    if not is_free or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGTERM, _ExitProcess())
    return True


class _ExitProcess:
    """The handler of SIGTERM in the process that has installed it."""

    def __init__(self) -> None:
        self._process_id = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that has installed it."""
        return os.getpid() != self._process_id

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.is_inherited:
            # The clients are the parent's: a lock that one of its threads held at the fork is never freed here.
            signal.raise_signal(signal.SIGTERM)
        for client, process_id in list(_open.items()):
            if process_id == self._process_id:
                client.stop()
        if self._process_id not in _finishing:
            raise SystemExit(EXIT_STATUS)
        _terminated.add(self._process_id)
