"""What a consumer hands out and what it hands back: messages, receipts, outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker_state.reason import Reason
from connectors.client.tags import tag_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Message", "Outcome", "PopResult", "QueueKey", "Receipt", "ReceiptHandle", "SendResult"]

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


class Message(Receipt, kw_only=True, eq=False):
    """One delivery of one message.

    Attributes:
        attempt: 1 for the first delivery.
        timestamp_ms: The record's own timestamp.
        pop_time_ms: When the lease began or was last changed, by the broker's clock.
        next_visible_time_ms: When the lease ends unless something is done, by the broker's clock.
    """

    attempt: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    pop_time_ms: int
    next_visible_time_ms: int

    @property
    def tag(self) -> str:
        """Tag given by the sender; empty when there is none."""
        return tag_value(self.headers).decode(errors="replace")

    @property
    def receipt(self) -> Receipt:
        """What another process needs to finish this message; it does not follow later changes."""
        return Receipt(topic=self.topic, queue_id=self.queue_id, queue_offset=self.queue_offset, handle=self.handle)


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

    The last two belong to a change of the invisible time.
    """

    applied: bool
    reason: Reason
    code: int
    next_visible_time_ms: int | None = None
    handle: ReceiptHandle | None = None


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where Kafka wrote a message."""

    topic: str
    queue_id: int
    queue_offset: int
    timestamp_ms: int


def queue_of(receipt: Receipt) -> QueueKey:
    """Queue of a message or receipt."""
    return (receipt.topic, receipt.queue_id)


def all_applied(outcomes: Sequence[Outcome]) -> bool:
    """Whether every message was changed.

    >>> all_applied([Outcome(True, Reason.OK, 0), Outcome(False, Reason.ALREADY_ACKED, 0)])
    False
    """
    return all(outcome.applied for outcome in outcomes)
