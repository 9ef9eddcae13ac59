"""The producer for asyncio: a `Producer` whose calls do not block the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

from popstream.awaitable import CallThreads
from popstream.errors import ClientClosed
from popstream.producer import Producer
from popstream.type_variables import Value
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from popstream.awaitable import AwaitableFuture, Result
    from popstream.outcome import SendResult
    from popstream.send.outgoing import OutgoingMessage

__all__ = ["AsyncProducer"]


class AsyncProducer(Generic[Value]):
    """A `Producer` for the coroutines of one event loop, with the same arguments, guarantees and errors.

    ```python
    async with AsyncProducer("localhost:9092") as producer:
        result = await producer.send_and_wait("orders", b"espresso")
        sent = [await producer.send("orders", b"%d" % number) for number in range(1_000)]     # in one batch or a few
        results = await asyncio.gather(*sent)
    ```

    Messages of all coroutines share batches. Their order is that of the calls.

    Args:
        *args: Arguments of `Producer`.
        value_serializer: Argument of `Producer`.
        **options: Arguments of `Producer`.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - Producer's
        value_serializer: Callable[[Value], bytes] | None = None,
        **options: Any,  # noqa: ANN401 - Producer's
    ) -> None:
        self._open = partial(Producer, *args, value_serializer=value_serializer, **options)
        self._producer: Producer[Value] | None = None
        # One thread: what would block is sent in the order of the calls.
        self._thread = CallThreads("popstream-async-producer", 1)
        self._blocked_count = 0
        self._opening = asyncio.Lock()
        self._is_closed = False

    @classmethod
    def of(cls, producer: Producer[Value]) -> Self:
        """Wrap an open producer, which `close` closes."""
        wrapped = cls()
        wrapped._producer = producer
        return wrapped

    @property
    def producer(self) -> Producer[Value]:
        """The wrapped producer, whose calls block.

        Raises:
            Invalid: It is not open.
        """
        if self._producer is None:
            message = "the producer is not open: use `async with`, or `await open()` first"
            raise Invalid(message)
        return self._producer

    async def open(self) -> Self:
        """Connect.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: The job's topics do not exist, or a setting is wrong.
            ClientClosed: It was closed before.
        """
        async with self._opening:
            if self._producer is None:
                self._require_not_closed()
                producer = await self._thread.run(self._open, undo=Producer.close)
                if self._is_closed:
                    await self._thread.run(producer.close)
                self._require_not_closed()
                self._producer = producer
        return self

    async def send(self, topic: str, value: Value | None, **options: Any) -> AwaitableFuture[SendResult]:  # noqa: ANN401 - Producer.send's
        """Like `Producer.send`: return when the producer has taken the message; await what it returns for the result.

        Waits for the metadata of a topic at its first message, and while messages without a result take
        `total_batch_max_bytes`. A task that is cancelled meanwhile sends its message nevertheless.

        Raises:
            ClientClosed: The producer is closed.
        """
        send = partial(self.producer.send, topic, value, **options)
        return await self._in_order(topic, send, wait_for_store=options.get("wait_for_store", True))

    async def send_and_wait(self, topic: str, value: Value | None, **options: Any) -> SendResult:  # noqa: ANN401 - Producer.send's
        """Send a message and wait for its result; it shares batches with those of other coroutines.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: The message was refused.
            NotWritten: The message is not written.
            OutcomeUnknown: The message may or may not be written.
        """
        return await (await self.send(topic, value, **options))

    async def send_many(self, messages: Sequence[OutgoingMessage]) -> list[AwaitableFuture[SendResult]]:
        """Like `Producer.send_many`."""
        if not messages:
            return []
        first = messages[0]
        send = partial(self.producer.send_many, messages)
        return await self._in_order(first.topic, send, wait_for_store=first.wait_for_store)

    async def flush(self, **options: Any) -> None:  # noqa: ANN401 - Producer.flush's
        """Like `Producer.flush`.

        Raises:
            ClientClosed: The producer is closed.
        """
        self._require_not_closed()
        await self._thread.run(partial(self.producer.flush, **options))

    async def close(self, **options: Any) -> None:  # noqa: ANN401 - Producer.close's
        """Like `Producer.close`. More calls do nothing."""
        await self._end(partial(Producer.close, **options))

    async def __aenter__(self) -> Self:
        """Open it."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; an error of the block is not replaced by an error of closing."""
        await self._end(lambda producer: producer.__exit__(kind, error, trace))

    async def _end(self, close: Callable[[Producer[Value]], None]) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._producer is not None:
            await self._thread.run(partial(close, self._producer))

    def _require_not_closed(self) -> None:
        if self._is_closed:
            raise ClientClosed.of("producer", None if self._producer is None else self._producer.settings.client_id)

    async def _in_order(self, topic: str, send: Callable[[], Result], *, wait_for_store: bool) -> Result:
        """Send here, or in the thread if that would block, or if another message waits for the thread."""
        if not self._blocked_count and not self.producer.would_block(topic, wait_for_store=wait_for_store):
            return send()
        self._require_not_closed()
        handed_over = asyncio.wrap_future(self._thread.submit(send))
        self._blocked_count += 1
        handed_over.add_done_callback(self._unblock)
        return await asyncio.shield(handed_over)

    def _unblock(self, _: object) -> None:
        self._blocked_count -= 1
