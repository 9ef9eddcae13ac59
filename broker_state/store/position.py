"""A position: the end of a contiguous prefix of offsets, and the marks beyond it.

A queue's commit position (over written offsets) and a lane's commit offset (over acked ones) are both a `Position`.
Neither moves back. Segments below the position are deleted.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broker_state.store.marks import Marks
from broker_state.store.segment import SEGMENT_BITS, SEGMENT_SHIFT

__all__ = ["Position"]

_LOW: Final = SEGMENT_BITS - 1


class Position:
    """The end of a contiguous prefix, and the marks beyond it.

    `floor` is the first offset not marked; `above` counts the marks after it. The owner stores both; the bits of the
    floor's own segment below the floor are ones, and no segment is kept while `above` is 0.

    Messages 1, 2 and 5 are written, then 3 and 4:

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> from broker_state.store.overlay import Overlay
    >>> position = Position(Marks(Overlay(MemoryKv()), b"W"), 1, 0)
    >>> position.mark(1, 3), position.mark(5, 6), position.floor, position.above, position.unmarked(1, 9)
    (2, 1, 3, 1, [(3, 5), (6, 9)])
    >>> position.mark(2, 5), position.floor, position.above, position.mark(1, 6)
    (2, 6, 0, 0)
    """

    __slots__ = ("_marks", "above", "floor")

    def __init__(self, marks: Marks, floor: int, above: int) -> None:
        self._marks = marks
        self.floor = floor
        self.above = above

    def mark(self, first: int, end: int) -> int:
        """Mark first..end-1; return how many of them were not marked before. Takes time per segment, not per offset."""
        floor = self.floor
        if first <= floor < end and not self.above:
            self.floor = end
            return end - floor
        first = max(first, floor)
        if first >= end:
            return 0
        if not self.above:
            self._begin_above()
        marked = self._marks.add(first, end)
        self.above += marked
        if first == floor:
            self._advance()
        return marked

    def mark_runs(self, runs: Sequence[tuple[int, int]]) -> None:
        """Do `mark` for each of `runs`, which are in order, apart, and not below the floor; it is much faster."""
        if len(runs) == 1:
            self.mark(*runs[0])
        elif runs:
            if not self.above:
                self._begin_above()
            self.above += self._marks.add_runs(runs)
            self._advance()

    def contains(self, offset: int) -> bool:
        """Return whether `offset` is marked."""
        if offset < self.floor:
            return True
        if not self.above:
            return False
        return bool(self._marks.get(offset >> SEGMENT_SHIFT) >> (offset & _LOW) & 1)

    def unmarked(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the half-open runs of [first, end) that are not marked, neighbours joined."""
        return list(self.iter_unmarked(first, end))

    def iter_unmarked(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of `unmarked` one by one: there may be as many as half of the offsets."""
        first = max(first, self.floor)
        if first < end:
            yield from _joined(self._marks.runs(first, end, marked=False)) if self.above else ((first, end),)

    def count(self, first: int, end: int) -> int:
        """Return how many of first..end-1 are marked."""
        below = max(0, min(end, self.floor) - first)
        first = max(first, self.floor)
        return below + (self._marks.count(first, end) if self.above and first < end else 0)

    def _begin_above(self) -> None:
        """Store the floor's own segment, which begins with ones, before the first mark beyond the floor."""
        low = self.floor & _LOW
        if low:
            self._marks.begin(self.floor >> SEGMENT_SHIFT, (1 << low) - 1)

    def _advance(self) -> None:
        floor, above, marks = self.floor, self.above, self._marks
        while above:
            run = marks.take(floor)
            floor += run
            above -= run
            if not run or floor & _LOW:
                break
        self.floor = floor
        self.above = above
        if not above and floor & _LOW:
            marks.delete(floor >> SEGMENT_SHIFT)


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = end = -1
    for first, run_end in runs:
        if first != end:
            if at < end:
                yield at, end
            at = first
        end = run_end
    if at < end:
        yield at, end
