"""A lane accounts for offsets that left the log, or became holes, since its last operation."""

from typing import Final

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import PAUSE_MS, OpContext
from broker_state.kernel.lanes.concurrent_grant import absorb_holes
from broker_state.kernel.lanes.lease_end import ack_range, release_client
from broker_state.kernel.lanes.orderly_lane import expire_members, note_operation, settle_batch
from broker_state.store.facts import DeliveryState
from broker_state.store.pages import windows
from broker_state.store.segment import SEGMENT_SHIFT

__all__ = ["begin_on_lane", "catch_up"]

_LEASED: Final = DeliveryState.LEASED
_SKIP_COST: Final = 3
_PAGE_COST: Final = 3
_MEMBER_PAGE_COST: Final = 4
"""What it costs to look at a late skip, at a page of 64 offsets with what has left the log, besides its runs, and at a
page of members of an orderly lane."""


def begin_on_lane(op: OpContext, lane: LaneState) -> None:
    """Begin an operation on the lane: touch it, and bring it up to date with its queue, as far as one record may."""
    op.touch(lane)
    catch_up(op, lane)
    if lane.record.orderly:
        note_operation(lane, op.now_ms)


def catch_up(op: OpContext, lane: LaneState) -> bool:
    """Account for what left the log since the lane's last operation; return whether all is accounted for.

    A record does no more of it than `work_left` allows. The lane pauses while some is left, and each of its records
    goes on with it: no pop is served, and no lease expires, but entries are judged by the deliveries as they are.
    """
    if lane.record.paused_until_ms and lane.returning and not _release_returned(op, lane):
        op.touch(lane)
        op.pause(lane)
        return False
    if not lane.is_behind:
        return True
    op.touch(lane)  # also for a refused entry: the counts below must be stored together with the bits
    is_done = (_catch_up_in_order if lane.record.orderly else _catch_up)(op, lane)
    if not is_done:
        op.pause(lane)
    return is_done


def _catch_up(op: OpContext, lane: LaneState) -> bool:
    record = lane.record
    queue = lane.queue.record
    if record.min_seen < queue.min_offset:
        if op.work_left <= 0:  # the record may name thousands of lanes
            return False
        if not _expire_handed_out(op, lane, lane.acked.floor, queue.min_offset):
            return False
        if record.next_offset < queue.min_offset and not _skip_fresh(op, lane, queue.min_offset):
            return False
        record.min_seen = queue.min_offset
    if lane.acked.floor == record.next_offset:
        record.late_skips_seen = queue.late_skips  # nothing is handed out that they could end
    while record.late_skips_seen < queue.late_skips:
        if op.work_left <= 0:
            return False
        op.work_left -= _SKIP_COST
        skip = lane.queue.late_skip(record.late_skips_seen)
        if not _expire_handed_out(op, lane, skip.first, skip.end):
            return False
        record.late_skips_seen += 1
    return absorb_holes(op, lane)


def _catch_up_in_order(op: OpContext, lane: LaneState) -> bool:
    record, queue = lane.record, lane.queue.record
    has_news = record.min_seen < queue.min_offset
    if has_news or record.late_skips_seen < queue.late_skips:
        if op.work_left <= 0:
            return False
        op.work_left -= _MEMBER_PAGE_COST * lane.order_info.page_count
        if record.paused_until_ms > op.now_ms + PAUSE_MS:
            lane.pause(0)  # the message for whose delivery time it waits may have left the log
    if has_news:
        expire_members(op, lane, 0, queue.min_offset, is_prefix=True)
        record.min_seen = queue.min_offset
    head = lane.order_info.head
    if not head.member_count:
        record.late_skips_seen = queue.late_skips  # there are no members that they could end
    has_news = has_news or record.late_skips_seen < queue.late_skips
    while record.late_skips_seen < queue.late_skips:
        if op.work_left <= 0:
            return False
        op.work_left -= _SKIP_COST
        skip = lane.queue.late_skip(record.late_skips_seen)
        first, end = max(skip.first, head.first), min(skip.end, head.end)
        if first < end:
            op.work_left -= min(end - first, head.member_count)
            expire_members(op, lane, first, end, is_prefix=False)
        record.late_skips_seen += 1
    if has_news:  # once all is accounted for: what has left the log must not expire with a batch that is due
        settle_batch(op, lane)
    return lane.acked.floor < record.next_offset or absorb_holes(op, lane)


def _release_returned(op: OpContext, lane: LaneState) -> bool:
    """Go on with the release of what clients have returned; return whether all is released."""
    clients = lane.returning
    while clients and release_client(op, lane, clients[0])[1]:
        clients.pop(0)
    lane.set_returning(clients)
    return not clients


def _expire_handed_out(op: OpContext, lane: LaneState, first: int, end: int) -> bool:
    """End the deliveries of [first, end) that are not acked, segment by segment; return whether all have ended."""
    at, end = max(first, lane.acked.floor), min(end, lane.record.next_offset)
    while at < end:
        if op.work_left <= 0:
            return False
        op.work_left -= 1
        stop = min(end, ((at >> SEGMENT_SHIFT) + 1) << SEGMENT_SHIFT)
        for low, high in lane.acked.unmarked(at, stop):
            for page_no, page_first, page_end in windows(low, high):
                _expire_page(op, lane, page_no, page_first, page_end)
            lane.record.expired_from_log += high - low
            ack_range(lane, low, high)
        at = max(stop, lane.acked.floor)
    return True


def _expire_page(op: OpContext, lane: LaneState, page_no: int, first: int, end: int) -> None:
    record = lane.record
    page = lane.page(page_no)
    assert page is not None, "an offset below next_offset is acked or in a page"
    for at, stop, delivery in page.within(first, end):
        assert delivery is not None, "an offset below next_offset is acked or in a page"
        if delivery.state == _LEASED:
            record.leased -= stop - at
        else:
            record.available -= stop - at
        if delivery.attempt:  # not if it was put off, and never delivered
            op.audit.step(lane, DeliveryStep.EXPIRED_FROM_LOG, at, stop, delivery, cause="log_start")
        op.work_left -= 1
    op.work_left -= _PAGE_COST
    page.replace(first, end, None)
    lane.settle(page)


def _skip_fresh(op: OpContext, lane: LaneState, end: int) -> bool:
    """Pass the offsets below `end` that were never handed out, and count the messages; return whether all are passed.

    While messages before them are not acked, each 4,096 cost a segment.
    """
    record = lane.record
    first = record.next_offset
    stop = op.spend_on_segments(lane, first, end)
    op.work_left -= 1
    op.spend_on_gap(first, stop)
    holes = lane.queue.count_holes(first, stop)
    lane.acked.mark(first, stop)
    record.holes += holes
    record.acked += stop - first - holes
    record.expired_from_log += stop - first - holes
    record.next_offset = stop
    return stop == end
