"""The rows of `operations` of a micro-batch: thousands of entries of one record are kept as a few blocks of rows."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from broker_state.audit import EntryRange, OperationRow

__all__ = ["OperationRows"]

_ORDINAL = OperationRow._fields.index("ordinal")
_ENTRY = OperationRow._fields.index("entry")
_OF_HEAD: Sequence[EntryRange] = ((None, None, None),)
"""Stands for the range of a block of one row, which is in its head."""


class OperationRows(Sequence[OperationRow]):
    """Rows in their order, in blocks: those of a block differ in `ordinal`, which counts up, and in their ranges alone.

    Attributes:
        heads: The first row of each block.
        ranges: By the place of its head, the ranges of all rows of a block of several.
    """

    __slots__ = ("heads", "ranges")

    def __init__(self, heads: Iterable[OperationRow] = ()) -> None:
        self.heads: list[OperationRow] = list(heads)
        self.ranges: dict[int, Sequence[EntryRange]] = {}

    def append(self, head: OperationRow, ranges: Sequence[EntryRange]) -> None:
        """Add a row for each of `ranges`, which are kept as they are; `head` has the first."""
        if len(ranges) > 1:
            self.ranges[len(self.heads)] = ranges
        self.heads.append(head)

    def extend(self, later: "OperationRows") -> None:
        """Add rows that follow."""
        base = len(self.heads)
        self.ranges.update({base + place: ranges for place, ranges in later.ranges.items()})
        self.heads += later.heads

    def parts(self, rows_max: int) -> "Iterator[OperationRows]":
        """Yield the rows as parts of at most `rows_max`."""
        if len(self) <= rows_max:
            if self.heads:
                yield self
            return
        if not self.ranges:
            for start in range(0, len(self.heads), rows_max):
                yield OperationRows(self.heads[start : start + rows_max])
            return
        part, room = OperationRows(), rows_max
        for place, length in enumerate(self.lengths()):
            done = 0
            while done < length:
                count = min(room, length - done)
                head = self._row(place, done)
                ranges = self.ranges.get(place, _OF_HEAD)
                part.append(head, ranges if count == len(ranges) else ranges[done : done + count])
                done, room = done + count, room - count
                if not room:
                    yield part
                    part, room = OperationRows(), rows_max
        if part.heads:
            yield part

    def blocks(self) -> "Iterator[tuple[OperationRow, int]]":
        """Yield the first row of each block, and how many rows it has."""
        return zip(self.heads, self.lengths(), strict=True)

    def lengths(self) -> list[int]:
        """Return how many rows each block has."""
        lengths = [1] * len(self.heads)
        for place, ranges in self.ranges.items():
            lengths[place] = len(ranges)
        return lengths

    def entry_ranges(self) -> Iterator[EntryRange]:
        """Yield the columns `entry`, `first_offset` and `last_offset` of each row."""
        for place, head in enumerate(self.heads):
            if place in self.ranges:
                yield from self.ranges[place]
            else:
                yield head.entry, head.first_offset, head.last_offset

    def __len__(self) -> int:
        return len(self.heads) + sum(map(len, self.ranges.values())) - len(self.ranges)

    def __iter__(self) -> Iterator[OperationRow]:
        if not self.ranges:
            yield from self.heads
            return
        for place, length in enumerate(self.lengths()):
            for number in range(length):
                yield self._row(place, number)

    @overload
    def __getitem__(self, index: int) -> OperationRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OperationRow]: ...
    def __getitem__(self, index: int | slice) -> OperationRow | Sequence[OperationRow]:
        """Return a row, or those of a slice; where there are blocks of several, it takes a time for each block."""
        if not self.ranges:
            return self.heads[index]
        if isinstance(index, slice):
            return list(self)[index]
        index = range(len(self))[index]
        begins = [0, *accumulate(self.lengths())]
        place = bisect_right(begins, index) - 1
        return self._row(place, index - begins[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(list(self))

    def _row(self, place: int, number: int) -> OperationRow:
        """Return row `number` of a block."""
        head = self.heads[place]
        if not number:
            return head
        columns: list[object] = [*head]
        columns[_ORDINAL] = head.ordinal + number
        columns[_ENTRY : _ENTRY + 3] = self.ranges[place][number]
        return OperationRow._make(columns)
