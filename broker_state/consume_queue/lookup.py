"""Lookups of units by queue offset, message offset, store time and key; holes and counts.

A lookup descends the tree of summaries: one page per level (64 children), then a block.
By queue offset or message offset the result is an `Absence` where there is no unit.

By store time both bounds are exact whatever the times, which Kafka does not keep in order:

    LOWER   the first unit with time >= t: all before it are older, so a reader that begins there misses none from t on
    UPPER   the last unit with time <= t: all after it are newer, so a reader that ends there misses none up to t

Where times run backwards there may be older units after LOWER, and newer ones before UPPER. The two never cross: UPPER
is at or after the unit before LOWER.
"""

import enum
from collections.abc import Callable, Iterator

from broker_state.consume_queue.block import Block
from broker_state.consume_queue.key_filter import may_contain
from broker_state.consume_queue.queue_record import BLOCK, FILTER, ConsumeQueue, Get, Place
from broker_state.consume_queue.summary import Summary, decode_page
from broker_state.consume_queue.unit import Unit, Units
from popstream.wire.base_errors import Corrupt
from popstream.wire.limits import OFFSET_MAX

__all__ = [
    "Absence",
    "first_unit_since",
    "holes",
    "last_unit_until",
    "latest_time_ms",
    "message_base_at",
    "message_count",
    "unit_at_or_after",
    "unit_of_message",
    "units_between",
    "units_from",
    "units_with_key",
]


class Absence(enum.StrEnum):
    """The reason why there is not a unit at an offset."""

    BELOW_START = "BELOW_START"
    """The offset left the log, or was never in the queue."""
    HOLE = "HOLE"
    """The log was scanned there, and has no record."""
    BEYOND_END = "BEYOND_END"
    """The log was not scanned there yet, or no unit follows."""


def unit_at_or_after(queue: ConsumeQueue, get: Get, queue_offset: int) -> Unit | Absence:
    """Return the first unit at or after `queue_offset`; below the start of the queue, the first of all."""
    return next(units_from(queue, get, queue_offset), Absence.BEYOND_END)


def units_from(queue: ConsumeQueue, get: Get, queue_offset: int) -> Iterator[Unit]:
    """Yield the units at or after `queue_offset`, in order."""
    for block in _blocks(queue, get, lambda summary: summary.last_offset >= queue_offset):
        for row in range(block.row_at_or_after(queue_offset), block.unit_count):
            yield block.unit(row)


def units_between(queue: ConsumeQueue, get: Get, first_offset: int, end_offset: int) -> Units:
    """Return the units of [first_offset, end_offset) as columns."""

    def is_within(summary: Summary) -> bool:
        return summary.last_offset >= first_offset and summary.first_offset < end_offset

    pieces = [block.scan.units.between(first_offset, end_offset) for block in _blocks(queue, get, is_within)]
    return Units.joined(pieces) if pieces else Units.of([])


def unit_of_message(queue: ConsumeQueue, get: Get, message_offset: int) -> Unit | Absence:
    """Return the unit that contains a message offset: message base <= message offset < message base + inner count."""
    if message_offset < queue.start_message_base:
        return Absence.BELOW_START
    if message_offset >= queue.end_message_base:
        return Absence.BEYOND_END
    for block in _blocks(queue, get, lambda summary: summary.message_base <= message_offset < summary.message_end):
        row = int(block.message_bases.searchsorted(message_offset, side="right")) - 1
        unit = block.unit(row)
        if message_offset < unit.message_end:
            return unit
    return Absence.HOLE


def first_unit_since(queue: ConsumeQueue, get: Get, store_time_ms: int) -> Unit | None:
    """Return LOWER: the first unit that was stored at `store_time_ms` or later."""
    for block in _blocks(queue, get, lambda summary: summary.time_ms_max >= store_time_ms):
        return block.unit(int((block.store_times_ms >= store_time_ms).argmax()))
    return None


def last_unit_until(queue: ConsumeQueue, get: Get, store_time_ms: int) -> Unit | None:
    """Return UPPER: the last unit that was stored at `store_time_ms` or earlier."""
    for block in _blocks(queue, get, lambda summary: summary.time_ms_min <= store_time_ms, newest_first=True):
        from_last = int((block.store_times_ms[::-1] <= store_time_ms).argmax())
        return block.unit(block.unit_count - 1 - from_last)
    return None


def latest_time_ms(queue: ConsumeQueue, get: Get) -> int | None:
    """Return the greatest store time of all units; None: there are none. Reads one page."""
    tops = (_children(get, queue.top_level, number) for number in queue.numbers(queue.top_level))
    return max((summary.time_ms_max for children in tops for _, summary in children), default=None)


def units_with_key(
    queue: ConsumeQueue, get: Get, key_hash: int, first_offset: int = 0, end_offset: int = OFFSET_MAX + 1
) -> Iterator[Unit]:
    """Yield the units of [first_offset, end_offset) that have the key, the newest first.

    Reads a filter of about 1.3 kB for each 1024 queue offsets, and the blocks that it cannot rule out.
    """

    def is_within(summary: Summary) -> bool:
        return summary.last_offset >= first_offset and summary.first_offset < end_offset

    def may_have_key(block_no: int) -> bool:
        stored = get(Place(FILTER, block_no))
        return stored is not None and may_contain(stored, key_hash)

    if not key_hash:
        return
    for block in _blocks(queue, get, is_within, newest_first=True, is_wanted=may_have_key):
        for row in reversed(block.rows_with_key(key_hash)):
            if first_offset <= block.queue_offsets[row] < end_offset:
                yield block.unit(row)


def holes(queue: ConsumeQueue, get: Get, first_offset: int, end_offset: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open runs of [first_offset, end_offset) that have no unit, as far as the log was scanned."""
    at, end = max(first_offset, queue.start_offset), min(end_offset, queue.end_offset)
    for part in _cover(queue, get, at, end, lambda summary: summary.is_dense):
        runs = part.written_runs() if isinstance(part, Block) else [(part.first_offset, part.last_offset + 1)]
        for run_first, run_end in runs:
            if run_first >= end:
                break
            if run_first > at:
                yield at, run_first
            at = max(at, run_end)
    if at < end:
        yield at, end


def message_count(queue: ConsumeQueue, get: Get, first_offset: int, end_offset: int) -> int:
    """Return the exact count of messages in [first_offset, end_offset), from summaries and at most two blocks."""

    def is_inside(summary: Summary) -> bool:
        return first_offset <= summary.first_offset and summary.last_offset < end_offset

    count = 0
    for part in _cover(queue, get, first_offset, end_offset, is_inside):
        if isinstance(part, Block):
            rows = slice(part.row_at_or_after(first_offset), part.row_at_or_after(end_offset))
            count += int(part.inner_counts[rows].sum())
        else:
            count += part.message_count
    return count


def message_base_at(queue: ConsumeQueue, get: Get, queue_offset: int) -> int:
    """Return the message base of a unit at `queue_offset`: on batch queues the running count of messages before it."""
    if queue.queue_type != "batch":
        return queue_offset
    if queue_offset <= queue.start_offset:
        return queue.start_message_base
    if queue_offset >= queue.end_offset:
        return queue.end_message_base
    unit = unit_at_or_after(queue, get, queue_offset)
    return unit.message_base if isinstance(unit, Unit) else queue.end_message_base


def _blocks(
    queue: ConsumeQueue,
    get: Get,
    is_of_interest: Callable[[Summary], bool],
    *,
    newest_first: bool = False,
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[Block]:
    """Yield the blocks of interest, found through pages of interest."""
    waiting = [(queue.top_level, number) for number in queue.numbers(queue.top_level)]
    while waiting:
        level, number = waiting.pop()
        if level == BLOCK:
            if is_wanted(number):
                yield _block(get, number)
            continue
        children = [child for child, summary in _children(get, level, number) if is_of_interest(summary)]
        waiting += [(level - 1, child) for child in (children if newest_first else reversed(children))]


def _cover(
    queue: ConsumeQueue, get: Get, first_offset: int, end_offset: int, is_enough: Callable[[Summary], bool]
) -> Iterator[Summary | Block]:
    """Yield what covers [first_offset, end_offset), in order: summaries where they are enough, else blocks."""
    top_level = queue.top_level
    waiting: list[tuple[int, int, Summary | None]] = [(top_level, number, None) for number in queue.numbers(top_level)]
    while waiting:
        level, number, summary = waiting.pop()
        if summary is not None and is_enough(summary):
            yield summary
        elif level == BLOCK:
            yield _block(get, number)
        else:
            waiting += [
                (level - 1, child, part)
                for child, part in reversed(_children(get, level, number))
                if part.last_offset >= first_offset and part.first_offset < end_offset
            ]


def _children(get: Get, level: int, number: int) -> list[tuple[int, Summary]]:
    stored = get(Place(level, number))
    return [] if stored is None else list(decode_page(number, stored).items())


def _block(get: Get, block_no: int) -> Block:
    stored = get(Place(BLOCK, block_no))
    if stored is None:
        message = (
            f"block {block_no} of a consume queue is missing, and its page says that it has units: rebuild the queue"
        )
        raise Corrupt(message, subject="consume queue")
    return Block(block_no, stored)
