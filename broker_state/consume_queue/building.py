"""Changes of a queue: it grows, is truncated, and loses its start to retention.

Each function returns a `Revision`: the new record, and the values to write with it in one WriteBatch. The values depend
only on the record and the units of [start, end): a queue that was truncated and rebuilt has the same bytes as before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from broker_state.consume_queue.block import BLOCK_OFFSETS, BLOCK_SHIFT, Block, encode_block
from broker_state.consume_queue.key_filter import encode_key_filter
from broker_state.consume_queue.lookup import message_base_at
from broker_state.consume_queue.queue_record import BLOCK, FILTER, PAGE_SHIFT, ConsumeQueue, Get, Place
from broker_state.consume_queue.scan import Scan, merge
from broker_state.consume_queue.summary import Summary, decode_page, encode_page, summary_of, total

__all__ = ["Revision", "append", "move_start", "number_messages", "truncate"]


@dataclass(frozen=True, slots=True)
class Revision:
    """The new record of a queue, with the values to delete and then those to write (None: to delete)."""

    queue: ConsumeQueue
    deletes: list[tuple[int, range]] = field(default_factory=list)
    """(kind of the place, its numbers); as ranges, since there may be many."""
    writes: dict[Place, bytes | None] = field(default_factory=dict)


def number_messages(queue: ConsumeQueue, get: Get, scan: Scan) -> Scan:
    """Return the scan with the message bases of its units; it must begin at or before the end of the queue."""
    scan = scan.cut(queue.start_offset, scan.end_offset)
    units = scan.units
    bases = units.queue_offset
    if queue.queue_type == "batch":
        bases = np.cumsum(units.inner_count) - units.inner_count + message_base_at(queue, get, scan.first_offset)
    return Scan(scan.first_offset, scan.end_offset, replace(units, message_base=bases))


def append(queue: ConsumeQueue, get: Get, scan: Scan) -> Revision:
    """Append a scan to the queue. Offsets that were scanned before must be equal, and change nothing.

    The part below the start of the queue is left out.

    Raises:
        ContradictionError: The scan differs at offsets that were scanned before.
        ValueError: It begins after the end of the queue, or has units that a queue of this type cannot have.
    """
    if scan.first_offset > queue.end_offset:
        message = f"the queue was scanned to {queue.end_offset}, and this begins at {scan.first_offset}"
        raise ValueError(message)
    _check_units(queue, scan)
    scan = scan.cut(queue.start_offset, scan.end_offset)
    if scan.first_offset >= scan.end_offset:
        return Revision(queue)
    fresh = scan.cut(queue.end_offset, scan.end_offset).units
    end_base = int(fresh.message_base[-1] + fresh.inner_count[-1]) if len(fresh) else queue.end_message_base
    after = queue
    if scan.end_offset > queue.end_offset:
        base = end_base if queue.queue_type == "batch" else scan.end_offset
        after = msgspec.structs.replace(queue, end_offset=scan.end_offset, end_message_base=base)
    changed = {block_no: _merged(queue, get, block_no, piece) for block_no, piece in _pieces(queue, scan)}
    return _revise(queue, after, get, changed)


def truncate(queue: ConsumeQueue, get: Get, end_offset: int) -> Revision:
    """Remove `end_offset` and all after it from the queue; appending the same again restores it."""
    if end_offset >= queue.end_offset:
        return Revision(queue)
    end = max(end_offset, queue.start_offset)
    after = msgspec.structs.replace(queue, end_offset=end, end_message_base=message_base_at(queue, get, end))
    return _revise(queue, after, get, _trimmed(queue, after, get, (end - 1) >> BLOCK_SHIFT))


def move_start(queue: ConsumeQueue, get: Get, start_offset: int) -> Revision:
    """Remove all below `start_offset`, where the log begins now; the anchor moves with it."""
    if start_offset <= queue.start_offset:
        return Revision(queue)
    base = message_base_at(queue, get, start_offset)
    after = msgspec.structs.replace(
        queue,
        start_offset=start_offset,
        start_message_base=base,
        end_offset=max(start_offset, queue.end_offset),
        end_message_base=max(base, queue.end_message_base),
    )
    return _revise(queue, after, get, _trimmed(queue, after, get, start_offset >> BLOCK_SHIFT))


def _check_units(queue: ConsumeQueue, scan: Scan) -> None:
    units = scan.units
    if not len(units):
        return
    if not units.is_whole:
        message = "the columns of units have their types and one length"
        raise ValueError(message)
    offsets, bases, counts = units.queue_offset, units.message_base, units.inner_count
    ends = bases + counts
    is_in_order = bool((offsets[1:] > offsets[:-1]).all()) and bool((bases[1:] >= ends[:-1]).all())
    if not is_in_order or offsets[0] < scan.first_offset or offsets[-1] >= scan.end_offset:
        message = "units are in order of their queue offsets and messages, within what was scanned"
        raise ValueError(message)
    if counts.min() < 1 or (counts[~units.is_readable] != 1).any() or units.size_bytes.min() < 0:
        message = "a unit has a size and at least one message, one that is not readable has one"
        raise ValueError(message)
    if queue.queue_type != "batch" and not (np.array_equal(bases, offsets) and counts.max() == 1):
        message = f"a unit of a {queue.queue_type} queue is one message, at its queue offset"
        raise ValueError(message)
    at_end = np.searchsorted(offsets, queue.end_offset)
    if at_end < len(units) and bases[at_end] < queue.end_message_base:
        message = f"the messages of the queue are counted to {queue.end_message_base}, and these from {bases[at_end]}"
        raise ValueError(message)


def _pieces(queue: ConsumeQueue, scan: Scan) -> Iterator[tuple[int, Scan]]:
    """Yield the scan by blocks: those with units of it, and those that the queue has scanned in part."""
    block_nos = scan.units.queue_offset >> BLOCK_SHIFT
    known_end = min(queue.end_offset, scan.end_offset)
    known = range(scan.first_offset >> BLOCK_SHIFT, (known_end - 1 >> BLOCK_SHIFT) + 1)
    numbers = sorted({*np.unique(block_nos).tolist(), *known})
    first_rows, end_rows = (np.searchsorted(block_nos, numbers, side).tolist() for side in ("left", "right"))
    for block_no, first_row, end_row in zip(numbers, first_rows, end_rows, strict=True):
        origin = block_no << BLOCK_SHIFT
        first, end = max(scan.first_offset, origin), min(scan.end_offset, origin + BLOCK_OFFSETS)
        yield block_no, Scan(first, end, scan.units.rows(first_row, end_row))


def _merged(queue: ConsumeQueue, get: Get, block_no: int, piece: Scan) -> Scan:
    """Return the scan of a block: the piece joined with what the queue has of it."""
    origin = block_no << BLOCK_SHIFT
    first, end = max(queue.start_offset, origin), min(queue.end_offset, origin + BLOCK_OFFSETS)
    if first >= end:
        return piece
    stored = get(Place(BLOCK, block_no))
    known = Scan(first, end, piece.units.rows(0, 0)) if stored is None else Block(block_no, stored).scan
    return merge(known, piece)


def _trimmed(before: ConsumeQueue, after: ConsumeQueue, get: Get, block_no: int) -> Mapping[int, Scan]:
    """Return the block at the new edge of the queue, without the part outside."""
    is_in_both = block_no in before.numbers(BLOCK) and block_no in after.numbers(BLOCK)
    stored = get(Place(BLOCK, block_no)) if is_in_both else None
    if stored is None:
        return {}
    return {block_no: Block(block_no, stored).scan.cut(after.start_offset, after.end_offset)}


def _revise(before: ConsumeQueue, after: ConsumeQueue, get: Get, changed: Mapping[int, Scan]) -> Revision:
    """Write the changed blocks and the pages above them, and delete all places outside the queue."""
    writes: dict[Place, bytes | None] = {}
    summaries: dict[int, Summary | None] = {}
    is_cut = after.start_offset > before.start_offset or after.end_offset < before.end_offset
    for block_no, scan in changed.items():
        units, keys = scan.units, scan.units.key_hashes()
        if len(units) or is_cut:
            writes[Place(BLOCK, block_no)] = encode_block(scan) if len(units) else None
        if len(keys) or is_cut:
            writes[Place(FILTER, block_no)] = encode_key_filter(keys) if len(keys) else None
        summaries[block_no] = summary_of(units) if len(units) else None
    for level in range(1, after.top_level + 1):
        if level - 1 == before.top_level > 0:
            old_top = before.numbers(level - 1)[0]
            summaries.setdefault(old_top, _total(_children(before, get, level - 1, old_top)))
        summaries = _revise_pages(before, after, get, level, summaries, writes)
    top = next(iter(summaries.values())) if after.top_level else None
    unit_count, message_count = (top.unit_count, top.message_count) if top else (0, 0)
    queue = msgspec.structs.replace(after, unit_count=unit_count, message_count=message_count)
    return Revision(queue, _outside(before, after), writes)


def _revise_pages(
    before: ConsumeQueue,
    after: ConsumeQueue,
    get: Get,
    level: int,
    changed: Mapping[int, Summary | None],
    writes: dict[Place, bytes | None],
) -> dict[int, Summary | None]:
    """Write the pages of a level over changed children, at an edge that moved inwards, and at the top; sum them up."""
    numbers, child_numbers = after.numbers(level), after.numbers(level - 1)
    touched = {child >> PAGE_SHIFT for child in changed}
    if after.start_offset > before.start_offset:
        touched.add(numbers[0])
    if after.end_offset < before.end_offset or level == after.top_level:
        touched.add(numbers[-1])
    summaries: dict[int, Summary | None] = {}
    for number in sorted(touched):
        known = _children(before, get, level, number)
        places = range(number << PAGE_SHIFT, (number + 1) << PAGE_SHIFT)
        revised = known | {child: changed[child] for child in places if child in changed}
        children = {child: part for child, part in revised.items() if part is not None and child in child_numbers}
        if children or known:
            writes[Place(level, number)] = encode_page(children) if children else None
        summaries[number] = _total(children)
    return summaries


def _children(queue: ConsumeQueue, get: Get, level: int, number: int) -> dict[int, Summary]:
    """Return the children of a page of the queue; none without such a page."""
    is_stored = level <= queue.top_level and number in queue.numbers(level)
    stored = get(Place(level, number)) if is_stored else None
    return {} if stored is None else decode_page(number, stored)


def _total(children: Mapping[int, Summary]) -> Summary | None:
    return total([children[child] for child in sorted(children)]) if children else None


def _outside(before: ConsumeQueue, after: ConsumeQueue) -> list[tuple[int, range]]:
    """Return the places of `before` that `after` does not have."""
    deletes: list[tuple[int, range]] = []
    for level in range(before.top_level + 1 if before.top_level else 0):
        was = before.numbers(level)
        now = after.numbers(level) if level <= after.top_level else range(0)
        gone = [range(was.start, min(now.start, was.stop)), range(max(now.stop, was.start), was.stop)] if now else [was]
        for numbers in gone:
            if numbers:
                deletes.append((level, numbers))
                if level == BLOCK:
                    deletes.append((FILTER, numbers))
    return deletes
