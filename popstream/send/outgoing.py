"""A message that is to be sent, and what its sender is told of it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from popstream.payload.message_id import message_id_of
from popstream.wire.failures import Invalid
from popstream.wire.headers import MESSAGE_ID_HEADER, REDELIVERY_HEADER, TAG_HEADER

if TYPE_CHECKING:
    from popstream.outcome import SendResult

__all__ = ["Destination", "Order", "Outgoing", "OutgoingMessage", "SendFuture", "is_in_order"]

MESSAGE_BYTES = 512
"""What CPython needs for a message that waits, beside its bytes: its future, place in a batch, header."""


class Order(enum.Enum):
    """What a message is in order with, when that is not the messages of its key."""

    WHOLE_QUEUE = "queue"
    NONE = "none"


def is_in_order(key: bytes | Order, others: Collection[bytes | Order]) -> bool:
    """Whether a message must keep its order with some of others in its queue, by their order keys.

    >>> [is_in_order(key, {b"a", Order.NONE}) for key in (b"a", b"b", Order.WHOLE_QUEUE, Order.NONE)]
    [True, False, True, False]
    """
    if key is Order.NONE:
        return False
    return key in others or Order.WHOLE_QUEUE in others or (key is Order.WHOLE_QUEUE and bool(others))


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a manual batch; `Producer.send` takes the same as arguments, and says what each is.

    Raises:
        Invalid: Something has not the type that it must have, or there is neither value nor key.
    """

    topic: str
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    queue_id: int | None = None
    tag: str | None = None
    wait_for_store: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be sent: Kafka takes bytes."""
        is_plain = self.key is None and self.tag is None and self.queue_id is None and not self.headers
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
            wrong.append(f"there is no queue {self.topic}/{self.queue_id}")
        if wrong:
            message = "the message cannot be sent; Kafka takes bytes, so serialise it first"
            raise Invalid(message, subject=str(self.topic), details=wrong)

    @property
    def body_bytes(self) -> int:
        """Length of the value: what RocketMQ counts of a message."""
        return len(self.value or b"")

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory until its result is known."""
        size_bytes = MESSAGE_BYTES + len(self.value or b"") + len(self.key or b"")
        return size_bytes + sum(len(name) + len(value) for name, value in self.headers) if self.headers else size_bytes

    @property
    def order_key(self) -> bytes | Order:
        """Messages of one order key keep their order; those of WHOLE_QUEUE with all of their queue."""
        if self.queue_id is not None:
            return Order.WHOLE_QUEUE
        return Order.NONE if self.key is None else self.key

    @property
    def is_batchable(self) -> bool:
        """Whether it may share a batch: one that is sent again or delayed may not, nor one that deletes its key."""
        return self.value is not None and not self.is_redelivery

    @property
    def is_redelivery(self) -> bool:
        """Whether it was delivered before, inside a batch."""
        return bool(self.headers) and any(name == REDELIVERY_HEADER for name, _ in self.headers)

    @property
    def message_id(self) -> str:
        """The id that it brings along, as a message does that is sent again; else empty."""
        return message_id_of(self.headers) if self.headers else ""

    def record_headers(self, message_id: str) -> list[tuple[str, bytes]]:
        """Headers of the record that carries this message alone."""
        headers = [*self.headers, (MESSAGE_ID_HEADER, message_id.encode())]
        if self.tag:
            headers.append((TAG_HEADER, self.tag.encode()))
        return headers


class Destination(msgspec.Struct, frozen=True, gc=False):
    """Where messages go together, and how: the aggregation key of RocketMQ's ProduceAccumulator, and its queue.

    `queue_id` None: none was asked for, neither by number nor by key. On a batch topic one record carries all of them.
    """

    topic: str
    queue_id: int | None
    wait_for_store: bool
    tag: str | None
    is_batch_topic: bool = False


class SendFuture(Future["SendResult"]):
    """The result of a message to come. What is sent cannot be taken back.

    A future of the standard library makes nine objects, 1,600 bytes, and the garbage collector goes through all of
    them: that takes longer than the rest of a send. Here several share their condition.

    Args:
        condition: Wakes whoever waits, for this result or for another one.
    """

    def __init__(self, condition: threading.Condition | None = None) -> None:
        if condition is None:
            super().__init__()
            return
        self._condition = condition
        self._state = "PENDING"
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[SendFuture], object]] = []

    def cancel(self) -> bool:
        """Not possible."""
        return False

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the result, or raise the error.

        Raises:
            TimeoutError: It is not known within so many seconds.
        """
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the result, and give the error if there is one.

        Raises:
            TimeoutError: It is not known within so many seconds.
        """
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            self._condition.wait_for(self.done, timeout)


class Outgoing(msgspec.Struct, eq=False, gc=False):
    """A message on its way. Times are monotonic, in seconds.

    Attributes:
        created_ms: When it was sent, as the record says.
        deadline_s: After that it is not handed to Kafka any more.
        message_id: Of the last try.
        account_bytes: What it holds of the account of all messages that wait.
        epoch: How many calls of `flush` came before it.
        last_error: Why it was not written, when it is tried again.
    """

    message: OutgoingMessage
    future: SendFuture
    created_ms: int
    deadline_s: float
    message_id: str = ""
    account_bytes: int = 0
    epoch: int = 0
    last_error: Exception | None = None
