"""Shipments: messages that are handed to Kafka together, and the outcome of each of them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from popstream.errors import NotWritten

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from popstream.outcome import SendResult
    from popstream.send.outgoing import Outgoing

__all__ = ["NOT_ASKED", "SendAgain", "SendOutcome", "SendQueue", "Shipment", "Writer", "not_written"]

LOAD_BYTES_MAX = 256 * 1024
"""Batches of fewer bytes together are one load; a larger batch is a load by itself."""


class SendAgain(enum.Enum):
    """Whether a message is sent again; only a message that is certainly not written may be."""

    NO = "no"
    ALONE = "alone"
    """By itself, or a little later, it may be written."""
    TOGETHER = "together"
    """Kafka was not asked yet: its batch is sent as it is."""


class SendOutcome(msgspec.Struct, frozen=True):
    """The outcome of one attempt to write a message.

    Attributes:
        result: Where it is written.
        error: Why it is not written, or why that is unknown.
        retry: Whether it is sent again.
    """

    result: SendResult | None = None
    error: Exception | None = None
    retry: SendAgain = SendAgain.NO


NOT_ASKED = SendOutcome(retry=SendAgain.TOGETHER)


class Shipment(msgspec.Struct, eq=False):
    """Messages that are handed to Kafka together, for one queue.

    Attributes:
        is_unit: One record carries all messages.
        is_by_itself: A message that was refused in a batch, and shares no further batch.
        outcomes: The outcome of each message; None: not known yet.
        kafka: The KafkaProducer it was handed to.
    """

    topic: str
    queue_id: int
    wait_for_store: bool
    messages: list[Outgoing]
    tag: str | None = None
    is_unit: bool = False
    is_by_itself: bool = False
    outcomes: Sequence[SendOutcome] | None = None
    kafka: object = None

    @property
    def deliver_at_ms(self) -> int:
        """When the messages of a unit can be popped, ms since 1970; 0: as soon as they are written."""
        return self.messages[0].message.deliver_at_ms

    @property
    def body_bytes(self) -> int:
        """Length of all values."""
        return sum(outgoing.message.body_bytes for outgoing in self.messages)

    def may_share(self, message_bytes_max: int) -> bool:
        """Tell whether other shipments may be in flight with it."""
        return not self.is_by_itself and all(one.message.body_bytes <= message_bytes_max for one in self.messages)


class Writer(Protocol):
    """Hands messages to Kafka."""

    def write(self, shipment: Shipment, on_done: Callable[[Sequence[SendOutcome]], None]) -> bool:
        """Start to write; call `on_done` once, with the outcome of each message, from any thread.

        Neither waits nor raises. Returns False when Kafka was not asked: later shipments must not be tried before.
        """

    def give_up(self, shipment: Shipment) -> None:
        """Record that the outcome of a shipment is no longer awaited."""

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the queues for messages without a key or queue id, without waiting."""


class SendQueue(msgspec.Struct, eq=False):
    """The shipments of one queue.

    Attributes:
        waiting: To be sent, in order.
        load: In flight.
        load_bytes: Size of the load.
        load_until_s: When the load is given up, in monotonic seconds.
        not_before_s: When the next load may be sent, after a failure.
        careful_loads: Number of loads that are to be one shipment each, because Kafka has refused one.
    """

    waiting: deque[Shipment]
    load: list[Shipment] = []
    load_bytes: int = 0
    load_until_s: float = 0.0
    not_before_s: float = 0.0
    careful_loads: int = 0

    def next_load(self, until_s: float, message_bytes_max: int) -> list[Shipment]:
        """Take the first shipments, as many as may go together; they are in flight from now on."""
        self.load_until_s = until_s
        first = self.waiting.popleft()
        self.load, self.load_bytes = [first], first.body_bytes
        if self.careful_loads or not first.may_share(message_bytes_max):
            return self.load
        while self.waiting and self.waiting[0].wait_for_store == first.wait_for_store:
            next_bytes = self.waiting[0].body_bytes
            if self.load_bytes + next_bytes > LOAD_BYTES_MAX or not self.waiting[0].may_share(message_bytes_max):
                break
            self.load.append(self.waiting.popleft())
            self.load_bytes += next_bytes
        return self.load


def not_written(outgoing: Outgoing, why: str) -> SendOutcome:
    """Return the final outcome of a message that is certainly not written."""
    text = why if outgoing.last_error is None else f"{why}; the last attempt: {outgoing.last_error}"
    error = NotWritten(text, subject=outgoing.message.topic)
    error.__cause__ = outgoing.last_error
    return SendOutcome(error=error)
