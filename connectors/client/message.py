"""What a consumer hands out and what it hands back: messages, receipts, outcomes."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from broker_state.reason import Reason
from connectors.client.errors import ClientClosed
from connectors.client.tags import tag_value

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from connectors.client.lease.leased_unit import LeasedUnit

__all__ = [
    "Headers",
    "Message",
    "MessageState",
    "Outcome",
    "PopResult",
    "QueueKey",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "SendResult",
    "Settler",
]

Headers = Sequence[tuple[str, bytes | None]]
"""Of a record: names and values; names may repeat."""
QueueKey = tuple[str, int]
"""(topic, queue_id): the queue_id is the Kafka partition."""


class ReceiptHandle(msgspec.Struct, frozen=True, gc=False):
    """Proof of one delivery, opaque: give it back as it came, never look inside."""

    text: str

    def __str__(self) -> str:
        """Give the text that travels."""
        return self.text


class Receipt(msgspec.Struct, kw_only=True, eq=False):
    """All that is needed to ack a message or to change its invisible time, also from another process of the same group.

    `handle` is replaced when the invisible time is changed: a change needs the newest one, an ack takes any of the same
    delivery.

    >>> receipt = Receipt(topic="orders", queue_id=0, queue_offset=7, handle=ReceiptHandle("1.AAAA"))
    >>> str(msgspec.json.decode(msgspec.json.encode(receipt), type=Receipt).handle)
    '1.AAAA'
    """

    topic: str
    queue_id: int
    queue_offset: int
    handle: ReceiptHandle


class MessageState(enum.Enum):
    """What became of a message in the hands of its consumer."""

    OPEN = "open"
    FINISHED = "finished"
    """It was asked to ack or reject it."""
    RETURNED = "returned"
    """It was asked to give it back, or the lease ended: it comes again."""


class Settler(Protocol):
    """Whoever handed a message out and takes word of what became of it: its consumer."""

    def ack_one(self, message: Message) -> Future[Outcome]:
        """Say that it is done."""

    def extend_one(self, message: Message, invisible_time_ms: int) -> Future[Outcome]:
        """Give it another invisible time."""

    def release_one(self, message: Message, invisible_time_ms: int) -> Future[Outcome]:
        """Give it back."""

    def reject_one(self, message: Message, cause: str | None) -> Future[Outcome]:
        """Send it to the dead letters."""


class Message(Receipt, kw_only=True, eq=False):
    """One delivery of one message.

    As a context manager it is acked when the block ends, and given back when the block raises:

    ```python
    for message in consumer:
        with message:
            work_on(message.value)
    ```

    The methods do not wait; the future they give brings the outcome.

    Attributes:
        attempt: 1 for the first delivery.
        timestamp_ms: The record's own timestamp.
        pop_time_ms: When the lease began or was last changed, by the broker's clock; in an orderly lane always when it
            began.
        next_visible_time_ms: When the lease ends unless something is done, by the broker's clock.
        settler: The consumer that handed it out.
        state: What became of it here.
        message_id: Given by the producer; empty when it was another one than ours.
        inner_index: Its place among the messages of its record.
        inner_count: How many messages its record carries.
        unit: What it is leased with, when its record carries many.
        carries: What is leased with it, when it is such a record itself; that is not handed out.
    """

    attempt: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    timestamp_ms: int = 0
    pop_time_ms: int
    next_visible_time_ms: int
    settler: Settler | None = None
    state: MessageState = MessageState.OPEN
    message_id: str = ""
    inner_index: int = 0
    inner_count: int = 1
    unit: LeasedUnit | None = None
    carries: LeasedUnit | None = None

    @property
    def leased(self) -> Message:
        """What is leased: the message itself, or the unit it came with."""
        return self if self.unit is None else self.unit.message

    @property
    def is_settled(self) -> bool:
        """Whether it was finished or given back, by itself or with its unit."""
        return self.state is not MessageState.OPEN or (self.unit is not None and self.unit.message.is_settled)

    @property
    def tag(self) -> str:
        """Tag given by the sender; empty when there is none."""
        return tag_value(self.leased.headers).decode(errors="replace")

    @property
    def receipt(self) -> Receipt:
        """What another process needs to finish this message, with all of its unit; it does not follow later changes."""
        return Receipt(topic=self.topic, queue_id=self.queue_id, queue_offset=self.queue_offset, handle=self.handle)

    def ack(self) -> Future[Outcome]:
        """Say that the message is done. Acks that come within a few milliseconds travel together.

        Raises:
            ClientClosed: The consumer was closed.
        """
        return self._settler().ack_one(self)

    def extend(self, seconds: float) -> Future[Outcome]:
        """Keep the message for so long from now on, at most 12 hours; `handle` is replaced when the outcome is known.

        Raises:
            ClientClosed: The consumer was closed.
        """
        return self._settler().extend_one(self, round(seconds * 1000))

    def release(self, delay: float = 0.0) -> Future[Outcome]:
        """Give the message back: it comes again, to anyone of the group, `delay` seconds from now.

        Raises:
            ClientClosed: The consumer was closed.
        """
        return self._settler().release_one(self, round(delay * 1000))

    def reject(self, reason: str | None = None) -> Future[Outcome]:
        """Send the message to the dead letters now; `reason` is kept with it.

        Raises:
            ClientClosed: The consumer was closed.
        """
        return self._settler().reject_one(self, reason)

    def __enter__(self) -> Self:
        """Give the message."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ack it, or give it back when the block raised; what the block has settled itself stays as it is."""
        if self.is_settled:
            return
        if kind is None:
            self.ack()
        else:
            self.release()

    def _settler(self) -> Settler:
        if self.settler is None:
            text = "the message was not handed out by a consumer: use the methods of one, with its receipt"
            raise ClientClosed(text, subject=f"{self.topic}/{self.queue_id}")
        return self.settler


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it lies in its queue, looked at without a lease."""

    topic: str
    queue_id: int
    queue_offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    message_id: str = ""
    inner_index: int = 0
    inner_count: int = 1


class PopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a pop brought; iterate over it, or take its length.

    `reason` is OK when something was leased, else NO_MESSAGE, POLLING_TIMEOUT, POLLING_FULL or CANCELLED. An OK result
    may hold no messages all the same, when all that was leased had been deleted from the topic (`gone_count`).
    """

    op_id: str
    reason: Reason
    code: int
    messages: list[Message] = []
    gone_count: int = 0
    late_count: int = 0

    def __iter__(self) -> Iterator[Message]:
        """Go through the messages by queue offset."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.messages)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one message of a request; judge by `applied`, which says whether anything changed.

    All but the first three belong to a change of the invisible time. `pop_time_ms` and `invisible_time_ms` are by the
    broker's clock; `revive_queue_id` is RocketMQ's, 999 in an orderly lane.
    """

    applied: bool
    reason: Reason
    code: int
    pop_time_ms: int | None = None
    invisible_time_ms: int | None = None
    revive_queue_id: int | None = None
    handle: ReceiptHandle | None = None

    @property
    def next_visible_time_ms(self) -> int | None:
        """When the lease ends from now on, by the broker's clock.

        >>> Outcome(True, Reason.OK, 0, 1_000, 30_000).next_visible_time_ms
        31000
        """
        if self.pop_time_ms is None or self.invisible_time_ms is None:
            return None
        return self.pop_time_ms + self.invisible_time_ms


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where Kafka wrote a message.

    Attributes:
        message_id: Given by the producer; the message has it wherever it comes.
        inner_index: Its place among the messages of its record.
    """

    topic: str
    queue_id: int
    queue_offset: int
    timestamp_ms: int
    message_id: str = ""
    inner_index: int = 0


def queue_of(receipt: Receipt) -> QueueKey:
    """Queue of a message or receipt."""
    return (receipt.topic, receipt.queue_id)


def all_applied(outcomes: Sequence[Outcome]) -> bool:
    """Whether every message was changed.

    >>> all_applied([Outcome(True, Reason.OK, 0), Outcome(False, Reason.ALREADY_ACKED, 0)])
    False
    """
    return all(outcome.applied for outcome in outcomes)
