"""Passes the messages of a subscription to coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from popstream.awaitable import CallThreads
    from popstream.message import Message
    from popstream.pop.subscription import Subscription

__all__ = ["CoroutineFeed"]

TAKE_TIMEOUT_S = 1.0


class CoroutineFeed:
    """Passes sets of messages to the coroutines of one event loop; one thread waits on behalf of all of them.

    Args:
        subscription: The source of the messages.
        set_size: Maximum number of messages of a set; in an orderly group they are of one queue.
        threads: For calls that wait for messages.
        settle_threads: For calls that settle messages.
        settling: Has the calls that settle messages, as long as they run.
    """

    def __init__(
        self,
        subscription: Subscription,
        set_size: int,
        threads: CallThreads,
        settle_threads: CallThreads,
        settling: set[Future[None]],
    ) -> None:
        self._subscription = subscription
        self._set_size = set_size
        self._threads = threads
        self._settle_threads = settle_threads
        self._settling = settling
        self._owner = threading.current_thread()
        self._waiters: deque[asyncio.Future[list[Message]]] = deque()
        self._serving: asyncio.Task[None] | None = None

    async def next(self) -> list[Message]:
        """Wait for the next messages; none: the consumer has stopped."""
        if not self._waiters and (fetched := self._subscription.take_fetched(self._set_size)):
            try:
                await asyncio.sleep(0)  # a handler that never waits must not keep the others from running
            except asyncio.CancelledError:
                self.release(fetched)
                raise
            return fetched
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[list[Message]] = loop.create_future()
        self._waiters.append(waiter)
        if self._serving is None or self._serving.done():
            self._serving = loop.create_task(self._serve())
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (messages := waiter.result()):
                self.release(messages)
            raise

    def finish(self, messages: Sequence[Message]) -> None:
        """Ack messages soon, together with others."""
        self._subscription.finish(messages)

    def release(self, messages: Sequence[Message]) -> None:
        """Return messages, and in an orderly group the later ones of their pop; in a thread, as Kafka may be away."""
        self._settle(partial(self._subscription.release_with_rest, messages))

    def fail(self, messages: Sequence[Message], error: BaseException) -> None:
        """Settle messages whose handler has raised (`Subscription.fail`); in a thread, too."""
        self._settle(partial(self._subscription.fail, messages, error))

    def _settle(self, call: Callable[[], None]) -> None:
        settling = self._settle_threads.submit(call)
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _serve(self) -> None:
        try:
            while waiter := self._next_waiter():
                self._waiters.appendleft(waiter)
                if self._subscription.is_stopped:
                    self._pass_on(self._subscription.take_fetched(self._set_size))  # or raise what has ended it
                    continue
                take = partial(self._subscription.take, self._set_size, TAKE_TIMEOUT_S, owner=self._owner)
                taken = await self._threads.run(take, undo=self._release_any)
                while taken:
                    self._pass_on(taken)
                    taken = self._subscription.take_fetched(self._set_size) if self._waiters else []
        except Exception as error:  # noqa: BLE001 - every caller of `next` raises it
            while waiter := self._next_waiter():
                waiter.set_exception(error)

    def _release_any(self, messages: list[Message]) -> None:
        if messages:
            self._subscription.release_with_rest(messages)

    def _pass_on(self, messages: list[Message]) -> None:
        if found := self._next_waiter():
            found.set_result(messages)
        elif messages:
            self.release(messages)

    def _next_waiter(self) -> asyncio.Future[list[Message]] | None:
        """Remove and return the first waiter that still waits."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None
