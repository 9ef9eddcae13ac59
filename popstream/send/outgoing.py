"""A message to send, its destination, and the future of its result."""

from __future__ import annotations

import _thread
import enum
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from popstream.awaitable import AwaitableFuture
from popstream.payload.redelivery import Redelivery
from popstream.wire.base_errors import Invalid
from popstream.wire.dedup_id import DEDUP_ID_BYTES_MAX
from popstream.wire.deliver_at import AT_ONCE, epoch_ms
from popstream.wire.headers import (
    DEDUP_ID_HEADER,
    DELIVER_AT_HEADER,
    MESSAGE_ID_HEADER,
    OWN_PREFIX,
    TAG_HEADER,
    is_own_header,
)
from popstream.wire.limits import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from popstream.outcome import SendResult

__all__ = ["Destination", "Order", "Outgoing", "OutgoingMessage", "SendFuture", "is_in_order", "require_alike"]

MESSAGE_BYTES = 608
"""Memory that CPython needs for a waiting message beside its bytes: its future, place in a batch, header."""


class Order(enum.Enum):
    """The messages that a message keeps its order with, when they are not those of its key."""

    WHOLE_QUEUE = "queue"
    NONE = "none"


def is_in_order(key: bytes | Order, others: Collection[bytes | Order]) -> bool:
    """Tell by order keys whether a message must keep its order with one of others in its queue.

    >>> [is_in_order(key, {b"a", Order.NONE}) for key in (b"a", b"b", Order.WHOLE_QUEUE, Order.NONE)]
    [True, False, True, False]
    """
    if key is Order.NONE:
        return False
    return key in others or Order.WHOLE_QUEUE in others or (key is Order.WHOLE_QUEUE and bool(others))


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message for `Producer.send_many`; the fields are those of `Producer.send`.

    Raises:
        Invalid: A field has the wrong type, a header is one of popstream's own, `deliver_at` has no time zone,
            `dedup_id` is too long, or there is neither value nor key.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    queue_id: int | None = None
    tag: str | None = None
    wait_for_store: bool = True
    deliver_at: datetime | int | None = None
    dedup_id: str | None = None

    def __post_init__(self) -> None:
        """Check the types, since Kafka takes bytes, and the names of the headers."""
        is_plain = self.key is None and self.tag is None and self.queue_id is None and not self.headers
        is_plain = is_plain and self.deliver_at is None and self.dedup_id is None
        if is_plain and type(self.value) is bytes and type(self.topic) is str and self.topic:
            return  # most messages, at high rates
        wrong = [
            f"{name} must be {kind.__name__}, not {type(found).__name__}"
            for name, found, kind in (
                ("topic", self.topic, str),
                ("value", self.value, bytes),
                ("key", self.key, bytes),
                ("queue_id", self.queue_id, int),
                ("tag", self.tag, str),
                ("dedup_id", self.dedup_id, str),
            )
            if found is not None and not isinstance(found, kind)
        ]
        wrong += [
            f"header {name!r} must be a name and bytes, not {type(value).__name__}"
            for name, value in self.headers
            if not (isinstance(name, str) and isinstance(value, bytes))
        ]
        if not wrong and (self.value is None and self.key is None):
            wrong.append("a message needs a value or a key")
        if not wrong and (not self.topic or (self.queue_id or 0) < 0):
            wrong.append(f"no queue can have the name {self.topic}/{self.queue_id}")
        if wrong:
            message = "the message cannot be sent; Kafka takes bytes, so serialize it first"
            raise Invalid(message, subject=str(self.topic), details=wrong)
        if own := [name for name, _ in self.headers if is_own_header(name)]:
            message = (
                f"headers that begin with {OWN_PREFIX} are set by the producer; tag, deliver_at and dedup_id are"
                " arguments of their own"
            )
            raise Invalid(message, subject=self.topic, details=own)
        if self.deliver_at is not None:
            self._require_time(self.deliver_at)
        if self.dedup_id is not None and not 1 <= len(self.dedup_id.encode()) <= DEDUP_ID_BYTES_MAX:
            message = f"dedup_id must be 1 to {DEDUP_ID_BYTES_MAX} bytes of UTF-8, not {len(self.dedup_id.encode())}"
            raise Invalid(message, subject=self.topic)

    def _require_time(self, deliver_at: object) -> None:
        if not isinstance(deliver_at, (datetime, int)) or isinstance(deliver_at, bool):
            message = f"deliver_at must be a datetime or an int of ms since 1970, not {type(deliver_at).__name__}"
            raise Invalid(message, subject=self.topic)
        try:
            epoch_ms(deliver_at)
        except ValueError as error:
            message = f"deliver_at must say which moment is meant: {error}"
            raise Invalid(message, subject=self.topic) from error

    @property
    def deliver_at_ms(self) -> int:
        """When it can be popped, ms since 1970; 0: as soon as it is written."""
        return AT_ONCE if self.deliver_at is None else max(AT_ONCE, epoch_ms(self.deliver_at))

    @property
    def body_bytes(self) -> int:
        """Length of the value, which is the size that RocketMQ counts."""
        return len(self.value or b"")

    @property
    def held_bytes(self) -> int:
        """Approximate size in memory until its result is known."""
        size_bytes = MESSAGE_BYTES + len(self.value or b"") + len(self.key or b"")
        return size_bytes + sum(len(name) + len(value) for name, value in self.headers) if self.headers else size_bytes

    @property
    def order_key(self) -> bytes | Order:
        """Messages of one order key keep their order; those of WHOLE_QUEUE with all of their queue."""
        if self.queue_id is not None:
            return Order.WHOLE_QUEUE
        return Order.NONE if self.key is None else self.key


def require_alike(messages: Sequence[OutgoingMessage]) -> None:
    """Check that messages can be one batch (RocketMQ: MessageBatch.generateFromList; vectors ACC-04 to ACC-08).

    Raises:
        Invalid: They cannot; `details` has a line for each reason.
    """
    first = messages[0]
    wrong = []
    if len(messages) > POP_MESSAGES_MAX:
        wrong.append(f"it has {len(messages)} messages, and may have {POP_MESSAGES_MAX}")
    if any(message.topic != first.topic for message in messages):
        wrong.append("its messages are of several topics")
    if any(message.wait_for_store != first.wait_for_store for message in messages):
        wrong.append("some of its messages are to wait for the store, and some are not")
    if wrong:
        text = "the messages cannot be one batch"
        raise Invalid(text, subject=first.topic, details=wrong)


class Destination(msgspec.Struct, frozen=True, gc=False):
    """The common fields of a batch's messages: the aggregation key of RocketMQ's ProduceAccumulator, and the queue.

    Attributes:
        queue_id: None: neither a queue id nor a key was given.
        is_batch_topic: One record carries all messages of a batch.
        deliver_at_ms: Of a batch topic, where the time is that of the record: when its messages can be popped, ms since
            1970; 0: as soon as they are written.
    """

    topic: str
    queue_id: int | None
    wait_for_store: bool
    tag: str | None
    is_batch_topic: bool = False
    deliver_at_ms: int = AT_ONCE


class _Lock(_thread.RLock):  # type: ignore[misc]  # final only for type checkers
    """The lock of a future, with what else the standard library asks of its condition: nobody waits for that."""

    __slots__ = ()

    def notify_all(self) -> None:
        """Do nothing."""


class _Waiter:
    """Wakes a thread when a future is done; the methods are those that the standard library calls."""

    def __init__(self) -> None:
        self.is_done = threading.Event()

    def add_result(self, _: object) -> None:
        """Wake it."""
        self.is_done.set()

    add_exception = add_result


class SendFuture(AwaitableFuture["SendResult"]):
    """The future of a message's result.

    A future of the standard library consists of nine objects, 1,600 bytes, and the garbage collector visits all of
    them, which takes longer than the rest of a send. Most of them are its condition, for which this one has a lock. No
    two futures share it: `concurrent.futures.wait` acquires those of all its futures in an order that two threads
    would not have in common.

    Attributes:
        had_room: Whether there was room in the buffer for the message; otherwise the sender waits for its result.
    """

    had_room = True

    def __init__(self) -> None:
        self._condition = _Lock()  # type: ignore[assignment]
        self._state = "PENDING"
        self._result = None
        self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[SendFuture], object]] = []

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the result, or raise the error.

        Raises:
            TimeoutError: The result is not known within `timeout` seconds.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the result, and return the error if there is one.

        Raises:
            TimeoutError: The result is not known within `timeout` seconds.
        """
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            if self.done():
                return
            waiter = _Waiter()
            self._waiters.append(waiter)
        if not waiter.is_done.wait(timeout):
            with self._condition:
                self._waiters.remove(waiter)
            if not self.done():
                raise TimeoutError


class Outgoing(msgspec.Struct, eq=False, gc=False):
    """A message on its way to Kafka. Times are monotonic, in seconds.

    Attributes:
        created_ms: Timestamp of the record, in milliseconds of the Unix epoch.
        deadline_s: After this time it is not handed to Kafka any more.
        redelivery: For a message that a consumer sends again out of a unit: for whom, and how it goes on there.
        message_id: Its id at the last attempt; a redelivery has it from the beginning.
        buffered_bytes: Its part of the `buffered_bytes` of the producer; 0 when it has a result.
        epoch: Number of calls of `flush` before it.
        last_error: Why the last attempt has not written it.
    """

    message: OutgoingMessage
    future: SendFuture
    created_ms: int
    deadline_s: float
    redelivery: Redelivery | None = None
    message_id: str = ""
    buffered_bytes: int = 0
    epoch: int = 0
    last_error: Exception | None = None

    @property
    def is_batchable(self) -> bool:
        """Whether it may share a batch: a redelivery may not, nor a message that deletes its key."""
        return self.message.value is not None and self.redelivery is None

    @property
    def record_headers(self) -> list[tuple[str, bytes]]:
        """The headers of the record that carries this message alone."""
        headers = [*self.message.headers, (MESSAGE_ID_HEADER, self.message_id.encode())]
        if self.message.tag:
            headers.append((TAG_HEADER, self.message.tag.encode()))
        if deliver_at_ms := self.message.deliver_at_ms:
            headers.append((DELIVER_AT_HEADER, b"%d" % deliver_at_ms))
        if self.message.dedup_id is not None:
            headers.append((DEDUP_ID_HEADER, self.message.dedup_id.encode()))
        if self.redelivery is not None:
            headers.append(self.redelivery.header())
        return headers
