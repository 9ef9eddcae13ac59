"""Shutdown hooks: a process that exits, or gets SIGTERM, closes its clients, which releases the messages they hold.

After a SIGKILL no hook runs: the leases expire, or another client sends `return_client`.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Closable", "close_at_exit", "install_sigterm_handler"]

EXIT_STATUS = 128 + signal.SIGTERM
"""The status that a shell reports for a process that SIGTERM has ended."""


class Closable(Protocol):
    """A client with work to finish before the process ends."""

    def stop(self) -> None:
        """Begin nothing new. Called within a signal handler, so it must be short."""

    def close(self) -> None:
        """Finish, and disconnect."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


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
        _open.discard(client)
        atexit.unregister(run)

    _open.add(client)
    atexit.register(run)
    return unregister


def install_sigterm_handler() -> bool:
    """Make SIGTERM end the process as `sys.exit` does, so that `with` blocks and exit hooks run.

    All clients are stopped, so that threads which wait for messages can end. A second SIGTERM has its default effect.

    Returns:
        True when the handler is installed. It is not installed outside the main thread, nor when SIGTERM has a handler
        or is ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False

    def exit_process(_signal: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for client in list(_open):
            client.stop()
        raise SystemExit(EXIT_STATUS)

    signal.signal(signal.SIGTERM, exit_process)
    return True
