"""A share of the threads that answer requests, so that slow requests of one kind keep no others waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["STARLETTE_THREADS", "ThreadShare"]

P = ParamSpec("P")
T = TypeVar("T")

STARLETTE_THREADS = 40
"""What Starlette's pool has, for all ports of a server: all shares together must fit into it."""


class ThreadShare:
    """Lets some requests have a thread at a time; others wait in the event loop, where they hold none.

    Args:
        threads: The number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._free = asyncio.Semaphore(threads)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, called in a thread."""
        async with self._free:
            return await run_in_threadpool(work, *args, **kwargs)
