"""Which messages become one batch, and when: RocketMQ's ProduceAccumulator, without clock, thread or lock.

A batch is ready when its bodies are longer than `batch_bytes_max` (strictly),
or when it is `hold_ms` old. Messages share one if topic, queue, wait-for-store flag and tag are the same, and if all or
none of their senders wait. Ours besides: a bound of messages, which RocketMQ lacks; and the account holds what messages
take in memory, not their bodies alone.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from popstream.send.outgoing import is_in_order
from popstream.wire.failures import Invalid
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
        hold_ms: A message waits so long for others at most, 1..30,000. Longer: fuller batches.
        batch_bytes_max: Bodies longer than so many bytes together are sent at once, 1..2 MiB.
        total_bytes_max: All messages that wait for their results take so much memory at most; beyond it a message is
            sent by itself and its sender is made to wait for it.

    Raises:
        Invalid: With one line for each that is out of range.
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
            message = "messages cannot be batched so"
            raise Invalid(message, subject="producer", details=wrong)


class OpenBatch(msgspec.Struct, eq=False):
    """Messages that wait for company."""

    destination: Destination
    created_s: float
    messages: list[Outgoing]
    order_keys: set[bytes | Order]
    body_bytes: int = 0

    def is_ready(self, limits: BatchLimits, now_s: float) -> bool:
        """Whether it is to be sent: size strictly, time inclusively (vectors: ACC-12).

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
    """The batches that are open, and the account of all that is not answered. Not safe for use by several threads.

    Args:
        limits: When a batch is ready.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._open: dict[_Place, OpenBatch] = {}
        self._of_queue: dict[tuple[str, int | None], list[_Place]] = {}
        self.account_bytes = 0

    def reserve(self, outgoing: Outgoing) -> bool:
        """Take a message into the account; False: that is full, and the message is none of its business.

        The test is made before adding, so the total may be exceeded by one message, as RocketMQ's is.
        """
        if self.account_bytes >= self.limits.total_bytes_max:
            return False
        outgoing.account_bytes = outgoing.message.held_bytes
        self.account_bytes += outgoing.account_bytes
        return True

    def release(self, outgoing: Outgoing) -> None:
        """Give back what a message took of the account, once however often this is called."""
        self.account_bytes -= outgoing.account_bytes
        outgoing.account_bytes = 0

    def add(self, destination: Destination, outgoing: Outgoing, now_s: float, *, is_waited: bool) -> list[OpenBatch]:
        """Let a message wait for others; gives the batches that are ready by it, in order, and open no longer.

        Another batch for the same queue with a message that this one must follow is among them, whatever that batch
        lacks. (RocketMQ's may overtake there.)
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
        """The batches that are ready by now, in the order they were opened; they are open no longer."""
        due = list(takewhile(lambda found: found[1].is_ready(self.limits, now_s), self._open.items()))
        return self._take([place for place, _ in due])

    def take_queue(self, topic: str, queue_id: int | None) -> list[OpenBatch]:
        """The batches of a queue, ready or not: what comes next waits for nobody, and is to come behind them."""
        return self._take([*self._of_queue.get((topic, queue_id), ())])

    def take_all(self) -> list[OpenBatch]:
        """All batches."""
        return self._take(list(self._open))

    def next_due_s(self) -> float | None:
        """When the first batch will be ready; None: none is open."""
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
