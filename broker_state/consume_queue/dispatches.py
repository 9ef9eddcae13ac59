"""The dispatches of a scan: the ranges that were written and, as `skip`, holes and duplicates, which no group gets.

Commands that are decided one after the other, from the commit position on, are accepted as a whole: what one of them
spans fits into every window, and costs less than a record may spend. So nobody has to wait for an answer.
"""

from collections.abc import Iterator

import numpy as np

from broker_state.consume_queue.scan import Scan
from broker_state.consume_queue.unit import NO_DUPLICATE
from popstream.wire.command import Dispatch, OffsetRange, WrittenRange
from popstream.wire.limits import RANGE_OFFSETS_MAX, WINDOW_OFFSETS_MIN

__all__ = ["PIECES_MAX", "SKIPS_MAX", "SPAN_MAX", "dispatches_of", "skips_of"]

PIECES_MAX = 1_200
"""Ranges of one command: with tags of 20 digits and times of delivery at most 160 kB, which fit in an outbox entry."""

SPAN_MAX = WINDOW_OFFSETS_MIN
"""Offsets between the first and the last one of a command: at most 15,625 pages of 64 and 245 segments, which with
1,200 ranges cost less than 20,000."""

SKIPS_MAX = 27
"""Ranges of one command that follow each other, of up to RANGE_OFFSETS_MAX: each costs 736 of 20,000."""


def dispatches_of(topic: str, queue_id: int, scan: Scan) -> Iterator[Dispatch]:
    """Yield the commands for a scan, in ascending order of their offsets; none for an empty one.

    >>> from broker_state.consume_queue.unit import Unit, Units
    >>> units = [Unit(queue_offset=at, size_bytes=9, store_time_ms=0, message_base=at, tag_hash=t) for at, t in
    ...          ((5, 0), (6, 0), (9, 77))]
    >>> for command in dispatches_of("orders", 0, Scan(4, 10, Units.of(units))):
    ...     print(command.ranges, command.skip)
    [WrittenRange(first=5, last=6, tag=0, count=1, deliver_at_ms=0), \
WrittenRange(first=9, last=9, tag=77, count=1, deliver_at_ms=0)] [(4, 4), (7, 8)]
    """
    ranges: list[WrittenRange] = []
    skip: list[OffsetRange] = []
    start = scan.first_offset
    for first, end, facts in _pieces(scan):
        if len(ranges) + len(skip) == PIECES_MAX or (end - start > SPAN_MAX and first > start):
            yield Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges, skip=skip)
            ranges, skip, start = [], [], first
        if facts is None:
            skip.append((first, end - 1))
        else:
            ranges.append(WrittenRange(first, end - 1, *facts))
    if ranges or skip:
        yield Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges, skip=skip)


def skips_of(topic: str, queue_id: int, first_offset: int, end_offset: int) -> Iterator[Dispatch]:
    """Yield the commands that declare [first_offset, end_offset) gone, for instance by retention."""
    skip = [(first, end - 1) for first, end in _cut(first_offset, end_offset)]
    for at in range(0, len(skip), SKIPS_MAX):
        yield Dispatch(v=1, topic=topic, queue_id=queue_id, skip=skip[at : at + SKIPS_MAX])


def _pieces(scan: Scan) -> Iterator[tuple[int, int, tuple[int, int, int] | None]]:
    """Yield (first, end, (tag hash, inner count, deliver_at_ms) or None for a hole), at most RANGE_OFFSETS_MAX long."""
    units, is_kept = scan.units, scan.units.duplicate_of == NO_DUPLICATE
    offsets, tags, counts, times = (
        column[is_kept] for column in (units.queue_offset, units.tag_hash, units.inner_count, units.deliver_at_ms)
    )
    is_new_run = np.ones(len(offsets), np.bool_)
    is_new_run[1:] = (
        (np.diff(offsets) != 1) | (tags[1:] != tags[:-1]) | (counts[1:] != counts[:-1]) | (times[1:] != times[:-1])
    )
    rows = np.flatnonzero(is_new_run)
    lasts = offsets[np.append(rows[1:], len(offsets)) - 1] if len(rows) else offsets
    columns = (offsets[rows], lasts + 1, tags[rows], counts[rows], times[rows])
    at = scan.first_offset
    for first, end, *facts in zip(*(column.tolist() for column in columns), strict=True):
        for hole in _cut(at, first):
            yield *hole, None
        for part in _cut(first, end):
            yield *part, (facts[0], facts[1], facts[2])
        at = end
    for hole in _cut(at, scan.end_offset):
        yield *hole, None


def _cut(first: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(first, end, RANGE_OFFSETS_MAX):
        yield at, min(at + RANGE_OFFSETS_MAX, end)
