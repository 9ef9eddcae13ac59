"""The progress of one fetch: which of its offsets have a record, have none, or are undecided. Not thread-safe."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from popstream.payload.payloads import Fetched, Payload, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.payload.payload_block import PayloadBlock

__all__ = ["FetchProgress", "ReadAhead"]


class FetchProgress:
    """The offsets that one call requests of one partition, decided in ascending order.

    >>> from popstream.payload.payload_block import PayloadBlock
    >>> progress = FetchProgress([(0, 1), (4, 9)], bytes_max=3)
    >>> record = Payload(None, b"22", [], 0)
    >>> progress.take(PayloadBlock(0, 3, [(1, record), (2, record)]))
    >>> progress.next_offset, progress.result().late
    (4, [(4, 9)])
    >>> progress.take(PayloadBlock(4, 9, [(6, record)]))
    >>> found = progress.result()
    >>> [*found.payloads], found.gone, found.late, found.left
    ([1], [(0, 0), (4, 5)], [], [(6, 9)])

    Args:
        ranges: Inclusive ranges of offsets, in any order.
        bytes_max: Maximum size of all records; one record is always taken.
        count_max: Maximum number of records.
    """

    def __init__(
        self, ranges: Sequence[tuple[int, int]], *, bytes_max: int | None = None, count_max: int | None = None
    ) -> None:
        self._undecided = deque(merge_ranges(ranges))
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._is_full = False
        self._payloads: dict[int, Payload] = {}
        self._gone: list[tuple[int, int]] = []
        self.payload_bytes = 0

    @property
    def next_offset(self) -> int | None:
        """The first undecided offset; None: the fetch is done."""
        return None if self._is_full or not self._undecided else self._undecided[0][0]

    def take(self, block: PayloadBlock) -> None:
        """Decide the offsets that the block covers, beginning with the next offset."""
        while (at := self.next_offset) is not None and block.first <= at < block.end:
            first, last = self._undecided.popleft()
            at = self._take_range(block, first, min(last + 1, block.end))
            if at <= last:
                self._undecided.appendleft((at, last))

    def result(self) -> Fetched:
        """Return the result as of now; undecided offsets are late."""
        undecided = [*self._undecided]
        late, left = ([], undecided) if self._is_full else (undecided, [])
        return Fetched(self._payloads, self._gone, late, left)

    def _take_range(self, block: PayloadBlock, first: int, end: int) -> int:
        at = first
        for offset in block.between(first, end):
            self._add_gone(at, offset)
            payload = block.payloads[offset]
            size_bytes = payload.size_bytes
            if self._payloads and self._bytes_max is not None and self.payload_bytes + size_bytes > self._bytes_max:
                self._is_full = True
                return offset
            self._payloads[offset] = payload
            self.payload_bytes += size_bytes
            at = offset + 1
            if len(self._payloads) == self._count_max or (
                self._bytes_max is not None and self.payload_bytes >= self._bytes_max
            ):
                self._is_full = True
                return at
        self._add_gone(at, end)
        return end

    def _add_gone(self, first: int, end: int) -> None:
        if first == end:
            return
        if self._gone and self._gone[-1][1] + 1 == first:
            first = self._gone.pop()[0]
        self._gone.append((first, end - 1))


class ReadAhead(FetchProgress):
    """Offsets whose records are read into the cache, for a call that has not come yet.

    Args:
        ranges: Inclusive ranges of offsets, in any order.
        until_s: When they are given up, as `time.monotonic()` tells it.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]], until_s: float) -> None:
        super().__init__(ranges)
        self.until_s = until_s

    def take(self, block: PayloadBlock) -> None:
        """Leave the records in the block, which is in the cache."""
        while (at := self.next_offset) is not None and block.first <= at < block.end:
            _, last = self._undecided.popleft()
            if block.end <= last:
                self._undecided.appendleft((block.end, last))
