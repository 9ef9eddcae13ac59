"""A streaming query without a Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.cluster.held_back_query import HeldBackQuery
    from pipelines.cluster.kept_query import KeptQuery

__all__ = ["Query", "SlowStart"]


class Query:
    """In place of Spark's: fails at once, or runs until it is stopped, in the middle of a micro-batch or not."""

    name = "query"

    lastProgress: Any = None  # noqa: N815 - Spark's name

    def __init__(self, *, fails: bool = False, is_busy: bool = False) -> None:
        self._fails = fails
        self._stopped = threading.Event()
        self.status = {"isTriggerActive": is_busy}

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return not self._stopped.is_set()

    def awaitTermination(self, timeout: int = 60) -> bool:  # noqa: N802
        if self._fails:
            message = "no space left"
            raise OSError(message)
        return self._stopped.wait(timeout)

    def stop(self) -> None:
        self._stopped.set()


class SlowStart:
    """Starts a query, which is not there before its owner is being stopped."""

    def __init__(self) -> None:
        self._query = Query()
        self._starts = threading.Event()
        self._may_start = threading.Event()

    def __call__(self) -> Any:
        self._starts.set()
        assert self._may_start.wait(60)
        return self._query

    def require_ended_by_stop(self, owner: KeptQuery | HeldBackQuery) -> None:
        """Stop the owner while the query starts: it does not run on."""
        assert self._starts.wait(60)
        stopping = threading.Thread(target=owner.stop)
        stopping.start()
        assert owner._stopping.wait(60)
        self._may_start.set()
        stopping.join(60)
        assert not self._query.isActive
        assert not owner._thread.is_alive()
