"""When a worker that keeps shards looks for cyclic garbage: rarely, and over all it keeps.

A decision makes many objects and nearly no cycles. Collections while it does so, and those that come after it when the
collector is on again, go through all that the worker has decoded: a tenth of its time. So what is there after a
decision counts as permanent. It is freed as soon as nobody refers to it, like anything else; only cycles wait.
"""

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["RareCollection"]

DECISIONS_MAX = 1_000
"""Decisions between two collections of everything, which takes some 50 ms for each 100,000 objects."""


class RareCollection:
    """Counts the decisions of a worker."""

    def __init__(self) -> None:
        self._decisions = 0

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """Decide in the block."""
        gc.disable()
        try:
            yield
        finally:
            self._decisions += 1
            if self._decisions >= DECISIONS_MAX:
                self._decisions = 0
                gc.unfreeze()
                gc.collect()
            gc.freeze()
            gc.enable()
