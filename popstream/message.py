"""What a consumer hands out and what it hands back: messages, receipts, outcomes."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from popstream.errors import ClientClosed
from popstream.outcome import Outcome, Receipt
from popstream.wire.headers import tag_value
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from popstream.payload.inner_batch import Unwrapped

__all__ = [
    "FilterVerdict",
    "LeasedUnit",
    "Message",
    "MessageFilter",
    "MessageState",
    "PopResult",
    "Settler",
]


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
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - msgspec copies it
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


class FilterVerdict(enum.Enum):
    """What a consumer's own filter decides about a message before it is handed out."""

    CONSUME = "CONSUME"
    TO_RETURN = "TO_RETURN"
    """Give it back for one second."""
    TO_DEAD_LETTER = "TO_DEAD_LETTER"
    """Reject it to the dead letters."""


MessageFilter = Callable[[Message], FilterVerdict]


class LeasedUnit:
    """The messages of one unit. Safe for use by many threads.

    Args:
        message: What is leased.
        unwrapped: What its record carries.
    """

    def __init__(self, message: Message, unwrapped: Sequence[Unwrapped]) -> None:
        self.message = message
        self.messages = [
            Message(
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                handle=message.handle,
                attempt=message.attempt,
                pop_time_ms=message.pop_time_ms,
                next_visible_time_ms=message.next_visible_time_ms,
                settler=message.settler,
                unit=self,
                **msgspec.structs.asdict(one),
            )
            for one in unwrapped
        ]
        message.carries = self
        message.value = None
        self.cause: str | None = None
        """Why it goes to the dead letters when all its messages are done; None: it does not."""
        self._lock = threading.Lock()
        self._open = set(range(len(self.messages)))
        self._owners: dict[int, threading.Thread] = {}

    @property
    def is_begun(self) -> bool:
        """Whether something of it is done, or about to be, and would come twice if all of it came again."""
        return any(message.state is not MessageState.OPEN for message in self.messages)

    def finish(self, message: Message, state: MessageState) -> bool:
        """No more is to be expected of a message; True when it was the last one."""
        with self._lock:
            message.state = state
            was_open = message.inner_index in self._open
            self._open.discard(message.inner_index)
            return was_open and not self._open

    def renewed(self) -> None:
        """The lease has another end, and maybe another handle: so have the messages."""
        for message in self.messages:
            message.handle = self.message.handle
            message.pop_time_ms = self.message.pop_time_ms
            message.next_visible_time_ms = self.message.next_visible_time_ms

    def own(self, message: Message, owner: threading.Thread) -> None:
        """Note who works on a message from now on."""
        self._owners[message.inner_index] = owner

    def is_alive(self) -> bool:
        """Whether everyone still runs who works on a message that is not done."""
        return all(owner.is_alive() or self.messages[index].is_settled for index, owner in list(self._owners.items()))
