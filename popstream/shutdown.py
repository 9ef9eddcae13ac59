"""Sees to it that a process which ends gives back what its consumers hold: at interpreter exit, and by SIGTERM.

A process that is killed cannot; for it there is `return_client`, sent by whoever notices, or by its next start.
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

__all__ = ["ClosedAtExit", "close_at_exit", "install_sigterm_handler"]

EXIT_STATUS = 128 + signal.SIGTERM
"""What a shell reports of a process that SIGTERM ended."""


class ClosedAtExit(Protocol):
    """Who has something to do when the process ends."""

    def stop(self) -> None:
        """Begin nothing more; must be short, and is called within a signal handler."""

    def close(self) -> None:
        """Finish."""


_open: weakref.WeakSet[ClosedAtExit] = weakref.WeakSet()


def close_at_exit(leaving: ClosedAtExit) -> Callable[[], None]:
    """Close it when this process exits, if it still lives then; gives what takes that back."""
    reference = weakref.ref(leaving)
    process_id = os.getpid()

    def run() -> None:
        found = reference()
        # In a child that was forked off its threads and connections are not there.
        if found is not None and os.getpid() == process_id:
            found.close()

    def forget() -> None:
        _open.discard(leaving)
        atexit.unregister(run)

    _open.add(leaving)
    atexit.register(run)
    return forget


def install_sigterm_handler() -> bool:
    """Make SIGTERM end the process as `sys.exit` does, so that `with` blocks and exit handlers run.

    Whoever waits for messages in another thread is woken, so that the thread can end. Only where SIGTERM would end the
    process at once, and only from the main thread; else nothing is changed, and False comes back. A second signal does
    what it did before.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for leaving in list(_open):
            leaving.stop()
        raise SystemExit(EXIT_STATUS)

    signal.signal(signal.SIGTERM, leave)
    return True
