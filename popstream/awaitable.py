"""Results that threads wait for and coroutines await, and calls that would block an event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["AwaitableFuture", "CallThreads"]

LOG = logging.getLogger(__name__)

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


class CallThreads:
    """Runs calls that would block an event loop, in daemon threads, each of which ends when no call waits for it.

    At interpreter exit the threads of a `ThreadPoolExecutor` are joined before the exit hooks run. Ours may wait for
    what only a hook ends, which closes the client.

    Args:
        name: Name of the threads.
        count_max: How many calls run at once; more wait for these. None: any number.
    """

    def __init__(self, name: str, count_max: int | None = None) -> None:
        self._name = name
        self._count_max = math.inf if count_max is None else count_max
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a call in a thread; return its future."""
        future: Future[Result] = Future()
        with self._lock:  # the thread looks for its call when this is left
            if self._count < self._count_max:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._count += 1
            self._waiting.append((future, call))
        return future

    async def run(
        self,
        call: Callable[[], Result],
        *,
        undo: Callable[[Result], object] | None = None,
        interrupt: Callable[[], object] | None = None,
    ) -> Result:
        """Run a call in a thread; return its result.

        When the task is cancelled, the thread goes on.

        Args:
            call: The call.
            undo: Gets the result if the task is cancelled meanwhile. The call is then left out if it has not begun.
            interrupt: Called if the task is cancelled, to end the call soon; it must not block.
        """
        running = self.submit(call)
        try:
            return await asyncio.shield(asyncio.wrap_future(running))
        except asyncio.CancelledError:
            if undo is not None and not running.cancel():
                running.add_done_callback(lambda done: self.submit(lambda: _undo(undo, done)))
            if interrupt is not None:
                interrupt()
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._count -= 1
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(error)
            del future, call  # they may be the last to know the client


def _undo(undo: Callable[[Result], object], done: Future[Result]) -> None:
    if done.exception() is None:
        try:
            undo(done.result())
        except Exception:
            LOG.warning("could not undo a call whose task was cancelled", exc_info=True)
