"""A lane accounts for offsets that left the log, or became holes, since its last operation."""

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import LaneState
from broker_state.kernel.lanes.concurrent_grant import absorb_holes
from broker_state.kernel.lanes.lease_end import ack_range
from broker_state.kernel.lanes.orderly_lane import expire_members, note_operation, settle_batch
from broker_state.store.facts import DeliveryState
from broker_state.store.pages import windows

__all__ = ["catch_up", "enter"]

_LEASED = DeliveryState.LEASED


def enter(op: OpContext, lane: LaneState) -> None:
    """Begin an operation on the lane: touch it, and bring it up to date with its queue."""
    op.touch(lane)
    catch_up(op, lane)
    if lane.record.orderly:
        note_operation(lane, op.now_ms)


def catch_up(op: OpContext, lane: LaneState) -> None:
    """Account for what left the log since the lane's last operation."""
    if not lane.is_behind:
        return
    op.touch(lane)  # also for a refused entry: the counts below must be stored together with the bits
    record = lane.record
    queue = lane.queue.record
    if record.orderly:
        _catch_up_in_order(op, lane)
        return
    if record.min_seen < queue.min_offset:
        record.expired_from_log += _expire_handed_out(op, lane, lane.acked.floor, queue.min_offset)
        if record.next_offset < queue.min_offset:
            record.expired_from_log += _skip_fresh(lane, queue.min_offset)
        record.min_seen = queue.min_offset
    if lane.acked.floor == record.next_offset:
        record.late_skips_seen = queue.late_skips  # nothing is handed out that they could end
    while record.late_skips_seen < queue.late_skips:
        skip = lane.queue.late_skip(record.late_skips_seen)
        record.expired_from_log += _expire_handed_out(op, lane, skip.first, skip.end)
        record.late_skips_seen += 1
    absorb_holes(lane)


def _catch_up_in_order(op: OpContext, lane: LaneState) -> None:
    record, queue = lane.record, lane.queue.record
    has_news = record.min_seen < queue.min_offset
    if has_news:
        expire_members(op, lane, 0, queue.min_offset, is_prefix=True)
        record.min_seen = queue.min_offset
    if not lane.order_info.head.member_count:
        record.late_skips_seen = queue.late_skips  # there are no members that they could end
    has_news = has_news or record.late_skips_seen < queue.late_skips
    while record.late_skips_seen < queue.late_skips:
        skip = lane.queue.late_skip(record.late_skips_seen)
        expire_members(op, lane, skip.first, skip.end, is_prefix=False)
        record.late_skips_seen += 1
    if has_news:  # once all is accounted for: what has left the log must not expire with a batch that is due
        settle_batch(op, lane)
    if lane.acked.floor == record.next_offset:
        absorb_holes(lane)


def _expire_handed_out(op: OpContext, lane: LaneState, first: int, end: int) -> int:
    """End the deliveries of [first, end) that are not acked; return how many messages they were."""
    record = lane.record
    gone = 0
    for low, high in lane.acked.unmarked(first, min(end, record.next_offset)):
        for page_no, page_first, page_end in windows(low, high):
            page = lane.page(page_no)
            assert page is not None, "an offset below next_offset is acked or in a page"
            for at, stop, delivery in page.within(page_first, page_end):
                assert delivery is not None, "an offset below next_offset is acked or in a page"
                if delivery.state == _LEASED:
                    record.leased -= stop - at
                else:
                    record.available -= stop - at
                op.audit.step(lane.record, DeliveryStep.EXPIRED_FROM_LOG, at, stop, delivery, cause="log_start")
            page.replace(page_first, page_end, None)
            lane.settle(page)
        gone += high - low
        ack_range(lane, low, high)
    return gone


def _skip_fresh(lane: LaneState, end: int) -> int:
    """Pass the offsets below `end` that were never handed out; return how many were messages, not holes."""
    record = lane.record
    first = record.next_offset
    holes = lane.queue.holes.count(first, end) if lane.queue.record.holes else 0
    lane.acked.mark(first, end)
    record.holes += holes
    record.acked += end - first - holes
    record.next_offset = end
    return end - first - holes
