"""Decides which messages become one batch, and when: RocketMQ's ProduceAccumulator, without clock, thread or lock.

A batch is ready when its values are longer than `batch_bytes_max`, or when it is `hold_ms` old. Messages share a batch
when topic, queue, wait-for-store flag and tag are the same, on batch topics the time of delivery too, and all or none
of their senders wait.

Differences from RocketMQ: the number of messages of a batch is bounded, and the buffer counts the memory that messages
take, not their values alone.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from popstream.send.outgoing import is_in_order
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popstream.send.outgoing import Destination, Order, Outgoing

    _Place = tuple[Destination, bool]

__all__ = ["Accumulator", "BatchLimits", "OpenBatch"]

HOLD_MS_MAX = 30_000
BATCH_BYTES_MAX = 2 * 1024 * 1024


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When messages that wait for others are sent.

    Args:
        hold_ms: How long a message waits for others, in milliseconds, 1..30,000. Longer: fuller batches.
        batch_bytes_max: A batch is sent at once when its values are longer than this, 1..2 MiB.
        total_bytes_max: Memory of all messages without a result. Beyond it a message is sent by itself, and its sender
            is blocked until its result is known.

    Raises:
        Invalid: A limit is out of range; `details` has a line for each.
    """

    hold_ms: int = 10
    batch_bytes_max: int = 32 * 1024
    total_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        """Check the ranges (vectors: ACC-13)."""
        bounds = {"hold_ms": HOLD_MS_MAX, "batch_bytes_max": BATCH_BYTES_MAX, "total_bytes_max": None}
        wrong = [
            f"{name} must be {'at least 1' if high is None else f'1 to {high}'}, not {found}"
            for name, high in bounds.items()
            if (found := getattr(self, name)) < 1 or (high is not None and found > high)
        ]
        if wrong:
            message = "the batch limits are out of range"
            raise Invalid(message, subject="producer", details=wrong)


class OpenBatch(msgspec.Struct, eq=False):
    """A batch that still takes messages."""

    destination: Destination
    created_s: float
    messages: list[Outgoing]
    order_keys: set[bytes | Order]
    body_bytes: int = 0

    def is_ready(self, limits: BatchLimits, now_s: float) -> bool:
        """Tell whether to send it: when the size is exceeded, or the time reached (vectors: ACC-12).

        >>> limits = BatchLimits()
        >>> sizes = [(32768, 0.009), (32769, 0.0), (1, 0.010)]
        >>> [OpenBatch(None, 0.0, [], set(), body_bytes).is_ready(limits, now_s) for body_bytes, now_s in sizes]
        [False, True, True]
        """
        return (
            self.body_bytes > limits.batch_bytes_max
            or now_s >= self.created_s + limits.hold_ms / 1000
            # As many as a pop may lease; two key hashes of each are within the bound of the header of an inner batch.
            or len(self.messages) >= POP_MESSAGES_MAX
        )


class Accumulator:
    """The open batches, and the size of all messages without a result. Not safe for use by several threads.

    Args:
        limits: When a batch is ready.

    Attributes:
        buffered_bytes: Approximate size in memory of all messages without a result.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._open: dict[_Place, OpenBatch] = {}
        self._of_queue: dict[tuple[str, int | None], list[_Place]] = {}
        self.buffered_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another message."""
        return self.buffered_bytes >= self.limits.total_bytes_max

    def reserve(self, outgoing: Outgoing) -> bool:
        """Add a message to the buffer; return False, without adding it, when the buffer is full.

        The check comes before the addition, so one message may exceed the total, as in RocketMQ.
        """
        if self.is_full:
            return False
        outgoing.buffered_bytes = outgoing.message.held_bytes
        self.buffered_bytes += outgoing.buffered_bytes
        return True

    def release(self, outgoing: Outgoing) -> None:
        """Remove a message from the buffer; more calls do nothing."""
        self.buffered_bytes -= outgoing.buffered_bytes
        outgoing.buffered_bytes = 0

    def add(self, destination: Destination, outgoing: Outgoing, now_s: float, *, is_waited: bool) -> list[OpenBatch]:
        """Add a message to its batch; remove and return the batches that are ready now, in order.

        They include any other batch of the same queue with a message that this one must follow, even if that batch is
        neither full nor due. (In RocketMQ this message could overtake it.)
        """
        place = (destination, is_waited)
        order_key = outgoing.message.order_key
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = OpenBatch(destination, now_s, [], set())
            self._of_queue.setdefault((destination.topic, destination.queue_id), []).append(place)
        ready: list[OpenBatch] = []
        if destination.queue_id is not None:
            others = self._of_queue[destination.topic, destination.queue_id]
            if len(others) > 1:
                ready = self._take(
                    [
                        other
                        for other in others
                        if other != place and is_in_order(order_key, self._open[other].order_keys)
                    ]
                )
            batch.order_keys.add(order_key)
        batch.messages.append(outgoing)
        batch.body_bytes += outgoing.message.body_bytes
        return [*ready, *self._take([place])] if batch.is_ready(self.limits, now_s) else ready

    def take_due(self, now_s: float) -> list[OpenBatch]:
        """Remove and return the batches that are ready, in the order in which they were opened."""
        due = list(takewhile(lambda found: found[1].is_ready(self.limits, now_s), self._open.items()))
        return self._take([place for place, _ in due])

    def take_queue(self, topic: str, queue_id: int | None) -> list[OpenBatch]:
        """Remove and return all batches of a queue: a message that is sent at once must come after them."""
        return self._take([*self._of_queue.get((topic, queue_id), ())])

    def take_all(self) -> list[OpenBatch]:
        """Remove and return all batches."""
        return self._take(list(self._open))

    def next_due_s(self) -> float | None:
        """Return when the next batch is due; None: no batch is open."""
        created_s = next((batch.created_s for batch in self._open.values()), None)
        return None if created_s is None else created_s + self.limits.hold_ms / 1000

    def _take(self, places: Iterable[_Place]) -> list[OpenBatch]:
        taken = []
        for place in places:
            batch = self._open.pop(place)
            queue = batch.destination.topic, batch.destination.queue_id
            self._of_queue[queue].remove(place)
            if not self._of_queue[queue]:
                del self._of_queue[queue]
            taken.append(batch)
        return taken
