"""A unit of a consume queue, and units as columns.

A unit is one written Kafka record; its queue offset is the record's Kafka offset. On simple and sparse queues it is
one message, and its message base is its queue offset. On batch queues it is an inner batch of `inner_count` messages,
and its message base is the running count of messages at its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_DUPLICATE", "Unit", "Units"]

NO_DUPLICATE = -1
"""`duplicate_of` of a unit that is no duplicate."""

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One written record of a queue."""

    queue_offset: int
    """Kafka offset of the record."""
    size_bytes: int
    """Length of its value."""
    store_time_ms: int
    """Timestamp of the record, ms since 1970."""
    message_base: int
    """Message offset of its first message."""
    inner_count: int = 1
    """Messages in it; more than 1 only on batch queues."""
    tag_hash: int = 0
    """Hash of its tag; 0: none."""
    key_hash: int = 0
    """Hash of its key; 0: none."""
    more_key_hashes: tuple[int, ...] = ()
    """Hashes of the keys and message ids inside a batch."""
    deliver_at_ms: int = 0
    """When its messages can be popped, ms since 1970; 0: as soon as they are written."""
    dedup_high: int = 0
    """First half of the hash of its deduplication id; 0 in both halves: none."""
    dedup_low: int = 0
    """Second half."""
    duplicate_of: int = NO_DUPLICATE
    """Queue offset of the unit that it repeats, so that no group gets it; -1: none."""
    is_readable: bool = True
    """False for a malformed inner batch, which counts as one message."""

    @property
    def message_end(self) -> int:
        """The message offset after its last message."""
        return self.message_base + self.inner_count


@dataclass(frozen=True, slots=True, eq=False)
class Units:  # noqa: PLW1641 - arrays have no hash
    """Units in ascending order of their queue offsets, one array a column, all of one length.

    `more_key_hashes` is cut by `more_key_ends`: a row's part ends there, and begins where that of the row before ends.

    >>> units = Units.of([Unit(queue_offset=at, size_bytes=100, store_time_ms=5, message_base=at) for at in (3, 4, 9)])
    >>> len(units), units.unit(2).queue_offset, [unit.queue_offset for unit in units.between(4, 9)]
    (3, 9, [4])
    """

    queue_offset: Ints
    size_bytes: Ints
    store_time_ms: Ints
    message_base: Ints
    inner_count: Ints
    tag_hash: Hashes
    key_hash: Hashes
    more_key_ends: Ints
    more_key_hashes: Hashes
    is_readable: NDArray[np.bool_]
    deliver_at_ms: Ints
    dedup_high: Hashes
    dedup_low: Hashes
    duplicate_of: Ints

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Self:
        """Return the columns of `units`, which are in order."""
        return cls(
            queue_offset=np.array([unit.queue_offset for unit in units], np.int64),
            size_bytes=np.array([unit.size_bytes for unit in units], np.int64),
            store_time_ms=np.array([unit.store_time_ms for unit in units], np.int64),
            message_base=np.array([unit.message_base for unit in units], np.int64),
            inner_count=np.array([unit.inner_count for unit in units], np.int64),
            tag_hash=np.array([unit.tag_hash for unit in units], np.uint64),
            key_hash=np.array([unit.key_hash for unit in units], np.uint64),
            more_key_ends=np.cumsum([len(unit.more_key_hashes) for unit in units], dtype=np.int64),
            more_key_hashes=np.array([more for unit in units for more in unit.more_key_hashes], np.uint64),
            is_readable=np.array([unit.is_readable for unit in units], np.bool_),
            deliver_at_ms=np.array([unit.deliver_at_ms for unit in units], np.int64),
            dedup_high=np.array([unit.dedup_high for unit in units], np.uint64),
            dedup_low=np.array([unit.dedup_low for unit in units], np.uint64),
            duplicate_of=np.array([unit.duplicate_of for unit in units], np.int64),
        )

    @classmethod
    def simple(cls, queue_offset: Ints, size_bytes: Ints, store_time_ms: Ints) -> Self:
        """Return units of single messages without tags, keys, delays; their message bases are their queue offsets."""
        none = np.zeros(len(queue_offset), np.int64)
        return cls(
            queue_offset=queue_offset,
            size_bytes=size_bytes,
            store_time_ms=store_time_ms,
            message_base=queue_offset,
            inner_count=none + 1,
            tag_hash=none.view(np.uint64),
            key_hash=none.view(np.uint64),
            more_key_ends=none,
            more_key_hashes=np.zeros(0, np.uint64),
            is_readable=np.ones(len(queue_offset), np.bool_),
            deliver_at_ms=none,
            dedup_high=none.view(np.uint64),
            dedup_low=none.view(np.uint64),
            duplicate_of=none + NO_DUPLICATE,
        )

    @classmethod
    def joined(cls, pieces: Sequence["Units"]) -> "Units":
        """Concatenate units that follow each other."""
        pieces = [piece for piece in pieces if len(piece)] or list(pieces[:1])
        if len(pieces) == 1:
            return pieces[0]
        columns = {
            name: np.concatenate([getattr(piece, name) for piece in pieces])
            for name in cls.__slots__
            if name != "more_key_ends"
        }
        ends, before = [], 0
        for piece in pieces:
            ends.append(piece.more_key_ends + before)
            before += len(piece.more_key_hashes)
        return cls(**columns, more_key_ends=np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.queue_offset)

    def __iter__(self) -> Iterator[Unit]:
        return (self.unit(row) for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Units) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )

    @property
    def is_whole(self) -> bool:
        """Whether the columns have their types and one length."""
        hashes = (self.tag_hash, self.key_hash, self.dedup_high, self.dedup_low, self.more_key_hashes)
        ints = (
            self.queue_offset,
            self.size_bytes,
            self.store_time_ms,
            self.message_base,
            self.inner_count,
            self.more_key_ends,
            self.deliver_at_ms,
            self.duplicate_of,
        )
        return (
            {column.dtype for column in ints} == {np.dtype(np.int64)}
            and {column.dtype for column in hashes} == {np.dtype(np.uint64)}
            and {len(column) for column in (*ints, *hashes[:-1], self.is_readable)} == {len(self)}
            and self.is_readable.dtype == np.bool_
            and len(self.more_key_hashes) == self._more_start(len(self))
        )

    def unit(self, row: int) -> Unit:
        """One of them."""
        return Unit(
            queue_offset=int(self.queue_offset[row]),
            size_bytes=int(self.size_bytes[row]),
            store_time_ms=int(self.store_time_ms[row]),
            message_base=int(self.message_base[row]),
            inner_count=int(self.inner_count[row]),
            tag_hash=int(self.tag_hash[row]),
            key_hash=int(self.key_hash[row]),
            more_key_hashes=tuple(self.more_key_hashes[self._more_start(row) : self.more_key_ends[row]].tolist()),
            deliver_at_ms=int(self.deliver_at_ms[row]),
            dedup_high=int(self.dedup_high[row]),
            dedup_low=int(self.dedup_low[row]),
            duplicate_of=int(self.duplicate_of[row]),
            is_readable=bool(self.is_readable[row]),
        )

    def rows(self, first_row: int, end_row: int) -> "Units":
        """Those of rows first_row..end_row-1."""
        if first_row == 0 and end_row == len(self):
            return self
        ends, more = self.more_key_ends, self.more_key_hashes
        if len(more):
            start = self._more_start(first_row)
            more = more[start : self._more_start(end_row)]
            ends = ends[first_row:end_row] - start
        else:
            ends = ends[first_row:end_row]
        return Units(
            queue_offset=self.queue_offset[first_row:end_row],
            size_bytes=self.size_bytes[first_row:end_row],
            store_time_ms=self.store_time_ms[first_row:end_row],
            message_base=self.message_base[first_row:end_row],
            inner_count=self.inner_count[first_row:end_row],
            tag_hash=self.tag_hash[first_row:end_row],
            key_hash=self.key_hash[first_row:end_row],
            more_key_ends=ends,
            more_key_hashes=more,
            is_readable=self.is_readable[first_row:end_row],
            deliver_at_ms=self.deliver_at_ms[first_row:end_row],
            dedup_high=self.dedup_high[first_row:end_row],
            dedup_low=self.dedup_low[first_row:end_row],
            duplicate_of=self.duplicate_of[first_row:end_row],
        )

    def between(self, first_offset: int, end_offset: int) -> "Units":
        """Those with queue offsets in [first_offset, end_offset)."""
        first_row, end_row = np.searchsorted(self.queue_offset, (first_offset, max(first_offset, end_offset)))
        return self.rows(int(first_row), int(end_row))

    def key_hashes(self) -> Hashes:
        """Return every key hash of every unit."""
        keys = self.key_hash[self.key_hash != 0]
        return np.concatenate((keys, self.more_key_hashes)) if len(self.more_key_hashes) else keys

    def dedup_hash(self, row: int) -> bytes:
        """Return the hash of the deduplication id of one of them, 16 bytes; all zero without an id."""
        return int(self.dedup_high[row]).to_bytes(8, "big") + int(self.dedup_low[row]).to_bytes(8, "big")

    def _more_start(self, row: int) -> int:
        return int(self.more_key_ends[row - 1]) if row else 0
