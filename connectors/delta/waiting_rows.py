"""Rows on their way to a table that wait for more: few of them cost as much as many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connectors.delta.rows import Slice

__all__ = ["WaitingRows", "WaitingSlices", "in_pieces"]

_ROWS_PER_PIECE: Final = 131_072
_BYTES_PER_PIECE: Final = 64 * 1024 * 1024
_TOGETHER_BYTES_MAX: Final = 32 * 1024
"""Of slices that are completed together. A longer one may have thousands of rows, many times its length in memory."""


def in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables to pieces of at least 131,072 rows or 64 MiB, except the last: one row group each."""
    waiting = WaitingRows()
    for table in tables:
        yield from waiting.add(table)
    yield from waiting.take()


class WaitingRows:
    """Small tables that wait for more, to become a piece as in `in_pieces`."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = self._size = 0

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Add a table; yield the piece, if they are enough for one."""
        self._tables.append(table)
        self._rows += table.num_rows
        self._size += table.nbytes
        if self._rows >= _ROWS_PER_PIECE or self._size >= _BYTES_PER_PIECE:
            yield from self.take()

    def take(self) -> Iterator[pa.Table]:
        """Yield those that wait as one piece, if there are any."""
        if self._tables:
            tables, self._tables, self._rows, self._size = self._tables, [], 0, 0
            yield pa.concat_tables(tables)


class WaitingSlices:
    """Slices of one table that wait for more, to be completed together: small ones, for the sake of memory.

    >>> waiting = WaitingSlices()
    >>> list(waiting.add((7, b"ab"))), list(waiting.add((8, bytes(40_000))))
    ([], [[(7, b'ab')]])
    >>> [len(slices) for slices in waiting.take()]
    [1]
    """

    def __init__(self) -> None:
        self._slices: list[Slice] = []
        self._size = 0

    def add(self, slice_: Slice) -> Iterator[list[Slice]]:
        """Add a slice; yield those before it, if they are enough."""
        if self._size + len(slice_[1]) > _TOGETHER_BYTES_MAX:
            yield from self.take()
        self._slices.append(slice_)
        self._size += len(slice_[1])

    def take(self) -> Iterator[list[Slice]]:
        """Yield those that wait, if there are any."""
        if self._slices:
            slices, self._slices, self._size = self._slices, [], 0
            yield slices
