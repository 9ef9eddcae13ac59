"""Sees to it that a process which ends gives back what its consumers hold: at interpreter exit, and by SIGTERM.

A process that is killed cannot; for it there is `return_client`, sent by whoever notices, or by its next start.
"""

from __future__ import annotations

import atexit
import signal
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["at_exit", "exit_on_sigterm"]

EXIT_STATUS = 128 + signal.SIGTERM
"""What a shell reports of a process that SIGTERM ended."""


def at_exit(close: Callable[[], None]) -> Callable[[], None]:
    """Call a bound method when the interpreter exits, if its object still lives; gives what takes that back."""
    reference = weakref.WeakMethod(close)

    def run() -> None:
        found = reference()
        if found is not None:
            found()

    atexit.register(run)
    return lambda: atexit.unregister(run)


def exit_on_sigterm() -> bool:
    """Make SIGTERM end the process as `sys.exit` does, so that `with` blocks and exit handlers run.

    Only where SIGTERM would end the process at once, and only from the main thread; else nothing is changed, and False
    comes back. A second signal is ignored, so that the first can be obeyed in peace.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(EXIT_STATUS)

    signal.signal(signal.SIGTERM, leave)
    return True
