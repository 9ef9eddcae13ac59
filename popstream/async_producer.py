"""The producer for asyncio: a `Producer` whose calls do not block the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

import msgspec

from popstream.awaitable import CallThreads
from popstream.errors import ClientClosed
from popstream.opened_client import OpenedClient
from popstream.producer import Producer
from popstream.send.outgoing import SendFuture
from popstream.type_variables import Value
from popstream.wire.base_errors import PopstreamError

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
        make = partial(Producer, *args, value_serializer=value_serializer, **options)
        self._threads = CallThreads("popstream-async-producer")
        self._client: OpenedClient[Producer[Value]] = OpenedClient("producer", make, self._threads)
        self._waiting: dict[str, deque[_WaitingSend]] = {}
        """By topic: while its metadata are awaited, and while others wait for it, in the order of the calls."""
        self._learning: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, producer: Producer[Value]) -> Self:
        """Wrap an open producer, which `close` closes."""
        wrapped = cls()
        wrapped._client.client = producer
        return wrapped

    @property
    def producer(self) -> Producer[Value]:
        """The wrapped producer, whose calls block.

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

    async def send(self, topic: str, value: Value | None, **options: Any) -> AwaitableFuture[SendResult]:  # noqa: ANN401 - Producer.send's
        """Like `Producer.send`: return when the producer has taken the message; await what it returns for the result.

        Waits for the metadata of a topic at its first message, and while messages without a result take
        `total_batch_max_bytes`. A task that is cancelled meanwhile sends its message nevertheless.

        Raises:
            ClientClosed: The producer is closed.
        """
        begin = partial(self.producer.begin_send, topic, value, **options)
        try:
            sent = await self._in_order(topic, begin, wait_for_store=options.get("wait_for_store", True))
        except ClientClosed:
            raise
        except PopstreamError as error:  # of the topic
            sent = SendFuture()
            sent.set_exception(error)
        await _wait_for_room([sent])
        return sent

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
        begin = partial(self.producer.begin_send_many, messages)
        sent = await self._in_order(first.topic, begin, wait_for_store=first.wait_for_store)
        await _wait_for_room(sent)
        return list(sent)

    async def flush(self, **options: Any) -> None:  # noqa: ANN401 - Producer.flush's
        """Like `Producer.flush`.

        Raises:
            ClientClosed: The producer is closed.
        """
        self._client.require_not_closed()
        await self._all_begun()
        await self._threads.run(partial(self.producer.flush, **options))

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
        if self._client.is_closed:
            return
        self._client.is_closed = True
        if (producer := self._client.client) is not None:
            try:
                await self._all_begun()
            finally:
                await self._threads.run(partial(close, producer))

    async def _in_order(self, topic: str, begin: Callable[[], Result], *, wait_for_store: bool) -> Result:
        """Send at once if the topic is known, and otherwise when it is, after what was sent to it before.

        Raises:
            Invalid: The topic does not exist.
            NotWritten: Kafka does not answer.
        """
        self._client.require_not_closed()
        if topic not in self._waiting and self.producer.knows_topic(topic, wait_for_store=wait_for_store):
            return begin()
        one = _WaitingSend(begin, wait_for_store, asyncio.get_running_loop().create_future())
        if topic in self._waiting:
            self._waiting[topic].append(one)
        else:
            self._waiting[topic] = deque([one])
            learning = asyncio.create_task(self._learn(topic))
            self._learning.add(learning)
            learning.add_done_callback(self._learning.discard)
        found: Result = await asyncio.shield(one.begun)
        return found

    async def _learn(self, topic: str) -> None:
        """Wait for the metadata of a topic, and send what waits for it; what waited before an error gets that."""
        waiting = self._waiting[topic]
        try:
            while waiting:
                asked = [one for one in waiting if one.wait_for_store == waiting[0].wait_for_store]
                learn = partial(self.producer.learn_topic, topic, wait_for_store=asked[0].wait_for_store)
                try:
                    if not self.producer.knows_topic(topic, wait_for_store=asked[0].wait_for_store):
                        await self._threads.run(learn)
                except Exception as error:  # noqa: BLE001 - raised where it is awaited
                    for one in asked:
                        waiting.remove(one)
                        one.begun.set_exception(error)
                else:
                    waiting.popleft().send()
        finally:
            del self._waiting[topic]
            for one in waiting:
                one.begun.cancel()

    async def _all_begun(self) -> None:
        """Wait until nothing waits for the metadata of a topic."""
        if self._learning:
            await asyncio.wait(self._learning)


class _WaitingSend(msgspec.Struct, eq=False):
    """A call that waits for the metadata of its topic. It is sent although its task is cancelled."""

    begin: Callable[[], Any]
    wait_for_store: bool
    begun: asyncio.Future[Any]

    def send(self) -> None:
        """Send it, and pass on what came of it."""
        try:
            self.begun.set_result(self.begin())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            self.begun.set_exception(error)


async def _wait_for_room(sent: Sequence[SendFuture]) -> None:
    """Wait, as a `Producer` does, for the results of messages that had no room in the buffer."""
    without = [asyncio.wrap_future(future) for future in sent if not future.had_room]
    if without:
        await asyncio.gather(*without, return_exceptions=True)
