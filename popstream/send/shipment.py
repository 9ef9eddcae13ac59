"""Shipments: messages that are handed to Kafka together, and the outcome of each of them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from popstream.errors import NotWritten, OutcomeUnknown
from popstream.send.outgoing import is_in_order

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from popstream.outcome import SendResult
    from popstream.send.outgoing import Order, Outgoing

__all__ = ["NOT_ASKED", "Retry", "SendOutcome", "SendQueue", "Shipment", "Writer", "not_written", "settle_load"]

LOAD_BYTES_MAX = 256 * 1024
"""Batches of fewer bytes together are one load; a larger batch is a load by itself."""
OVERTAKEN = "Kafka refused the batch of the message, and a later message of its key is written"


class Retry(enum.Enum):
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
    retry: Retry = Retry.NO


NOT_ASKED = SendOutcome(retry=Retry.TOGETHER)


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


def settle_load(load: Sequence[Shipment]) -> tuple[list[tuple[Outgoing, SendOutcome]], list[Shipment]]:
    """Return the final outcomes of a load's messages, and the shipments to send again before all others, in order."""
    settled: list[tuple[Outgoing, SendOutcome]] = []
    again: list[Shipment] = []
    overtaken: set[bytes | Order] = set()
    for shipment in reversed(load):
        left: list[Outgoing] = []
        outcomes = shipment.outcomes or ()
        for outgoing, outcome in zip(reversed(shipment.messages), reversed(outcomes), strict=True):
            outgoing.last_error = outcome.error or outgoing.last_error
            if outcome.retry is Retry.NO:
                settled.append((outgoing, outcome))
                if outcome.result is not None or isinstance(outcome.error, OutcomeUnknown):
                    overtaken.add(outgoing.message.order_key)
            elif is_in_order(outgoing.message.order_key, overtaken):
                settled.append((outgoing, not_written(outgoing, OVERTAKEN)))
            else:
                left.append(outgoing)
        left.reverse()
        if left and all(outcome.retry is not Retry.ALONE for outcome in outcomes):
            again.append(msgspec.structs.replace(shipment, messages=left, outcomes=None))
        else:
            # One by one, so that a message which Kafka refuses fails no other.
            again += (
                msgspec.structs.replace(shipment, messages=[one], is_unit=False, is_by_itself=True, outcomes=None)
                for one in reversed(left)
            )
    return settled[::-1], again[::-1]


def not_written(outgoing: Outgoing, why: str) -> SendOutcome:
    """Return the final outcome of a message that is certainly not written."""
    text = why if outgoing.last_error is None else f"{why}; the last attempt: {outgoing.last_error}"
    error = NotWritten(text, subject=outgoing.message.topic)
    error.__cause__ = outgoing.last_error
    return SendOutcome(error=error)
