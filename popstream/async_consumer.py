"""The consumer for asyncio: a `Consumer` whose calls do not block the event loop."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

from popstream.awaitable import CallThreads
from popstream.consumer import CLOSE_TIMEOUT_MS, Consumer
from popstream.deadline import left_s
from popstream.opened_client import OpenedClient
from popstream.pop.coroutine_feed import CoroutineFeed
from popstream.pop.handler_kind import WrongKind, ends_run, require_awaitable
from popstream.pop.handler_pool import end_forked_child, log_after_settling, unsettled
from popstream.shutdown import finish_before_exit, install_sigterm_handler
from popstream.type_variables import Body
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from popstream.message import Message, PopResult
    from popstream.outcome import Outcome, Receipt
    from popstream.pop.subscription import Subscription

__all__ = ["AsyncConsumer"]

SETTLE_THREADS_MAX = 8
"""Requests that settle messages block only while Kafka is away, and there may be one for each message held."""


class AsyncConsumer(Generic[Body]):
    """A `Consumer` for the coroutines of one event loop, with the same arguments.

    ```python
    async with AsyncConsumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
        async for message in consumer:          # or: await consumer.run(handler, tasks=100)
            await work_on(message.value)
            await message.ack()                 # or without await, if its outcome does not matter
    ```

    Args:
        *args: Arguments of `Consumer`.
        value_deserializer: Argument of `Consumer`.
        **options: Arguments of `Consumer`.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - Consumer's
        value_deserializer: Callable[[bytes], Body] | None = None,
        **options: Any,  # noqa: ANN401 - Consumer's
    ) -> None:
        make = partial(Consumer, *args, value_deserializer=value_deserializer, **options)
        self._threads = CallThreads("popstream-async")
        # The consumer is made in another thread, which cannot install a handler of signals.
        prepare = install_sigterm_handler if options.get("exit_on_sigterm", True) else lambda: None
        self._client: OpenedClient[Consumer[Body]] = OpenedClient("consumer", make, self._threads, prepare)
        self._settle_threads = CallThreads("popstream-async-settle", SETTLE_THREADS_MAX)
        self._workers: set[asyncio.Future[None]] = set()
        self._settling: set[Future[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, consumer: Consumer[Body]) -> Self:
        """Wrap an open consumer, which `close` closes."""
        wrapped = cls()
        wrapped._client.client = consumer
        return wrapped

    @property
    def consumer(self) -> Consumer[Body]:
        """The wrapped consumer, whose calls block.

        Raises:
            Invalid: It is not open.
        """
        return self._client.opened

    async def open(self) -> Self:
        """Connect.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: The job's topics do not exist, or a setting is wrong.
            ClientClosed: It was closed before.
        """
        await self._client.open()
        return self

    async def pop(self, topic: str, queue_id: int | None = None, **options: Any) -> PopResult[Body]:  # noqa: ANN401 - Consumer.pop's
        """Like `Consumer.pop`. When the task is cancelled, the pop is, too, and what it leases is released unseen."""
        call = self.consumer.new_pop_call()
        pop = partial(self.consumer.pop, topic, queue_id, call=call, **options)
        return await self._threads.run(pop, undo=self.consumer.release_unseen, interrupt=call.interrupt)

    async def ack(self, messages: Iterable[Receipt]) -> list[Outcome]:
        """Like `Consumer.ack`."""
        return await self.consumer.ack_async(messages)

    async def change_invisible(
        self, messages: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool = False
    ) -> list[Outcome]:
        """Like `Consumer.change_invisible`."""
        change = partial(self.consumer.change_invisible_async, messages, invisible_time_ms, suspend=suspend)
        return await (await self._settle_threads.run(change))

    async def reject(self, messages: Iterable[Receipt], cause: str | None = None) -> list[Outcome]:
        """Like `Consumer.reject`."""
        return await (await self._settle_threads.run(partial(self.consumer.reject_async, messages, cause)))

    async def run(self, handler: Callable[[Message[Body]], Awaitable[object]], *, tasks: int = 1) -> None:
        """Like `Consumer.run`, with `tasks` tasks in place of threads.

        When cancelled, it releases the messages of its handlers; the delivery does not count as an attempt. In the main
        thread, SIGTERM stops it like `stop`, and when its handlers have ended, it raises `SystemExit`.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: The consumer has no topics, one does not exist, `tasks` is less than 1, or what the handler has
                returned cannot be awaited.
        """

        async def handle_one(messages: Sequence[Message[Body]]) -> None:
            await require_awaitable(handler(messages[0]))

        await self._run(handle_one, set_size=1, tasks=tasks)

    async def run_sets(
        self, handler: Callable[[Sequence[Message[Body]]], Awaitable[object]], *, set_size: int, tasks: int = 1
    ) -> None:
        """Like `Consumer.run_sets`, with `tasks` tasks in place of threads. It ends like `run`.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: As of `run`, or `set_size` is less than 1.
        """

        async def handle_set(messages: Sequence[Message[Body]]) -> None:
            await require_awaitable(handler(messages))

        await self._run(handle_set, set_size=set_size, tasks=tasks)

    def stop(self) -> None:
        """Like `Consumer.stop`."""
        self.consumer.stop()

    async def close(self, *, release: bool = True, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Like `Consumer.close`; it waits for the tasks of `run`, but for the caller's."""
        caller = asyncio.current_task()
        if self._closing is None:
            self._client.is_closed = True
            others = self._workers - {caller}
            self._closing = asyncio.create_task(self._close(others, release=release, timeout_ms=timeout_ms))
            await asyncio.shield(self._closing)
        elif caller not in self._workers and not self._closing.done():
            await asyncio.wait((self._closing,), timeout=timeout_ms / 1000)

    async def __aiter__(self) -> AsyncIterator[Message[Body]]:
        """Iterate over the messages of the topics until `stop` or `close`, like a `Consumer`.

        After `break` the messages that were prefetched are still held, for the next iteration: `stop` releases them.
        """
        feed = self._feed(self.consumer.subscribe(), 1)
        while messages := await feed.next():
            yield messages[0]

    async def __aenter__(self) -> Self:
        """Open it."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _close(self, workers: set[asyncio.Future[None]], *, release: bool, timeout_ms: int) -> None:
        deadline_s = time.monotonic() + timeout_ms / 1000
        if (consumer := self._client.client) is not None:
            consumer.stop()
            try:
                await _wait(workers, deadline_s)
                await self._settled(deadline_s)
            finally:
                left_ms = round(left_s(deadline_s) * 1000)
                await self._threads.run(partial(consumer.close, release=release, timeout_ms=left_ms))

    async def _settled(self, deadline_s: float | None = None) -> None:
        """Wait until the threads that settle have handed over what handlers were done with."""
        await _wait({asyncio.wrap_future(settling) for settling in list(self._settling)}, deadline_s)

    async def _run(
        self, handler: Callable[[Sequence[Message[Body]]], Awaitable[object]], *, set_size: int, tasks: int
    ) -> None:
        if min(tasks, set_size) < 1:
            message = f"a handler needs at least one task and one message, not {tasks} and {set_size}"
            raise Invalid(message, subject=self.consumer.client_id)
        subscription = self.consumer.subscribe()
        feed = self._feed(subscription, set_size)
        handler = self.consumer.observers.around_coroutine(self.consumer, handler)
        with finish_before_exit():
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(tasks):
                        worker = group.create_task(self._work(feed, handler))
                        self._workers.add(worker)
                        worker.add_done_callback(self._workers.discard)
                await self._settled()
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None  # all workers meet the same error
            finally:
                subscription.stop()

    def _feed(self, subscription: Subscription, set_size: int) -> CoroutineFeed:
        return CoroutineFeed(subscription, set_size, self._threads, self._settle_threads, self._settling)

    async def _work(self, feed: CoroutineFeed, handler: Callable[[Sequence[Message]], Awaitable[object]]) -> None:
        process_id = os.getpid()
        while messages := await feed.next():
            try:
                await handler(messages)
            except BaseException as error:
                end_forked_child(process_id)
                is_cancelled = isinstance(error, asyncio.CancelledError)
                was_cancelled_within = is_cancelled and not _is_being_cancelled()
                if not (left := unsettled(messages)):
                    if isinstance(error, Exception):  # a cancellation is not about the messages
                        log_after_settling(messages[0], error)
                elif isinstance(error, WrongKind) or (is_cancelled and not was_cancelled_within):
                    feed.release(left)
                else:
                    feed.fail(left, error)
                if ends_run(error) and not was_cancelled_within:
                    raise
            else:
                end_forked_child(process_id)
                if left := unsettled(messages):
                    feed.finish(left)


async def _wait(futures: set[asyncio.Future[None]], deadline_s: float | None) -> None:
    if futures:
        await asyncio.wait(futures, timeout=None if deadline_s is None else left_s(deadline_s))


def _is_being_cancelled() -> bool:
    """Whether it is the task of the handler that is cancelled, and not something that the handler awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
