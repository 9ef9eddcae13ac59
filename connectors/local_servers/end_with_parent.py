"""Ends this process when its parent has ended, however that ends: standard input is a pipe from it."""

from __future__ import annotations

import os
import sys
import threading

__all__ = ["PARENT_IS_GONE", "end_with_parent"]

PARENT_IS_GONE = 3
"""The exit code of a process that has ended because its parent has."""


def end_with_parent() -> None:
    """Exit at any point from now on, once standard input ends, without a word to the other threads."""
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()


def _exit_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not `sys.stdin.read`: at exit Python would wait for its lock
        pass
    os._exit(PARENT_IS_GONE)
