"""A limit on how long a block may take."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["time_limit"]


@contextlib.contextmanager
def time_limit(seconds: float, error: BaseException, *, of_cpu: bool = False) -> Iterator[None]:
    """Raise `error` in the block, which must run in the main thread, when it takes longer.

    It is raised again each time that this time passes until the block is left: its clean-up may hang, too.

    With `of_cpu` the time counts in which this process uses a CPU.
    """
    timer, number = (signal.ITIMER_VIRTUAL, signal.SIGVTALRM) if of_cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def end(_signal: int, _frame: object) -> None:
        raise error

    before = signal.signal(number, end)
    signal.setitimer(timer, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
