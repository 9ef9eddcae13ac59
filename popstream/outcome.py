"""The values that calls take and return: receipts, outcomes, records, send results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

__all__ = [
    "Headers",
    "Outcome",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "SendResult",
    "all_applied",
    "queue_of",
]

Headers = Sequence[tuple[str, bytes | None]]
"""Headers of a record: names and values; names may repeat."""


class ReceiptHandle(msgspec.Struct, frozen=True, gc=False):
    """Proof of one delivery. Opaque: pass it on unchanged."""

    text: str

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class Receipt(msgspec.Struct, kw_only=True, eq=False):
    """The data needed to settle a message, also from another process of the same group.

    `handle` is replaced when the invisible time is changed: another change needs the newest handle, an ack accepts any
    handle of the same delivery.

    >>> receipt = Receipt(topic="orders", queue_id=0, queue_offset=7, handle=ReceiptHandle("1.AAAA"))
    >>> str(msgspec.json.decode(msgspec.json.encode(receipt), type=Receipt).handle)
    '1.AAAA'
    """

    topic: str
    queue_id: int
    queue_offset: int
    handle: ReceiptHandle


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was read from its queue without a lease; its fields are those of `Message`."""

    topic: str
    queue_id: int
    queue_offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    tag: str = ""
    message_id: str = ""
    inner_index: int = 0
    inner_count: int = 1
    deliver_at_ms: int = 0


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a request for one message.

    Attributes:
        applied: Whether the request changed anything: judge success by this.
        reason: Why, or why not.
        code: RocketMQ's code for the reason.
        pop_time_ms: Of a change: when the changed lease began, by the broker's clock.
        invisible_time_ms: Of a change: its length, in milliseconds.
        revive_queue_id: Of a change: RocketMQ's field, 999 in an orderly lane.
        handle: The new handle, or the current one when another change came first.
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
        """When the changed lease ends, by the broker's clock.

        >>> Outcome(True, Reason.OK, 0, 1_000, 30_000).next_visible_time_ms
        31000
        """
        if self.pop_time_ms is None or self.invisible_time_ms is None:
            return None
        return self.pop_time_ms + self.invisible_time_ms


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where Kafka has written a message.

    Attributes:
        message_id: Set by the producer; each delivery of the message has it. `popstream queue --key` finds a message
            inside a unit by it; a message that is a record of its own is found by its queue offset.
        inner_index: Its place among the messages of its record.
    """

    topic: str
    queue_id: int
    queue_offset: int
    timestamp_ms: int
    message_id: str = ""
    inner_index: int = 0


def queue_of(receipt: Receipt) -> QueueName:
    """Return the queue of a message or receipt."""
    return (receipt.topic, receipt.queue_id)


def all_applied(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether the request was applied to every message.

    >>> all_applied([Outcome(True, Reason.OK, 0), Outcome(False, Reason.ALREADY_ACKED, 0)])
    False
    """
    return all(outcome.applied for outcome in outcomes)
