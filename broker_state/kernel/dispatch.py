"""`dispatch`: offsets are written or skipped; the queue's commit position and min offset move (docs/semantics.md)."""

from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.validation import is_range
from broker_state.store.facts import UnitFacts
from broker_state.store.pages import PAGE_SHIFT, UnitFactsPage, windows
from broker_state.store.segment import SEGMENT_SHIFT
from popstream.wire.answer import Run
from popstream.wire.command import Dispatch, WrittenRange
from popstream.wire.limits import DELAY_MS_MAX, INT64_MAX, RANGE_OFFSETS_MAX, TAG_HASH_MAX, UNIT_MESSAGES_MAX
from popstream.wire.reason import Reason, code_of

__all__ = ["decide_dispatch"]

DISPATCH_COST_MAX = 20_000
"""What one record may spend: 1 for each range and 1 for each 4,096 of its offsets, or, of a range with a tag, a count
or a time, 2 and 1 for each page of 64; of a skip 1, and 3 for each 4,096 offsets, which are marked twice, but for those
in which the skip before it ended. About 100 ms. The longest range costs less: the first of a record is always decided.
"""
DISPATCH_PIECES_MAX = 10_000
"""Runs of offsets not known before of which skips, and ranges with a tag, a count or a time, may consist in one record.
A range is marked up to there, and the rest when it is sent again. About 50 ms."""


def decide_dispatch(op: OpContext, command: Dispatch) -> None:
    """Mark offsets as written, or as holes, range by range."""
    queue = op.queue
    if command.topic_id not in (None, queue.record.topic_id):
        op.refuse(Reason.INVALID_PARAMETER, f"the queue is of topic id {queue.record.topic_id}")
        return
    runs: list[Run] = []
    left = _Left()
    for index, written in enumerate(command.ranges):
        reason, applied = Reason.INVALID_PARAMETER, False
        if _is_valid(written):
            facts = _facts_of(written, op.now_ms)
            cost_of_range, shift = (2, SEGMENT_SHIFT) if facts is None else (3, PAGE_SHIFT)
            cost = cost_of_range + (written.last >> shift) - (written.first >> shift)
            reason = _judge_range(queue, written.first, written.last, cost, left)
        if reason is Reason.OK:
            left.cost -= cost
            reached, applied = _write(queue, written.first, written.last + 1, facts, left)
            reason = Reason.OK if reached > written.last else Reason.AHEAD_OF_WINDOW
        _append_run(op, runs, index, written.first, written.last, reason, applied=applied)
    segment_before = -1
    for index, (first, last) in enumerate(command.skip, len(command.ranges)):
        first_segment, last_segment = first >> SEGMENT_SHIFT, last >> SEGMENT_SHIFT
        cost = 1 + 3 * (last_segment - first_segment + (first_segment != segment_before))
        reason, applied = _judge_range(queue, first, last, cost, left, is_skip=True), False
        if reason is Reason.OK:
            left.cost -= cost
            segment_before = last_segment
            reached, applied = _skip(queue, first, last + 1, left)
            reason = Reason.OK if reached > last else Reason.AHEAD_OF_WINDOW
        _append_run(op, runs, index, first, last, reason, applied=applied)
    op.serve_watching = True
    op.respond(
        next((run.reason for run in runs if run.code), Reason.OK),
        applied=any(run.applied for run in runs),
        runs=runs,
        commit_position=queue.written.floor,
    )


class _Left:
    """What the record may still spend on its ranges."""

    __slots__ = ("cost", "pieces")

    def __init__(self) -> None:
        self.cost = DISPATCH_COST_MAX
        self.pieces = DISPATCH_PIECES_MAX


def _judge_range(queue: QueueState, first: int, last: int, cost: int, left: _Left, *, is_skip: bool = False) -> Reason:
    if not is_range(first, last) or last - first >= RANGE_OFFSETS_MAX:
        return Reason.INVALID_PARAMETER
    if first < queue.record.min_offset and not is_skip:
        return Reason.BELOW_MIN
    if last >= queue.written.floor + queue.record.window_max or cost > left.cost or left.pieces <= 0:
        return Reason.AHEAD_OF_WINDOW
    return Reason.OK


def _append_run(
    op: OpContext, runs: list[Run], index: int, first: int, last: int, reason: Reason, *, applied: bool
) -> None:
    runs.append(Run(entry=index, first=first, last=last, code=code_of(reason), reason=reason, applied=applied))
    op.audit.operation(reason, applied=applied, entry=index, first=first, end=last + 1)


def _is_valid(written: WrittenRange) -> bool:
    return (
        0 <= written.tag <= TAG_HASH_MAX
        and 1 <= written.count <= UNIT_MESSAGES_MAX
        and 0 <= written.deliver_at_ms <= INT64_MAX
    )


def _facts_of(written: WrittenRange, now_ms: int) -> UnitFacts | None:
    """Return the facts to keep about units, None if there are none; a delivery time that has come is none."""
    deliver_at_ms = min(written.deliver_at_ms, now_ms + DELAY_MS_MAX) if written.deliver_at_ms > now_ms else 0
    if written.tag or written.count != 1 or deliver_at_ms:
        return UnitFacts(written.tag, written.count, deliver_at_ms)
    return None


def _write(queue: QueueState, first: int, end: int, facts: UnitFacts | None, left: _Left) -> tuple[int, bool]:
    """Mark [first, end) as written; return up to where that was done, and whether it changed anything."""
    if facts is not None:
        queue.record.has_unit_facts = True
        for low, high in queue.written.iter_unmarked(first, end):
            if left.pieces <= 0:
                end = low
                break
            left.pieces -= 1
            queue.tag_index.add(facts, low >> PAGE_SHIFT, ((high - 1) >> PAGE_SHIFT) + 1)
            for page_no, page_first, page_end in windows(low, high):
                page = queue.unit_facts(page_no) or UnitFactsPage(page_no, [])
                page.replace(page_first, page_end, facts)
                queue.set_unit_facts(page)
    return end, queue.written.mark(first, end) > 0


def _skip(queue: QueueState, first: int, end: int, left: _Left) -> tuple[int, bool]:
    """Declare [first, end) holes; offsets of it that had been written are gone from the log.

    Return up to where that was done, and whether it changed anything.
    """
    record = queue.record
    if first <= record.min_offset:
        return _raise_min(queue, end, left)
    changed = False
    at = first
    for low, high in queue.written.iter_unmarked(first, end):
        if left.pieces <= 0:
            end = at
            break
        left.pieces -= 1
        if at < low:
            changed |= _skip_written(queue, at, low)
        record.holes += queue.holes.add(low, high)
        changed = True
        at = high
    if at < end:
        changed |= _skip_written(queue, at, end)
    queue.written.mark(first, end)
    return end, changed


def _raise_min(queue: QueueState, end: int, left: _Left) -> tuple[int, bool]:
    record = queue.record
    if end <= record.min_offset:
        return end, False
    for low, high in queue.written.iter_unmarked(record.min_offset, end):
        if left.pieces <= 0:
            end = low
            break
        left.pieces -= 1
        record.holes += queue.holes.add(low, high)
    queue.written.mark(record.min_offset, end)
    record.min_offset = end
    return end, True


def _skip_written(queue: QueueState, first: int, end: int) -> bool:
    added = queue.holes.add(first, end)
    if not added:
        return False
    queue.record.holes += added
    queue.add_late_skip(first, end)
    return True
