"""The account of a load: what became of each message in each group, in memory that all its processes share."""

import ctypes
import math
from array import array
from collections.abc import Sequence
from multiprocessing.context import SpawnContext
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["GroupLedger", "GroupResult", "LoadDelivery", "ProcessCounts", "quantiles_of", "seconds_between"]

_DELIVERIES_MAX: Final = 255
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}


class ProcessCounts(ctypes.Structure):
    """Counters of the sender or of a worker, which alone writes them."""

    messages: int
    """Messages that were sent and can be popped, or that the worker got."""
    others: int
    """Those among them that are not of this load."""
    refused: int
    """Acks that were not applied: the lease had ended."""
    first_ns: int
    """When the first one was sent, or came, as `time.time_ns`; 0: not yet."""
    last_ns: int
    """When the last one was confirmed, or an ack had its outcome, as `time.time_ns`; 0: not yet."""
    _fields_ = tuple((name, ctypes.c_int64) for name in ("messages", "others", "refused", "first_ns", "last_ns"))


class LoadDelivery(NamedTuple):
    """One delivery of a message of a load.

    Attributes:
        number: Of the message.
        queue_offset: Of its record: a record that was written twice is two messages to the job.
        granted_ms: When the job leased it, or last renewed it before it was handed out, by the queue's clock. 0: it
            shares a record with other messages, so its ack may be applied to nothing yet.
    """

    number: int
    queue_offset: int
    granted_ms: int


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages of a load in one group.

    Attributes:
        delivered: Messages that a consumer got.
        missing: Messages that no consumer got.
        unacked: Messages that a consumer got, but no ack of which was applied.
        outcome_unknown: Messages that a consumer got, and whose last ack has no known outcome: if it was not applied,
            the message comes again.
        redelivered: Deliveries beyond the first one of each message, of which at most 254 are counted.
        refused: Acks that were not applied: the lease had ended.
        others: Messages in the topic that are not of this load.
    """

    delivered: int
    missing: int
    unacked: int
    outcome_unknown: int
    redelivered: int
    refused: int
    others: int

    @property
    def acked(self) -> int:
        """Messages an ack of which is known to be applied."""
        return self.delivered - self.unacked - self.outcome_unknown

    @property
    def is_accounted_for(self) -> bool:
        """Whether each message was delivered and acked, or may have been acked."""
        return not self.missing and not self.unacked

    @property
    def is_complete(self) -> bool:
        """Whether each message was delivered, and is known to be acked: none comes again."""
        return self.is_accounted_for and not self.outcome_unknown


class GroupLedger:
    """The messages of a load in one group, by number: 35 bytes a message.

    Two workers that note the same message at the same moment may count as one delivery, and one of their grants may be
    lost; a message cannot be.

    An ack is applied only while no later delivery is granted. So a delivery granted later than the one whose ack was
    applied was granted after the ack, whatever the clocks of the workers show and whenever they noted it.

    Args:
        context: Of the processes that share it.
        messages: Messages of the load.
    """

    def __init__(self, context: SpawnContext, messages: int) -> None:
        self._messages = messages
        self._deliveries: Any = context.RawArray(ctypes.c_uint8, messages)
        self._acked: Any = context.RawArray(ctypes.c_uint8, messages)
        self._unanswered: Any = context.RawArray(ctypes.c_uint8, messages)
        self._delivery_ms: Any = context.RawArray(ctypes.c_float, messages)
        self._ack_ms: Any = context.RawArray(ctypes.c_float, messages)
        self._queue_offset: Any = context.RawArray(ctypes.c_int64, messages)
        self._granted_ms: Any = context.RawArray(ctypes.c_int64, messages)
        """Of the delivery that was granted last."""
        self._acked_granted_ms: Any = context.RawArray(ctypes.c_int64, messages)
        """Of the first delivery whose ack was applied."""

    def note_delivery(self, delivery: LoadDelivery, since_due_ms: float) -> None:
        """Note that a consumer got a message."""
        number, queue_offset, granted_ms = delivery
        count = self._deliveries[number]
        if not count:
            self._delivery_ms[number] = since_due_ms
            self._queue_offset[number] = queue_offset
        self._deliveries[number] = min(count + 1, _DELIVERIES_MAX)
        self._unanswered[number] = 0  # it comes again, so the ack before was not applied
        if queue_offset == self._queue_offset[number]:
            self._granted_ms[number] = max(self._granted_ms[number], granted_ms)

    def note_ack(self, delivery: LoadDelivery, took_ms: float | None) -> None:
        """Note that the ack of a delivery was applied; `took_ms` is None if nobody knows how long it took."""
        number, queue_offset, granted_ms = delivery
        self._ack_ms[number] = math.nan if took_ms is None else took_ms
        self._acked[number] = 1
        if queue_offset == self._queue_offset[number]:
            known_ms = self._acked_granted_ms[number]
            self._acked_granted_ms[number] = min(known_ms, granted_ms) if known_ms else granted_ms

    def note_unknown(self, number: int) -> None:
        """Note that the ack of a message has no known outcome: it was applied, or the message comes again."""
        self._unanswered[number] = 1

    def result(self, workers: Sequence[ProcessCounts]) -> GroupResult:
        """Return what is known now."""
        deliveries = bytes(self._deliveries)
        missing = deliveries.count(0)
        delivered = self._messages - missing
        acked = bytes(self._acked)
        outcome_unknown = (int.from_bytes(bytes(self._unanswered)) & ~int.from_bytes(acked)).bit_count()
        return GroupResult(
            delivered=delivered,
            missing=missing,
            unacked=delivered - acked.count(1) - outcome_unknown,
            outcome_unknown=outcome_unknown,
            redelivered=sum(deliveries) - delivered,
            refused=sum(each.refused for each in workers),
            others=sum(each.others for each in workers),
        )

    def delivered_after_ack(self) -> list[tuple[int, int]]:
        """Return (number, queue offset) of each message that was granted again after its ack had been applied."""
        granted = zip(self._acked_granted_ms, self._granted_ms, strict=True)
        found = [number for number, (acked_ms, last_ms) in enumerate(granted) if 0 < acked_ms < last_ms]
        return [(number, self._queue_offset[number]) for number in found]

    def delivery_times_ms(self) -> "array[float]":
        """Return the milliseconds from when each delivered message was due to its first delivery."""
        return _known(self._deliveries, self._delivery_ms)

    def ack_times_ms(self) -> "array[float]":
        """Return the milliseconds from ack to outcome of each message whose ack was applied, where they are known."""
        return array("f", (ms for ms in _known(self._acked, self._ack_ms) if not math.isnan(ms)))

    def newest_delivery_times_ms(self, count: int) -> "array[float]":
        """Return those of the last `count` messages by number, up to the last one that was delivered."""
        end = len(bytes(self._deliveries).rstrip(b"\0"))
        part = slice(max(0, end - count), end)
        return _known(self._deliveries[part], self._delivery_ms[part])


def _known(counts: Any, times_ms: Any) -> "array[float]":  # noqa: ANN401 - ctypes has no types
    return array("f", (ms for count, ms in zip(counts, times_ms, strict=True) if count))


def seconds_between(processes: Sequence[ProcessCounts]) -> float:
    """Return the seconds from the first message of any of the processes to the last confirmation or outcome."""
    active = [each for each in processes if each.last_ns]
    if not active:
        return 0.0
    return (max(each.last_ns for each in active) - min(each.first_ns for each in active)) / 1e9


def quantiles_of(values: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p95, p99, p999 and max, each the least value that this share of all does not exceed; None of nothing.

    >>> quantiles_of([5.0, 1.0, 3.0])
    {'p50': 3.0, 'p95': 5.0, 'p99': 5.0, 'p999': 5.0, 'max': 5.0}
    """
    if not values:
        return None
    ordered = sorted(values)
    return {name: round(ordered[max(0, -int(-share * len(ordered) // 1) - 1)], 2) for name, share in _QUANTILES.items()}
