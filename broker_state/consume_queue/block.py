"""A block: the units at 1024 neighbouring queue offsets, in one value.

A sealed table (`columns`) of format 1, 2 or 3, a row for each unit, in order:

    columns   size bytes · store time ms · message base - queue offset · inner count · end of the further key hashes
              · 1 if unreadable · tag hash · key hash
              · of format 2 and 3, when some unit has a time of delivery or a deduplication id: that time in ms, or 0
              · of format 3, when some unit has a deduplication id: both halves of its hash
              · queue offset - that of the unit it repeats, 0 if none
    tail      first and end of what was scanned, within the block     u16 u16
              presence: a bit for each queue offset of the block      128 bytes, only when there are holes between them
              further key hashes                                      8 bytes each

On a simple queue without tags, keys, delays and ids two columns of 1 or 2 bytes remain. The bytes depend only on what
was scanned, not on the stretches in which it was scanned.
"""

import struct
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from broker_state.consume_queue.columns import Column, ColumnTable, pack_table
from broker_state.consume_queue.scan import Scan
from broker_state.consume_queue.unit import NO_DUPLICATE, Hashes, Ints, Unit, Units
from broker_state.store.segment import bit_runs
from broker_state.store.value_format import CorruptValueError

__all__ = ["BLOCK_OFFSETS", "BLOCK_SHIFT", "Block", "encode_block"]

BLOCK_SHIFT = 10
BLOCK_OFFSETS = 1 << BLOCK_SHIFT

_FORM = 1
_FORM_WITH_DELAYS = 2
_FORM_WITH_IDS = 3
_KINDS = {_FORM: "qqqqqqQQ", _FORM_WITH_DELAYS: "qqqqqqQQq", _FORM_WITH_IDS: "qqqqqqQQqQQq"}
_SIZE, _TIME, _BASE, _COUNT, _MORE_END, _UNREADABLE, _TAG, _KEY, _DELIVER_AT, _DEDUP_HIGH, _DEDUP_LOW, _REPEATS = range(
    12
)
_SCANNED = struct.Struct("<HH")
_PRESENCE_BYTES = BLOCK_OFFSETS // 8


def encode_block(scan: Scan) -> bytes:
    """Encode a block, of which `scan` is the whole or a part, with at least one unit.

    >>> units = Units.simple(np.array([1026, 1027, 1030]), np.array([90, 90, 91]), np.array([5, 6, 7]))
    >>> block = Block(1, encode_block(Scan(1024, 1500, units)))
    >>> block.scan == Scan(1024, 1500, units), block.scan_first, block.scan_end
    (True, 1024, 1500)
    >>> [block.row_at_or_after(queue_offset) for queue_offset in (1026, 1028, 1030, 1499)]
    [0, 2, 2, 3]
    >>> block.unit(2).size_bytes
    91
    """
    units = scan.units
    origin = scan.first_offset >> BLOCK_SHIFT << BLOCK_SHIFT
    assert len(units), "a block without units is not stored"
    assert scan.end_offset - origin <= BLOCK_OFFSETS, "a scan within one block"
    presence = b""
    if len(units) < scan.end_offset - scan.first_offset:
        bits = np.zeros(BLOCK_OFFSETS, np.bool_)
        bits[units.queue_offset - origin] = True
        presence = np.packbits(bits, bitorder="little").tobytes()
    columns: list[Column] = [
        units.size_bytes,
        units.store_time_ms,
        units.message_base - units.queue_offset,
        units.inner_count,
        units.more_key_ends,
        (~units.is_readable).astype(np.int64),
        units.tag_hash,
        units.key_hash,
    ]
    form = _FORM
    if units.deliver_at_ms.any():
        form = _FORM_WITH_DELAYS
        columns.append(units.deliver_at_ms)
    if units.dedup_high.any() or units.dedup_low.any() or (units.duplicate_of != NO_DUPLICATE).any():
        form = _FORM_WITH_IDS
        repeats = np.where(units.duplicate_of == NO_DUPLICATE, 0, units.queue_offset - units.duplicate_of)
        columns[_DELIVER_AT:] = [units.deliver_at_ms, units.dedup_high, units.dedup_low, repeats]
    scanned = _SCANNED.pack(scan.first_offset - origin, scan.end_offset - origin)
    return pack_table(form, columns, scanned + presence + units.more_key_hashes.astype("<u8").tobytes())


class Block:
    """A stored block: single units, columns for a search, or the whole as a `Scan`."""

    def __init__(self, block_no: int, value: bytes) -> None:
        """Read the header.

        Raises:
            CorruptValueError: The value is not a whole block.
        """
        self._form = value[0] if value and value[0] in _KINDS else _FORM
        self._table = table = ColumnTable("consume queue block", value, self._form, _KINDS[self._form])
        self.unit_count = table.rows
        tail = table.tail
        if len(tail) < _SCANNED.size or not table.rows:
            raise CorruptValueError("consume queue block", value)
        first, end = _SCANNED.unpack_from(tail)
        self._origin = block_no << BLOCK_SHIFT
        self._first: int = first
        self.scan_first = self._origin + first
        self.scan_end = self._origin + end
        self._is_dense = table.rows == end - first
        self._more_at = _SCANNED.size + (0 if self._is_dense else _PRESENCE_BYTES)
        more_bytes = 8 * table.at(_MORE_END, table.rows - 1)
        if not first < end <= BLOCK_OFFSETS or len(tail) != self._more_at + more_bytes:
            raise CorruptValueError("consume queue block", value)
        if self._bits.bit_count() != table.rows or self._bits >> end or self._bits & ((1 << first) - 1):
            raise CorruptValueError("consume queue block", value)

    @cached_property
    def _bits(self) -> int:
        """A bit for each unit's place in the block."""
        if self._is_dense:
            return ((1 << self.unit_count) - 1) << self._first
        return int.from_bytes(self._table.tail[_SCANNED.size : self._more_at], "little")

    def row_at_or_after(self, queue_offset: int) -> int:
        """Return the row of the first unit at or after `queue_offset`; `unit_count` if there is none."""
        return self._rank(min(max(queue_offset - self._origin, 0), BLOCK_OFFSETS))

    def _rank(self, place: int) -> int:
        return (self._bits & ((1 << place) - 1)).bit_count()

    def unit(self, row: int) -> Unit:
        """Return the unit in a row."""
        table = self._table
        repeats = table.at(_REPEATS, row) if self._form == _FORM_WITH_IDS else 0
        queue_offset = self.scan_first + row if self._is_dense else int(self.queue_offsets[row])
        more_start = table.at(_MORE_END, row - 1) if row else 0
        more = table.tail[self._more_at + 8 * more_start : self._more_at + 8 * table.at(_MORE_END, row)]
        return Unit(
            queue_offset=queue_offset,
            size_bytes=table.at(_SIZE, row),
            store_time_ms=table.at(_TIME, row),
            message_base=table.at(_BASE, row) + queue_offset,
            inner_count=table.at(_COUNT, row),
            tag_hash=table.at(_TAG, row),
            key_hash=table.at(_KEY, row),
            more_key_hashes=struct.unpack(f"<{len(more) // 8}Q", more),
            deliver_at_ms=table.at(_DELIVER_AT, row) if self._form != _FORM else 0,
            dedup_high=table.at(_DEDUP_HIGH, row) if self._form == _FORM_WITH_IDS else 0,
            dedup_low=table.at(_DEDUP_LOW, row) if self._form == _FORM_WITH_IDS else 0,
            duplicate_of=queue_offset - repeats if repeats else NO_DUPLICATE,
            is_readable=not table.at(_UNREADABLE, row),
        )

    @cached_property
    def queue_offsets(self) -> Ints:
        """The queue offset of each unit."""
        if self._is_dense:
            return np.arange(self.scan_first, self.scan_end)
        places = np.frombuffer(self._table.tail, np.uint8, _PRESENCE_BYTES, _SCANNED.size)
        return np.flatnonzero(np.unpackbits(places, bitorder="little")) + self._origin

    @property
    def store_times_ms(self) -> Ints:
        """The store time of each unit."""
        return self._table.signed(_TIME)

    @property
    def message_bases(self) -> Ints:
        """The message base of each unit."""
        return self._table.signed(_BASE) + self.queue_offsets

    @property
    def inner_counts(self) -> Ints:
        """The number of messages of each unit."""
        return self._table.signed(_COUNT)

    @property
    def _more_key_hashes(self) -> Hashes:
        return np.frombuffer(self._table.tail, "<u8", offset=self._more_at).astype(np.uint64)

    def rows_with_key(self, key_hash: int) -> list[int]:
        """Return the rows of the units that have the key, in order."""
        found: NDArray[np.bool_] = self._table.unsigned(_KEY) == key_hash
        among_more = np.flatnonzero(self._more_key_hashes == key_hash)
        found[np.searchsorted(self._table.signed(_MORE_END), among_more, side="right")] = True
        return np.flatnonzero(found).tolist()

    def written_runs(self) -> list[tuple[int, int]]:
        """Return the runs of queue offsets that have a unit, as half-open (first, end)."""
        return [(self._origin + first, self._origin + end) for first, end in bit_runs(self._bits)]

    @property
    def scan(self) -> Scan:
        """The whole block; offsets of it without a unit are holes."""
        table, queue_offsets = self._table, self.queue_offsets
        none = np.zeros(table.rows, np.int64)
        has_ids = self._form == _FORM_WITH_IDS
        repeats = table.signed(_REPEATS) if has_ids else none
        units = Units(
            queue_offset=queue_offsets,
            size_bytes=table.signed(_SIZE),
            store_time_ms=table.signed(_TIME),
            message_base=table.signed(_BASE) + queue_offsets,
            inner_count=table.signed(_COUNT),
            tag_hash=table.unsigned(_TAG),
            key_hash=table.unsigned(_KEY),
            more_key_ends=table.signed(_MORE_END),
            more_key_hashes=self._more_key_hashes,
            is_readable=table.signed(_UNREADABLE) == 0,
            deliver_at_ms=table.signed(_DELIVER_AT) if self._form != _FORM else none,
            dedup_high=table.unsigned(_DEDUP_HIGH) if has_ids else none.view(np.uint64),
            dedup_low=table.unsigned(_DEDUP_LOW) if has_ids else none.view(np.uint64),
            duplicate_of=np.where(repeats == 0, NO_DUPLICATE, queue_offsets - repeats),
        )
        return Scan(self.scan_first, self.scan_end, units)
