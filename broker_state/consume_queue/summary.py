"""Summaries of blocks and of pages of blocks, by which a search decides which of them to read.

A page is a sealed table (`columns`) of format 1, a row for each of its 64 children that has a unit:

    columns   the fields of `Summary`, in their order
    tail      a bit for each child that has a row       u64

At most 64 x 64 bytes and a header; of a queue with a steady flow about 1.2 kB.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from broker_state.consume_queue.columns import ColumnTable, pack_table
from broker_state.consume_queue.queue_record import PAGE_SHIFT
from broker_state.consume_queue.unit import Units
from broker_state.store.segment import bit_runs
from broker_state.store.value_format import CorruptValueError

__all__ = ["Summary", "decode_page", "encode_page", "summary_of", "total"]

_FORM = 1
_PLACE_MASK = (1 << PAGE_SHIFT) - 1


class Summary(NamedTuple):
    """The summary of the units of a block or a page."""

    first_offset: int
    """Queue offset of the first unit."""
    last_offset: int
    """Queue offset of the last unit."""
    unit_count: int
    """Units."""
    message_count: int
    """Messages in them."""
    message_base: int
    """Message offset of the first message."""
    message_end: int
    """Message offset after the last message."""
    time_ms_min: int
    """Least store time, ms since 1970."""
    time_ms_max: int
    """Greatest store time."""

    @property
    def is_dense(self) -> bool:
        """Whether every queue offset from the first unit to the last has a unit."""
        return self.last_offset - self.first_offset + 1 == self.unit_count


_KINDS = "q" * len(Summary._fields)


def summary_of(units: Units) -> Summary:
    """Return the summary of at least one unit."""
    last_count = int(units.inner_count[-1])
    return Summary(
        first_offset=int(units.queue_offset[0]),
        last_offset=int(units.queue_offset[-1]),
        unit_count=len(units),
        message_count=int(units.inner_count.sum()),
        message_base=int(units.message_base[0]),
        message_end=int(units.message_base[-1]) + last_count,
        time_ms_min=int(units.store_time_ms.min()),
        time_ms_max=int(units.store_time_ms.max()),
    )


def total(parts: Sequence[Summary]) -> Summary:
    """Return the summary of all units of `parts`, which are in order."""
    return Summary(
        first_offset=parts[0].first_offset,
        last_offset=parts[-1].last_offset,
        unit_count=sum(part.unit_count for part in parts),
        message_count=sum(part.message_count for part in parts),
        message_base=parts[0].message_base,
        message_end=parts[-1].message_end,
        time_ms_min=min(part.time_ms_min for part in parts),
        time_ms_max=max(part.time_ms_max for part in parts),
    )


def encode_page(children: Mapping[int, Summary]) -> bytes:
    """Encode a page of at least one child, given by their numbers.

    >>> children = {67: Summary(9, 12, 4, 4, 9, 13, 500, 503)}
    >>> decode_page(1, encode_page(children)) == children
    True
    """
    numbers = sorted(children)
    columns = list(np.array([children[number] for number in numbers], np.int64).T)
    presence = sum(1 << (number & _PLACE_MASK) for number in numbers)
    return pack_table(_FORM, columns, presence.to_bytes(8, "little"))


def decode_page(number: int, value: bytes) -> dict[int, Summary]:
    """Decode a page: its children that have a unit, by their numbers, in order.

    Raises:
        CorruptValueError: The value is not a whole page.
    """
    table = ColumnTable("consume queue page", value, _FORM, _KINDS)
    presence = int.from_bytes(table.tail, "little")
    if len(table.tail) != 8 or not presence or presence.bit_count() != table.rows:
        raise CorruptValueError("consume queue page", value)
    origin = number << PAGE_SHIFT
    numbers = (origin + place for first, end in bit_runs(presence) for place in range(first, end))
    rows = zip(*(table.signed(column).tolist() for column in range(len(_KINDS))), strict=True)
    return dict(zip(numbers, map(Summary._make, rows), strict=True))
