"""Results that threads wait for and coroutines await, and calls that would block an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Executor

__all__ = ["AwaitableFuture", "in_thread"]

Result = TypeVar("Result")


class AwaitableFuture(Future[Result]):
    """A future of concurrent.futures that a coroutine can await. It cannot be cancelled: what was sent was sent.

    >>> future: AwaitableFuture[str] = AwaitableFuture()
    >>> async def wait() -> str:
    ...     return await future
    >>> future.set_result("done"); asyncio.run(wait()), future.result()
    ('done', 'done')
    """

    def __await__(self) -> Generator[None, None, Result]:
        """Wait without blocking the event loop, and return the result or raise the error."""
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Return False."""
        return False


async def in_thread(
    threads: Executor, call: Callable[[], Result], undo: Callable[[Result], None] | None = None
) -> Result:
    """Return the result of a call that blocks.

    When the task is cancelled, the thread goes on: `undo` gets the result that nobody processes.
    """
    running = threads.submit(call)
    try:
        return await asyncio.shield(asyncio.wrap_future(running))
    except asyncio.CancelledError:
        if undo is not None:
            running.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
        raise
