"""Spark reads the next micro-batch while the one before is decided.

foreachBatch returns before its micro-batch is applied, so after a kill Spark's checkpoint may be one micro-batch ahead
of the state. The state alone says how far the log is decided, and each start begins a new checkpoint there.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["ReadAhead"]

Work = TypeVar("Work")


class ReadAhead(Generic[Work]):
    """One piece of work at a time, in order, in a thread of its own; the next one may wait, no more.

    Args:
        apply: Does the work; what it raises ends the line.
        prepare: Called once in the thread, before anything else.
    """

    def __init__(self, apply: Callable[[Work], None], prepare: Callable[[], None] = lambda: None) -> None:
        self._apply = apply
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="apply", initializer=prepare)
        self._before: Future[None] | None = None

    def hand_over(self, work: Work) -> None:
        """Return as soon as the work before is done and this is begun; raises what the work before raised."""
        if self._before is not None:
            self._before.result()
        self._before = self._worker.submit(self._apply, work)

    def close(self) -> None:
        """Finish what was handed over."""
        self._worker.shutdown()
