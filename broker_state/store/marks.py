"""Sets of offsets in segments: plain marks, and marks with counts.

Only changed segments are written, and an offset takes at most an eighth of a byte, besides the key and tag of its
segment.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from broker_state.store.overlay import Overlay
from broker_state.store.segment import FULL, SEGMENT_BITS, SEGMENT_SHIFT, bit_runs, ones_from, segment_windows

__all__ = ["MAPS", "CountedMarks", "Marks"]

_LOW: Final = SEGMENT_BITS - 1
MAPS: Final = 1 << 56
"""Added to the number of a map in its key: no segment has so high a number."""
_BLOCK_SHIFTS: Final = (SEGMENT_SHIFT + 12, SEGMENT_SHIFT + 6)
"""Of the blocks that are counted: 64 * 64 segments, and 64 segments."""


class Marks:
    """A set of offsets, segment by segment, under a key prefix.

    A full segment is one bit in the *map* of its 4096 neighbours, so that a billion marks in a row take 60 keys and not
    244,141, and are passed as fast. States from before there were maps have full segments under their own keys.

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> marks = Marks(Overlay(MemoryKv()), b"H")
    >>> marks.add(10, 12), marks.add(11, 14), marks.count(0, 100), list(marks.runs(0, 100))
    (2, 2, 4, [(10, 14)])
    """

    __slots__ = ("_overlay", "_prefix")

    def __init__(self, overlay: Overlay, prefix: bytes) -> None:
        self._overlay = overlay
        self._prefix = prefix

    def get(self, segment_no: int) -> int:
        """Return the bits of one segment."""
        return self._overlay.bits(self._key(segment_no)) or (FULL if self._is_full(segment_no) else 0)

    def begin(self, segment_no: int, bits: int) -> None:
        """Set the bits of a segment that has none; `bits` are not full."""
        self._overlay.set_bits(self._key(segment_no), bits)

    def delete(self, segment_no: int) -> None:
        """Unmark the offsets of one segment."""
        key = self._key(segment_no)
        if self._overlay.bits(key):
            self._overlay.set_bits(key, 0)
        elif self._is_full(segment_no):
            self._set_full(segment_no, 1, marked=False)

    def take(self, at: int) -> int:
        """Return how many offsets are marked from `at` on, as far as one look goes; the segments that end are deleted.

        A look goes to the end of a segment, or of the full ones that follow each other in a map. The answer is less if
        an offset is not marked: 0, or `at` plus the answer is no multiple of 4096.
        """
        segment_no, low = at >> SEGMENT_SHIFT, at & _LOW
        if not low:
            full = ones_from(self._overlay.bits(self._map_key(segment_no)), segment_no & _LOW)
            if full:
                self._set_full(segment_no, full, marked=False)
                return full << SEGMENT_SHIFT
        run = ones_from(self.get(segment_no), low)
        if low + run == SEGMENT_BITS:
            self.delete(segment_no)
        return run

    def add(self, first: int, end: int) -> int:
        """Mark first..end-1; return how many of them were not marked before."""
        segment_no, count = first >> SEGMENT_SHIFT, end - first
        if (end - 1) >> SEGMENT_SHIFT == segment_no:
            return self._add(segment_no, ((1 << count) - 1) << (first & _LOW), count)
        return self._add_each(segment_windows(first, end))

    def add_runs(self, runs: Iterable[tuple[int, int]]) -> int:
        """Do `add` for each of `runs`, which are in order and apart; a segment is written once for all of them."""
        return self._add_each(_windows_of(runs))

    def _add_each(self, windows: Iterable[tuple[int, int]]) -> int:
        return sum([self._add(segment_no, window, window.bit_count()) for segment_no, window in windows])

    def _add(self, segment_no: int, window: int, count: int) -> int:
        key = self._prefix + segment_no.to_bytes(8, "big")
        before = self._overlay.bits(key)
        known = before & window
        if known == window or (not before and self._is_full(segment_no)):
            return 0
        bits = before | window
        if bits == FULL:
            self._set_full(segment_no, 1, marked=True)
            bits = 0
        if bits or before:
            self._overlay.set_bits(key, bits)
        return count - known.bit_count() if known else count

    def count(self, first: int, end: int) -> int:
        """Return how many of first..end-1 are marked."""
        return sum((self.get(segment_no) & window).bit_count() for segment_no, window in segment_windows(first, end))

    def runs(self, first: int, end: int, *, marked: bool = True) -> Iterator[tuple[int, int]]:
        """Yield the half-open runs of marked (or unmarked) offsets in [first, end); a run ends with its segment."""
        for segment_no, window in segment_windows(first, end):
            bits = self.get(segment_no)
            base = segment_no << SEGMENT_SHIFT
            for run_first, run_end in bit_runs((bits if marked else ~bits) & window):
                yield base + run_first, base + run_end

    def _is_full(self, segment_no: int) -> int:
        """Return 1 if the segment is marked in its map, else 0."""
        return self._overlay.bits(self._map_key(segment_no)) >> (segment_no & _LOW) & 1

    def _set_full(self, segment_no: int, count: int, *, marked: bool) -> None:
        """Mark or unmark `count` segments of one map."""
        key = self._map_key(segment_no)
        bits = self._overlay.bits(key)
        window = ((1 << count) - 1) << (segment_no & _LOW)
        self._overlay.set_bits(key, bits | window if marked else bits & ~window)

    def _key(self, segment_no: int) -> bytes:
        return self._prefix + segment_no.to_bytes(8, "big")

    def _map_key(self, segment_no: int) -> bytes:
        return self._prefix + (MAPS | segment_no >> SEGMENT_SHIFT).to_bytes(8, "big")


class CountedMarks(Marks):
    """Marks that also keep how many offsets of each block are marked: no question takes time per segment.

    A block is 64 segments, or 64 such blocks. Counts have keys of their own: prefix, level u8, block u64.

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> marks = CountedMarks(Overlay(MemoryKv()), b"H", b"h")
    >>> marks.add(0, 50_000_000), marks.add(50_000_001, 50_000_002), marks.count(7, 1 << 40)
    (50000000, 1, 49999994)
    >>> marks.end_of_run(7, 1 << 40), list(marks.runs(49_999_999, 50_000_003, marked=False))
    (50000000, [(50000000, 50000001), (50000002, 50000003)])
    """

    __slots__ = ("_counts_prefix",)

    def __init__(self, overlay: Overlay, prefix: bytes, counts_prefix: bytes) -> None:
        super().__init__(overlay, prefix)
        self._counts_prefix = counts_prefix

    def add(self, first: int, end: int) -> int:
        """See `Marks.add`."""
        total = 0
        for low, high in _cut(first, end, _BLOCK_SHIFTS[-1]):
            added = Marks.add(self, low, high)
            if added:
                self._count_added(low, added)
            total += added
        return total

    def recount(self, first: int, end: int) -> None:
        """Make the counts of the blocks of [first, end), whose marks were stored without."""
        for low, high in _cut(first, end, _BLOCK_SHIFTS[-1]):
            found = Marks.count(self, low, high)
            if found:
                self._count_added(low, found)

    def count(self, first: int, end: int) -> int:
        """See `Marks.count`."""
        return sum(
            Marks.count(self, low, high) if known < 0 else known
            for low, high, known in self._pieces(first, end, is_split=False)
        )

    def end_of_run(self, first: int, end: int) -> int:
        """Return up to where offsets are marked from `first` on; `first` if it is not, and at most `end`."""
        for low, high, known in self._pieces(first, end, is_split=True):
            at = low if known != high - low else high
            while at < high:
                ones = ones_from(self.get(at >> SEGMENT_SHIFT), at & _LOW)
                at += ones
                if at < high and (not ones or at & _LOW):
                    return at
        return end

    def runs(self, first: int, end: int, *, marked: bool = True) -> Iterator[tuple[int, int]]:
        """See `Marks.runs`; a run may also be a block."""
        for low, high, known in self._pieces(first, end, is_split=True):
            if known not in (0, high - low):
                yield from Marks.runs(self, low, high, marked=marked)
            elif (known > 0) == marked:
                yield low, high

    def _pieces(self, first: int, end: int, *, is_split: bool) -> Iterator[tuple[int, int, int]]:
        """Yield [first, end) as (first, end, how many are marked): blocks, and what is less with -1, or 0 if none is.

        With `is_split` a block that is marked in part is yielded as the blocks it consists of.
        """
        at = first
        while at < end:
            shift = _BLOCK_SHIFTS[-1]
            stop = min(end, ((at >> shift) + 1) << shift)
            marked = self._counted(len(_BLOCK_SHIFTS) - 1, at >> shift)
            if marked and stop - at < 1 << shift:
                marked = -1
            for level, wide in enumerate(_BLOCK_SHIFTS[:-1]):
                if not at & ((1 << wide) - 1) and at + (1 << wide) <= end:
                    counted = self._counted(level, at >> wide)
                    if not is_split or counted in (0, 1 << wide):
                        stop, marked = at + (1 << wide), counted
                        break
            yield at, stop, marked
            at = stop

    def _counted(self, level: int, block: int) -> int:
        return self._overlay.bits(self._count_key(level, block))

    def _count_added(self, at: int, added: int) -> None:
        for level, shift in enumerate(_BLOCK_SHIFTS):
            key = self._count_key(level, at >> shift)
            self._overlay.set_bits(key, self._overlay.bits(key) + added)

    def _count_key(self, level: int, block: int) -> bytes:
        return self._counts_prefix + bytes((level,)) + block.to_bytes(8, "big")


def _cut(first: int, end: int, shift: int) -> Iterator[tuple[int, int]]:
    """Yield [first, end) cut at the multiples of 1 << shift."""
    at = first
    while at < end:
        stop = min(end, ((at >> shift) + 1) << shift)
        yield at, stop
        at = stop


def _windows_of(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (segment no, mask) for each segment that `runs`, which are in order, touch."""
    at = base = next_base = bits = 0
    for first, end in runs:
        if end <= next_base:  # then the run begins in this segment too
            bits |= ((1 << (end - first)) - 1) << (first - base)
            continue
        for segment_no, window in segment_windows(first, end):
            if segment_no != at and bits:
                yield at, bits
                bits = 0
            at = segment_no
            bits |= window
        base = at << SEGMENT_SHIFT
        next_base = base + SEGMENT_BITS
    if bits:
        yield at, bits
