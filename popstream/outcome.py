"""What calls give back as values: outcomes, receipts, records. No behaviour, and nothing of ours but the wire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from popstream.wire.reason import Reason

__all__ = [
    "Headers",
    "Outcome",
    "QueueKey",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "SendResult",
    "all_applied",
    "queue_of",
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
