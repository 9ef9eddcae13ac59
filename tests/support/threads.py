"""Work in other threads, waited for by what it does and not by time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["eventually", "in_thread", "leaves_no_thread"]

# Generous: this is for machines on which other things run.
PATIENCE_S = 60.0


def eventually(holds: Callable[[], object]) -> None:
    """Wait until it holds; it fails when that takes unreasonably long."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"it did not happen within {PATIENCE_S} s"
        time.sleep(0.005)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Do it in a thread that keeps nobody from ending."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@contextmanager
def leaves_no_thread(*, soon: bool = False) -> Iterator[None]:
    """Everything that has begun within has ended when it is left, or `soon` after.

    Threads of other tests may end meanwhile, so what counts is what is new.
    """
    before = set(threading.enumerate())
    yield
    if soon:
        eventually(lambda: set(threading.enumerate()) <= before)
    assert set(threading.enumerate()) <= before
