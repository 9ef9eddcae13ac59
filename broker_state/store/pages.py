"""Pages: facts about each of 64 neighbouring offsets, stored as runs of offsets with equal facts.

A page's value is one format byte and MessagePack: a flat array with a fixed count of numbers per run. 64 runs of the
widest numbers stay below 4 KiB; that is why a page has 64 offsets, and a segment 4096.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from broker_state.store.facts import Delivery, UnitFacts
from broker_state.store.value_format import read_stored

__all__ = [
    "PAGE_OFFSETS",
    "PAGE_SHIFT",
    "DeliveryPage",
    "Runs",
    "UnitFactsPage",
    "decode_ints",
    "encode_ints",
    "windows",
]

PAGE_SHIFT: Final = 6
PAGE_OFFSETS: Final = 1 << PAGE_SHIFT

encode_ints: Final = msgspec.msgpack.Encoder().encode
"""Encode the numbers of a page, without the format byte."""
Page = TypeVar("Page")

_decode_ints: Final = msgspec.msgpack.Decoder(list[int]).decode

Fact = TypeVar("Fact")
Asker = TypeVar("Asker")

_NO_RUN: tuple[int, int, Any] = (1 << 64, 1 << 64, None)
"""Follows the last run: beyond every offset."""


class Runs(Generic[Fact]):
    """Runs (first, end, fact) of one page, half-open, in order; offsets without a run have no fact."""

    __slots__ = ("runs",)

    def __init__(self, runs: list[tuple[int, int, Fact]]) -> None:
        self.runs = runs

    def within(self, first: int, end: int) -> list[tuple[int, int, Fact | None]]:
        """Return [first, end) cut where the fact changes, with None where there is none."""
        out: list[tuple[int, int, Fact | None]] = []
        at = first
        for run_first, run_end, fact in self.runs:
            if run_end <= at:
                continue
            if run_first >= end:
                break
            if run_first > at:
                out.append((at, run_first, None))
                at = run_first
            stop = min(end, run_end)
            out.append((at, stop, fact))
            at = stop
        if at < end:
            out.append((at, end, None))
        return out

    def shared_by(self, first: int, end: int) -> Fact | None:
        """Return the fact of the run that has all of [first, end); None if none has."""
        run_first, run_end, fact = self.runs[self._place(first)] if self.runs else _NO_RUN
        return fact if run_first <= first and end <= run_end else None

    def _place(self, offset: int) -> int:
        """Return the index of the last run that begins at `offset` or before; of the first run if none does."""
        return max(0, bisect_right(self.runs, (offset, _NO_RUN[1])) - 1)

    def within_each(self, ranges: Iterable[tuple[int, int, Asker]]) -> list[tuple[int, int, Fact | None, Asker]]:
        """Return `within` of each of `ranges`, which are in order and apart, with the third value of its range."""
        out: list[tuple[int, int, Fact | None, Asker]] = []
        to_come = iter(self.runs)
        run_first, run_end, fact = next(to_come, _NO_RUN)
        for first, end, asker in ranges:
            at = first
            while at < end:
                while run_end <= at:
                    run_first, run_end, fact = next(to_come, _NO_RUN)
                if at < run_first:
                    stop = min(end, run_first)
                    out.append((at, stop, None, asker))
                else:
                    stop = min(end, run_end)
                    out.append((at, stop, fact, asker))
                at = stop
        return out

    def replace(self, first: int, end: int, fact: Fact | None) -> None:
        """Give [first, end) the fact, or (None) none."""
        runs = self.runs
        if not runs or runs[-1][1] <= first:  # fresh messages follow the others
            if fact is not None:
                runs.append((first, end, fact))
            return
        count = len(runs)
        low = self._place(first)
        if runs[low][1] <= first:
            low += 1
        high = low
        pieces: list[tuple[int, int, Fact]] = []
        if low < count and runs[low][0] < first:
            pieces.append((runs[low][0], first, runs[low][2]))
        if fact is not None:
            pieces.append((first, end, fact))
        while high < count and runs[high][0] < end:
            high += 1
        if high > low:
            last = runs[high - 1]
            if last[1] > end:
                pieces.append((end, last[1], last[2]))
        runs[low:high] = pieces

    def replace_each(self, parts: Sequence[tuple[int, int, Fact | None]]) -> None:
        """Do `replace` for each of `parts`, which are in order and apart, in one pass."""
        if len(parts) == 1:
            self.replace(*parts[0])
            return
        runs: list[tuple[int, int, Fact]] = []
        to_come = iter(self.runs)
        run_first, run_end, fact = next(to_come, _NO_RUN)
        for first, end, instead in parts:
            while run_first < end:
                if run_first < first:
                    runs.append((run_first, min(run_end, first), fact))
                if run_end > end:
                    run_first = end
                else:
                    run_first, run_end, fact = next(to_come, _NO_RUN)
            if instead is not None:
                runs.append((first, end, instead))
        if fact is not None:
            runs.append((run_first, run_end, fact))
        runs += to_come
        self.runs = runs


class DeliveryPage(Runs[Delivery]):
    """Deliveries of the offsets page_no * 64 .. page_no * 64 + 63.

    Attributes:
        page_no: Number of the page.
        due_ms: The earliest deadline of its deliveries, which is stored in the index of deadlines; 0: none.
        clients: Hashes of the clients that may hold leases in it; each has the page in its tree of pages.
        runs: Offsets that were handed out and are not acked, with their deliveries.

    A page without runs is deleted. The lane keeps all four in line (`LaneState.settle`).

    Value: 0x01, MessagePack [page no, due, client count, clients..., then 10 numbers per run].
    """

    __slots__ = ("clients", "due_ms", "page_no")

    _FORMAT: ClassVar[bytes] = b"\x01"
    _WIDTH: ClassVar[int] = 10

    def __init__(self, page_no: int, due_ms: int, clients: list[int], runs: list[tuple[int, int, Delivery]]) -> None:
        super().__init__(runs)
        self.page_no = page_no
        self.due_ms = due_ms
        self.clients = clients

    def encode(self) -> bytes:
        """Return the stored form (see the class)."""
        base = self.page_no << PAGE_SHIFT
        flat = [self.page_no, self.due_ms, len(self.clients), *self.clients]
        for first, end, d in self.runs:
            flat += (
                first - base,
                end - first,
                d.epoch,
                d.revision,
                d.pop_time_ms,
                d.deadline_ms,
                d.invisible_time_ms,
                d.client,
                d.attempt,
                d.state << 1 | d.suspended,
            )
        return self._FORMAT + encode_ints(flat)

    @classmethod
    def decode(cls, value: bytes) -> "DeliveryPage":
        """Decode a stored page.

        Raises:
            CorruptValueError: It has another format byte, or its numbers do not make a page.
        """
        return decode_ints("delivery page", cls._FORMAT, value, cls._of)

    @classmethod
    def _of(cls, flat: list[Any]) -> "DeliveryPage":
        # Any, not int: compiled, a number that only moves from the list to a Struct need not be converted twice.
        page_no, due_ms, client_count = flat[:3]
        base: int = page_no << PAGE_SHIFT
        start = 3 + client_count
        runs = []
        before: Delivery | None = None
        for at in range(start, len(flat), cls._WIDTH):
            low: int = base + flat[at]
            high: int = low + flat[at + 1]
            flags: int = flat[at + 9]
            delivery = Delivery(  # by place: by name takes twice as long
                flat[at + 2],  # epoch
                flat[at + 3],  # revision
                flat[at + 4],  # pop_time_ms
                flat[at + 5],  # deadline_ms
                flat[at + 6],  # invisible_time_ms
                flat[at + 7],  # client
                flat[at + 8],  # attempt
                flags >> 1,
                bool(flags & 1),
            )
            if before is not None and delivery == before:
                delivery = before
            before = delivery
            runs.append((low, high, delivery))
        return cls(page_no, due_ms, flat[3:start], runs)


class UnitFactsPage(Runs[UnitFacts]):
    """Tags, inner counts and delivery times of 64 offsets, except those that are (0, 1, 0), the default.

    Value: 0x01, MessagePack [page no, then first, length, tag, count of each run]; or, if one of them has a delivery
    time, 0x02, MessagePack [page no, then first, length, tag, count, delivery time of each run].
    """

    __slots__ = ("page_no",)

    _FORMAT: ClassVar[bytes] = b"\x01"
    _FORMAT_WITH_TIMES: ClassVar[bytes] = b"\x02"

    def __init__(self, page_no: int, runs: list[tuple[int, int, UnitFacts]]) -> None:
        super().__init__(runs)
        self.page_no = page_no

    def encode(self) -> bytes:
        """Return the stored form (see the class)."""
        base = self.page_no << PAGE_SHIFT
        has_times = any(facts.deliver_at_ms for _, _, facts in self.runs)
        flat = [self.page_no]
        for first, end, facts in self.runs:
            flat += (first - base, end - first, facts.tag, facts.count)
            if has_times:
                flat.append(facts.deliver_at_ms)
        return (self._FORMAT_WITH_TIMES if has_times else self._FORMAT) + encode_ints(flat)

    @classmethod
    def decode(cls, value: bytes) -> "UnitFactsPage":
        """Decode a stored page.

        Raises:
            CorruptValueError: It has another format byte, or its numbers do not make a page.
        """
        if value[:1] == cls._FORMAT_WITH_TIMES:
            return decode_ints("unit facts page", cls._FORMAT_WITH_TIMES, value, cls._of_times)
        return decode_ints("unit facts page", cls._FORMAT, value, cls._of)

    @classmethod
    def _of(cls, flat: list[int]) -> "UnitFactsPage":
        return cls._of_columns(flat[0], flat[1::4], flat[2::4], flat[3::4], flat[4::4], [0] * (len(flat) // 4))

    @classmethod
    def _of_times(cls, flat: list[int]) -> "UnitFactsPage":
        return cls._of_columns(flat[0], flat[1::5], flat[2::5], flat[3::5], flat[4::5], flat[5::5])

    @classmethod
    def _of_columns(cls, page_no: int, *columns: list[int]) -> "UnitFactsPage":
        base = page_no << PAGE_SHIFT
        runs = [
            (base + first, base + first + length, UnitFacts(tag, count, deliver_at_ms))
            for first, length, tag, count, deliver_at_ms in zip(*columns, strict=True)
        ]
        return cls(page_no, runs)


def windows(first: int, end: int) -> Iterable[tuple[int, int, int]]:
    """Return (page no, first, end) for each page that [first, end), not empty, touches.

    >>> list(windows(60, 130))
    [(0, 60, 64), (1, 64, 128), (2, 128, 130)]
    """
    page_no, last = first >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
    return ((page_no, first, end),) if page_no == last else _each_window(first, end, page_no, last)


def _each_window(first: int, end: int, page_no: int, last: int) -> Iterator[tuple[int, int, int]]:
    while page_no < last:
        stop = (page_no + 1) << PAGE_SHIFT
        yield page_no, first, stop
        first = stop
        page_no += 1
    yield page_no, first, end


def decode_ints(what: str, form: bytes, value: bytes, build: Callable[[list[int]], Page]) -> Page:
    """Decode the numbers of a page's value, and build the page of them.

    Raises:
        CorruptValueError: The format byte is not `form`, or `build` fails.
    """
    return read_stored(what, form, value, lambda data: build(_decode_ints(data)))
