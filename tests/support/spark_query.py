"""A streaming query without a Spark."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Query"]


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
