"""Messages as a consumer hands them out, and the unit that several messages are leased with."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self

import msgspec

from popstream.outcome import Outcome, Receipt
from popstream.retries import Reject, Retry
from popstream.type_variables import Body
from popstream.wire.base_errors import Invalid
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from types import TracebackType

    from popstream.awaitable import AwaitableFuture
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
    """How far a message was settled by its consumer."""

    OPEN = "open"
    FINISHED = "finished"
    """An ack or a reject was requested."""
    RELEASED = "released"
    """A release was requested: the message will be redelivered."""
    LAPSED = "lapsed"
    """The lease has ended: the message will be redelivered, unless it is acked or rejected before that."""


class Settler(Protocol):
    """Carries out the methods of a message, for the consumer that handed it out."""

    def ack_one(self, message: Message) -> AwaitableFuture[Outcome]:
        """Ack it."""

    def extend_one(self, message: Message, invisible_time_ms: int) -> AwaitableFuture[Outcome]:
        """Change its invisible time."""

    def release_one(self, message: Message, invisible_time_ms: int) -> AwaitableFuture[Outcome]:
        """Release it."""

    def fail_one(self, message: Message, error: BaseException) -> AwaitableFuture[Outcome]:
        """Settle it after its handler has raised."""

    def reject_one(self, message: Message, cause: str | None) -> AwaitableFuture[Outcome]:
        """Reject it."""


class Message(Receipt, Generic[Body], kw_only=True, eq=False):
    """One delivery of one message.

    As a context manager it is acked when the block ends, and released when the block raises, as by `Consumer.run`:

    ```python
    for message in consumer:
        with message:
            work_on(message.value)
    ```

    `Retry` and `Reject` end the block and go no further; any other exception goes on after the block.

    The methods return at once; the outcome is the result of the future that they return: `message.ack().result()`, or
    `await message.ack()` in a coroutine.

    Attributes:
        attempt: Number of this delivery; 1 is the first.
        body: What the `value_deserializer` of the consumer has made of the value; without one, the value itself. None
            for a message without a value, which only a compacted topic has.
        headers: Names and values as they were sent, without those that popstream adds to a record.
        timestamp_ms: Timestamp of the record.
        pop_time_ms: When the lease began or was last changed, by the broker's clock; in an orderly lane always when it
            began.
        next_visible_time_ms: When the lease ends unless it is changed, by the broker's clock.
        settler: Carries out the methods; None: the message was not handed out by a consumer.
        state: How far it was settled here.
        tag: Set by the sender; empty when there is none.
        message_id: Set by our producer; empty for messages of other producers.
        inner_index: Its place among the messages of its record.
        inner_count: Number of messages that its record carries.
        deliver_at_ms: When the sender wanted it to be delivered, ms since 1970; 0: at once.
        unit: The unit that it is leased with, when its record carries several messages.
        carries: For such a record itself, which is not handed out: the unit of its messages.
    """

    attempt: int
    key: bytes | None = None
    value: bytes | None = None
    body: Body = None  # type: ignore[assignment]  # a `Message[Order]` has an order, see above
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 - msgspec copies it
    timestamp_ms: int = 0
    pop_time_ms: int
    next_visible_time_ms: int
    settler: Settler | None = None
    state: MessageState = MessageState.OPEN
    tag: str = ""
    message_id: str = ""
    inner_index: int = 0
    inner_count: int = 1
    deliver_at_ms: int = 0
    unit: LeasedUnit | None = None
    carries: LeasedUnit | None = None

    @property
    def leased(self) -> Message:
        """The leased message: this one, or the record that carries its unit."""
        return self if self.unit is None else self.unit.message

    @property
    def is_settled(self) -> bool:
        """Whether it was acked, rejected or released, alone or with its unit."""
        is_settled = self.state is MessageState.FINISHED or self.state is MessageState.RELEASED
        return is_settled or (self.unit is not None and self.unit.message.is_settled)

    @property
    def receipt(self) -> Receipt:
        """A receipt by which another process can settle the message, with its whole unit; later changes outdate it."""
        return Receipt(topic=self.topic, queue_id=self.queue_id, queue_offset=self.queue_offset, handle=self.handle)

    def ack(self) -> AwaitableFuture[Outcome]:
        """Ack the message. Acks within a few milliseconds are sent together.

        Raises:
            ClientClosed: The consumer was closed.
            Invalid: The message was not handed out by a consumer.
        """
        return self._settler().ack_one(self)

    def extend(self, invisible_time_s: float) -> AwaitableFuture[Outcome]:
        """Extend the lease to end `invisible_time_s` from now, at most 12 hours; the outcome brings a new `handle`.

        Raises:
            ClientClosed: The consumer was closed.
            Invalid: `invisible_time_s` is out of range, or the message was not handed out by a consumer.
        """
        return self._settler().extend_one(self, round(invisible_time_s * 1000))

    def release(self, delay_s: float = 0.0) -> AwaitableFuture[Outcome]:
        """Release the message: it is redelivered to any consumer of the group, `delay_s` from now.

        Raises:
            ClientClosed: The consumer was closed.
            Invalid: `delay_s` is not 0 seconds to 12 hours, or the message was not handed out by a consumer.
        """
        return self._settler().release_one(self, round(delay_s * 1000))

    def reject(self, reason: str | None = None) -> AwaitableFuture[Outcome]:
        """Send the message to the dead-letter topic now; `reason` is recorded with it.

        Raises:
            ClientClosed: The consumer was closed.
            Invalid: The message was not handed out by a consumer.
        """
        return self._settler().reject_one(self, reason)

    def __enter__(self) -> Self:
        """Return the message."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ack it, or release it when the block raised, unless the block has settled it."""
        if not self.is_settled:
            if error is None:
                self.ack()
            else:
                self._settler().fail_one(self, error)
        return isinstance(error, (Retry, Reject))

    def _settler(self) -> Settler:
        if self.settler is None:
            message = "the message was not handed out by a consumer: pass its receipt to the methods of a consumer"
            raise Invalid(message, subject=f"{self.topic}/{self.queue_id}")
        return self.settler


class PopResult(msgspec.Struct, Generic[Body], frozen=True, kw_only=True):
    """The messages of a pop; iterate over it, or take its length.

    `reason` is OK when messages were leased, otherwise NO_MESSAGE, POLLING_TIMEOUT, POLLING_FULL, QUOTA_EXCEEDED or
    CANCELLED. An OK result is empty when the records of all leased messages have been deleted from the topic, and when
    `return_client` has released them meanwhile.

    Attributes:
        gone_count: Leased offsets without a readable record; they were acked or rejected.
        late_count: Leased messages that were released, as their records did not come in time or cannot be deserialized.
    """

    op_id: str
    reason: Reason
    code: int
    messages: list[Message[Body]] = []
    gone_count: int = 0
    late_count: int = 0

    def __iter__(self) -> Iterator[Message[Body]]:
        """Iterate over the messages by queue offset."""
        return iter(self.messages)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.messages)


class FilterVerdict(enum.Enum):
    """The decision of a consumer's `message_filter` about a message, before it is handed out."""

    CONSUME = "CONSUME"
    RELEASE = "RELEASE"
    """Release it for one second. This delivery counts as an attempt: a message that no consumer wants is a dead letter
    after `max_attempts`."""
    REJECT = "REJECT"
    """Reject it to the dead letters."""


MessageFilter = Callable[[Message], FilterVerdict]


class LeasedUnit:
    """The messages of one unit, which share a lease. Safe for use by many threads.

    Args:
        message: The leased record.
        unwrapped: The messages that it carries.
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
        """Cause of the reject when all its messages are settled; None: the unit is acked then."""
        self._lock = threading.Lock()
        self._open = set(range(len(self.messages)))
        self._owners: dict[int, threading.Thread] = {}

    @property
    def is_begun(self) -> bool:
        """Whether some of its messages are settled, and would be delivered twice if the unit were redelivered."""
        return any(message.state is not MessageState.OPEN for message in self.messages)

    def finish(self, messages: Iterable[Message]) -> bool:
        """Record that messages are done with; return True if the last open ones of the unit are among them."""
        with self._lock:
            open_before = len(self._open)
            self._open.difference_update(message.inner_index for message in messages)
            return open_before > 0 and not self._open

    def renewed(self) -> None:
        """Copy the new end of the lease, and the new handle, to the messages."""
        for message in self.messages:
            message.handle = self.message.handle
            message.pop_time_ms = self.message.pop_time_ms
            message.next_visible_time_ms = self.message.next_visible_time_ms

    def own(self, message: Message, owner: threading.Thread) -> None:
        """Record which thread works on a message from now on."""
        self._owners[message.inner_index] = owner

    def is_alive(self) -> bool:
        """Tell whether all threads that work on unsettled messages are alive; named as `Thread.is_alive`."""
        return all(owner.is_alive() or self.messages[index].is_settled for index, owner in list(self._owners.items()))
