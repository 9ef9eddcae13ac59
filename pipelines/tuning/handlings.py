"""How the messages of a lane were handled: by delivery, what its client asked for, and how long after the lease began.

This is the model of what other settings would have led to: the n-th delivery of a message is handled as its n-th
delivery was in fact. A handler that acked after d ms acks d ms after the lease begins, whether or not the lease lasts
so long. One that sent nothing sends nothing. What a message would have met in deliveries that it never had, nobody
knows: then its last handling is taken once more, or, of a message that was never delivered in the range, the median.
"""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from pipelines.tuning.delivery_counts import DeliveryCounts
from popstream.wire.command import AckEntry, ChangeEntry, Entry

__all__ = ["Action", "Evidence", "Found", "Handling", "LaneHandlings", "is_renewal"]

_SAMPLES_MAX = 20_000


class Evidence(enum.StrEnum):
    """Where the handling of a delivery is taken from."""

    RECORDED = "recorded"
    """The delivery of this number of this message."""
    REPEATED = "repeated"
    """The last delivery of this message, for it had no further one."""
    ASSUMED = "assumed"
    """The median of the lane: the message was not delivered in the range."""
    OPEN = "open"
    """None: the range ends while the lease is held, and nothing was asked for until then."""


class Action(NamedTuple):
    """What a client asked for, of some messages of a delivery.

    Attributes:
        delay_ms: How long after the lease began.
        seq: The place of its record.
        number: Of its entry in the record.
        first: The first message.
        last: The last one, inclusive.
        entry: The entry, without its handle and offsets.
    """

    delay_ms: int
    seq: int
    number: int
    first: int
    last: int
    entry: Entry


class Handling:
    """A delivery of neighbours by one pop, with what was asked for until its lease ended, or later."""

    __slots__ = ("actions", "first", "last", "lease_ms", "started_ms")  # there may be millions

    def __init__(self, first: int, last: int, started_ms: int, lease_ms: int) -> None:
        self.first = first
        self.last = last
        self.started_ms = started_ms
        self.lease_ms = lease_ms
        self.actions: tuple[Action, ...] = ()

    def ends(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, last, ms): how long after its lease began the client was last known to have the messages."""
        known: dict[int, int] = {}
        for action in self.actions:
            for queue_offset in range(max(first, action.first), min(last, action.last) + 1):
                known[queue_offset] = max(known.get(queue_offset, 0), action.delay_ms)
        at = first
        while at <= last:
            stop = at
            while stop < last and known.get(stop + 1, 0) == known.get(at, 0):
                stop += 1
            yield at, stop, known.get(at, 0)
            at = stop + 1


Found = tuple[int, int, Handling | None, Evidence]
"""(first, last, handling, where it is from)"""


def is_renewal(entry: Entry, handling: Handling) -> bool:
    """Return whether an entry renews a lease, by the time for which its pop asked: so clients of ours do."""
    return (
        isinstance(entry, ChangeEntry)
        and entry.release is None
        and not entry.suspend
        and entry.invisible_time_ms == handling.lease_ms > 0
    )


class _Deliveries:
    """The deliveries of one number: of each message at most one, sorted by offset."""

    __slots__ = ("firsts", "handlings")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.handlings: list[Handling] = []

    def add(self, handling: Handling) -> None:
        firsts = self.firsts
        at = len(firsts)
        if firsts and handling.first < firsts[-1]:
            at = bisect_left(firsts, handling.first)
        firsts.insert(at, handling.first)
        self.handlings.insert(at, handling)

    def over(self, first: int, last: int) -> Iterator[tuple[int, int, Handling | None]]:
        """Yield (first, last, handling), which tile [first, last]."""
        at = max(0, bisect_right(self.firsts, first) - 1)
        while first <= last and at < len(self.handlings):
            handling = self.handlings[at]
            at += 1
            if handling.last < first:
                continue
            if handling.first > last:
                break
            if first < handling.first:
                yield first, handling.first - 1, None
                first = handling.first
            stop = min(last, handling.last)
            yield first, stop, handling
            first = stop + 1
        if first <= last:
            yield first, last, None


class LaneHandlings:
    """The deliveries of one lane in the range.

    Args:
        numbers: How often each message was delivered, which the caller counts.

    Attributes:
        of_handle: The deliveries of each pop, by each of its handles.
        renews: Whether a client has renewed a lease: then it is taken that all clients of the lane do.
    """

    __slots__ = ("_by_number", "_delays_ms", "_every", "_numbers", "_seen", "of_handle", "renews")

    def __init__(self, numbers: DeliveryCounts) -> None:
        self._numbers = numbers
        self._by_number: list[_Deliveries] = []
        self._delays_ms: list[int] = []
        self._every, self._seen = 1, 0
        self.of_handle: dict[str, list[Handling]] = {}
        self.renews = False

    def add(self, number: int, handling: Handling) -> None:
        """Add a delivery, the one of this number of its messages."""
        while len(self._by_number) < number:
            self._by_number.append(_Deliveries())
        self._by_number[number - 1].add(handling)

    def act(self, handling: Handling, action: Action) -> None:
        """Add what was asked for of a delivery."""
        handling.actions += (action,)
        if isinstance(action.entry, AckEntry):
            self._seen += 1
            if self._seen % self._every == 0:
                self._delays_ms.append(action.delay_ms)
                if len(self._delays_ms) > _SAMPLES_MAX:
                    self._delays_ms, self._every = self._delays_ms[::2], self._every * 2
        elif is_renewal(action.entry, handling):
            self.renews = True

    @property
    def median_ack_ms(self) -> int | None:
        """The median time from a lease to its ack; None: there was no ack."""
        return round(median(self._delays_ms)) if self._delays_ms else None

    def of(self, first: int, last: int, number: int) -> Iterator[Found]:
        """Yield how a delivery of this number of [first, last] is handled."""
        if number == 1:
            if not self._by_number:
                yield first, last, None, Evidence.ASSUMED
                return
            for low, high, handling in self._by_number[0].over(first, last):
                yield low, high, handling, Evidence.ASSUMED if handling is None else Evidence.RECORDED
            return
        for queue_offset in range(first, last + 1):
            known = min(number, self._numbers.count(queue_offset))
            if not known:
                yield queue_offset, queue_offset, None, Evidence.ASSUMED
                continue
            ((_, _, handling),) = self._by_number[known - 1].over(queue_offset, queue_offset)
            evidence = Evidence.RECORDED if known == number else Evidence.REPEATED
            yield queue_offset, queue_offset, handling, evidence
