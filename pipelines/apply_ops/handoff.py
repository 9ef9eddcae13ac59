"""Hands micro-batches over to a thread, so that Spark fetches the next one while this one is decided.

foreachBatch returns before its micro-batch is applied, so after a kill Spark's checkpoint may be one micro-batch ahead
of the state. Only the state says up to where the log is applied; each start begins a new checkpoint there.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Handoff"]

Work = TypeVar("Work")


class Handoff(Generic[Work]):
    """Applies one item at a time, in order, in its own thread, while the caller prepares the next one.

    Args:
        apply: Called in the thread with each item; after it raises, nothing more is accepted.
        prepare: Called once in the thread, first.
    """

    def __init__(self, apply: Callable[[Work], None], prepare: Callable[[], None] = lambda: None) -> None:
        self._apply = apply
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decide", initializer=prepare)
        self._previous: Future[None] | None = None

    def hand_over(self, work: Work) -> None:
        """Wait for the previous item, start this one and return; raise what the previous item raised."""
        if self._previous is not None:
            self._previous.result()
        self._previous = self._worker.submit(self._apply, work)

    def close(self) -> None:
        """Wait for the last item."""
        self._worker.shutdown()
