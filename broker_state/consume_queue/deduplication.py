"""Which units repeat an earlier one of their queue: those with its deduplication id, within the window after it.

A unit is a duplicate of the last accepted unit with its id when both the store times of the two and the *clock* of the
queue, the greatest store time so far, are less than the window apart, and that unit is among the last `ids_max`
accepted ones with an id. What is no duplicate is accepted. So a record whose time is far ahead ends the search for
duplicates until its time has come, instead of making one of everything.

The rule needs the units before alone: a queue that is read again has the same duplicates. An accepted unit is needed
until the clock has passed the end of its window, or `ids_max` others were accepted after it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from broker_state.consume_queue.unit import NO_DUPLICATE, Units

__all__ = ["Accepted", "accepted_units", "mark_duplicates"]


class Accepted(NamedTuple):
    """An accepted unit with an id.

    `number` counts the accepted units of the queue with an id up to it; only differences between numbers matter.
    """

    queue_offset: int
    store_time_ms: int
    number: int


def mark_duplicates(
    units: Units,
    clock_ms: int | None,
    window_ms: int,
    find: Callable[[Sequence[bytes]], Sequence[Accepted | None]],
    *,
    accepted_count: int = 0,
    ids_max: int,
) -> tuple[Units, dict[bytes, Accepted]]:
    """Return units with the offsets that they are duplicates of, and the accepted ones by the hash of their id.

    >>> from broker_state.consume_queue.unit import Unit
    >>> units = Units.of([Unit(queue_offset=at, size_bytes=1, store_time_ms=ms, message_base=at, dedup_low=7)
    ...                   for at, ms in enumerate((0, 99, 100))])
    >>> marked, accepted = mark_duplicates(units, None, 100, lambda hashes: [None] * len(hashes), ids_max=9)
    >>> marked.duplicate_of.tolist(), [tuple(found) for found in accepted.values()]
    ([-1, 0, -1], [(2, 100, 2)])

    Args:
        units: Units of a queue that follow those it has.
        clock_ms: The greatest store time of the units before; None: there are none.
        window_ms: Length of the window.
        find: Returns the last accepted unit for each of some hashes.
        accepted_count: The number of the last accepted unit before.
        ids_max: An accepted unit makes no more duplicates when this number of others was accepted after it.
    """
    rows = np.flatnonzero(units.dedup_high | units.dedup_low).tolist()
    if not rows:
        return units, {}
    clocks = np.maximum.accumulate(units.store_time_ms)
    if clock_ms is not None:
        clocks = np.maximum(clocks, clock_ms)
    hashes = [units.dedup_hash(row) for row in rows]
    different = list(dict.fromkeys(hashes))
    known = dict(zip(different, find(different), strict=True))
    accepted: dict[bytes, Accepted] = {}
    duplicate_of = units.duplicate_of.copy()
    for row, hashed in zip(rows, hashes, strict=True):
        time_ms, last = int(units.store_time_ms[row]), accepted.get(hashed) or known[hashed]
        if (
            last is not None
            and abs(time_ms - last.store_time_ms) < window_ms
            and int(clocks[row]) - last.store_time_ms < window_ms
            and accepted_count - last.number < ids_max
        ):
            duplicate_of[row] = last.queue_offset
        else:
            accepted_count += 1
            accepted[hashed] = Accepted(int(units.queue_offset[row]), time_ms, accepted_count)
    return replace(units, duplicate_of=duplicate_of), accepted


def accepted_units(units: Units, last_number: int) -> Iterator[tuple[bytes, Accepted]]:
    """Yield the accepted units with an id and their hashes, from the last one, which has this number, to the first."""
    has_id = (units.dedup_high | units.dedup_low) != 0
    rows = np.flatnonzero(has_id & (units.duplicate_of == NO_DUPLICATE)).tolist()
    for number, row in zip(count(last_number, -1), reversed(rows), strict=False):
        yield units.dedup_hash(row), Accepted(int(units.queue_offset[row]), int(units.store_time_ms[row]), number)
