"""declare, policy, reset_offset, forget_lane, redrive: operations on queues and lanes as a whole."""

from typing import Final

from broker_state.audit import DeliveryStep, EntryRange, OperationOutcome, shortened
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import PAUSE_MS, OpContext
from broker_state.kernel.context.queue_state import QueueState, erase_queue, new_queue
from broker_state.kernel.lanes.concurrent_grant import absorb_holes
from broker_state.kernel.lanes.orderly_lane import acked_within
from broker_state.kernel.lanes.skip_catch_up import begin_on_lane, catch_up
from broker_state.kernel.parked_pops import answer_all_parked
from broker_state.kernel.quotas import (
    count_new_lane,
    count_reset,
    exceeded_by_new_lane,
    exceeded_by_reset,
    is_refused,
    set_lane_quota,
    set_queue_quota,
)
from broker_state.kernel.validation import is_range
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.overlay import Overlay
from broker_state.store.state_records import LanePolicy, QueueRecord
from popstream.wire.command import Declare, ForgetLane, Policy, Redrive, ResetOffset
from popstream.wire.limits import ENTRIES_MAX
from popstream.wire.reason import Reason, code_of

__all__ = [
    "CLOSING",
    "close_lanes",
    "decide_declare",
    "decide_forget_lane",
    "decide_policy",
    "decide_redrive",
    "decide_reset_offset",
    "declare",
]

CLOSING: Final = "the lanes of the topic that had this name are being closed"
"""Detail of what is refused meanwhile."""

_CLOSE_COST: Final = 16
"""What it costs to close a lane, and to answer each pop that is parked in it."""

_COUNTED_OFFSETS_MAX: Final = 1 << 24
"""Handed out offsets that a reset looks through for messages that it skips, about 10 ms; it takes the rest for such."""


def declare(overlay: Overlay, command: Declare, now_ms: int) -> QueueState:
    """Make the queue of a first `declare`."""
    return new_queue(
        overlay,
        command.topic,
        command.queue_id,
        QueueRecord(
            topic_id=command.topic_id,
            queue_type=command.queue_type,
            now_ms=now_ms,
            min_offset=command.min_offset,
            commit_position=command.min_offset,
            written_above=0,
            has_counts=True,
            tags_indexed_from=0,
        ),
    )


def decide_declare(op: OpContext, command: Declare, *, is_new: bool) -> None:
    """Declare a queue: a new one, the same again, or another one under its name."""
    record = op.queue.record
    if record.topic_id != command.topic_id or record.closing_next:
        if not close_lanes(op):
            # It is answered as if it had come too early, and is not known when it comes again.
            op.is_undecided = True
            op.refuse(Reason.TOPIC_NOT_EXIST, CLOSING)
            return
        _replace_queue(op, command)
        is_new = True
    elif record.queue_type != command.queue_type:
        op.refuse(Reason.INVALID_PARAMETER, f"the queue is {record.queue_type}")
        return
    op.audit.operation(Reason.OK, applied=is_new, detail=command.topic_id)
    op.respond(Reason.OK, applied=is_new, commit_position=op.queue.written.floor)


def close_lanes(op: OpContext) -> bool:
    """Close the lanes of a topic that was deleted, as many as one record may; return whether none is left.

    Until then the queue does not exist for other records, which go on with it, as the queue's deadline does.
    """
    queue = op.queue
    record = queue.record
    number = record.closing_next or 1
    lanes: list[LaneState] = []
    while number < record.next_lane_no and op.work_left > 0:
        op.work_left -= 1
        lane = queue.lane_by_no(number)
        if lane is not None and lane.record.lane_no == number:  # else a lane that is gone, or an era of one
            op.work_left -= _CLOSE_COST * (1 + lane.record.parked)
            lanes.append(lane)
        number += 1
    for lane in sorted(lanes, key=lambda lane: lane.record.group.encode()):
        _close_lane(op, lane, Reason.TOPIC_NOT_EXIST)
    is_done = number == record.next_lane_no
    record.closing_next = number
    queue.go_on(0 if is_done else op.now_ms + PAUSE_MS)
    return is_done


def _close_lane(op: OpContext, lane: LaneState, reason: Reason) -> None:
    answer_all_parked(op, lane, reason)
    _end_all_leases(op, lane)
    op.forget(lane)
    op.queue.forget_lane(lane)


def _replace_queue(op: OpContext, command: Declare) -> None:
    """Begin the queue of the topic that has the name of a deleted one now; the lanes of that are closed."""
    old = op.queue
    erase_queue(old)
    queue = declare(old.overlay, command, op.now_ms)
    queue.follow(old)
    op.bind(queue)


def decide_policy(op: OpContext, command: Policy) -> None:
    """Set the policy of a lane, or of the queue and its lanes without one of their own."""
    queue = op.queue
    policy = LanePolicy(command.max_attempts, tuple(command.back_off_ms), command.parked_max, command.in_flight_max)
    if command.group is None:
        if command.orderly is not None:
            op.refuse(Reason.INVALID_PARAMETER, "orderly is of a lane: name its group")
            return
        queue.record.policy = policy
        queue.record.window_max = command.window_max
        set_queue_quota(queue, command)
        op.serve_watching = True
    else:
        known = queue.lane(command.group)
        if known is None and is_refused(op, exceeded_by_new_lane(op), command.group):
            return
        lane = known or _make_lane(op, command.group)
        catch_up(op, lane)
        record = lane.record
        changes_mode = command.orderly is not None and command.orderly != record.orderly
        # In a lane without a mode nothing is handed out.
        if changes_mode and (lane.acked.floor < record.next_offset or record.parked):
            op.refuse(Reason.WRONG_MODE, "something is handed out, or a pop waits", command.group)
            return
        begin_on_lane(op, lane)
        if changes_mode:
            lane.begin_era()
            record.orderly = command.orderly
        record.policy = policy
        set_lane_quota(lane, command)
    op.audit.operation(Reason.OK, applied=True, group=command.group)
    op.respond(Reason.OK, applied=True)


def _make_lane(op: OpContext, group: str) -> LaneState:
    count_new_lane(op)
    return op.queue.make_lane(group, op.queue.record.min_offset)


def decide_reset_offset(op: OpContext, command: ResetOffset) -> None:
    """Move the lane to another offset; its leases end, and its attempts are forgotten."""
    queue = op.queue
    target = command.queue_offset
    if target < queue.record.min_offset:
        op.refuse(Reason.BELOW_MIN, f"the queue starts at {queue.record.min_offset}", command.group)
        return
    if target > queue.written.floor:
        op.refuse(Reason.ABOVE_MAX, f"the commit position is {queue.written.floor}", command.group)
        return
    known = queue.lane(command.group)
    exceeded = exceeded_by_reset(op) or (exceeded_by_new_lane(op) if known is None else None)
    if is_refused(op, exceeded, command.group):
        return
    count_reset(op)
    lane = known or _make_lane(op, command.group)
    begin_on_lane(op, lane)
    record = lane.record
    if target > lane.acked.floor:
        record.skipped_by_reset += _not_done(lane, target)
    _end_all_leases(op, lane)
    record.next_offset = target
    lane.begin_era()
    record.start_offset = min(record.start_offset, target)
    record.holes = queue.count_holes(record.start_offset, target)
    record.acked = target - record.start_offset - record.holes
    record.reset_epoch = record.epoch
    absorb_holes(op, lane)
    op.audit.operation(Reason.OK, applied=True, group=command.group, first=target, end=target + 1)
    op.respond(Reason.OK, applied=True, commit_offset=lane.acked.floor)


def _not_done(lane: LaneState, end: int) -> int:
    """Return how many messages in [commit offset, end) are not done; at most, if it would take long to count them."""
    queue, record, floor = lane.queue, lane.record, lane.acked.floor
    if record.orderly:
        return end - floor - queue.count_holes(floor, end) - acked_within(lane, floor, end)
    handed_out = record.leased + record.available
    if end >= record.next_offset:
        return handed_out + end - record.next_offset - queue.count_holes(record.next_offset, end)
    counted_end = min(end, floor + _COUNTED_OFFSETS_MAX)
    return min(handed_out, end - floor - lane.acked.count(floor, counted_end))


def decide_forget_lane(op: OpContext, command: ForgetLane) -> None:
    """Delete the lane with everything stored under it."""
    lane = op.queue.lane(command.group)
    if lane is not None:
        if is_refused(op, exceeded_by_reset(op), command.group):
            return
        count_reset(op)
        _close_lane(op, lane, Reason.CANCELLED)
    op.audit.operation(Reason.OK, applied=lane is not None, group=command.group)
    op.respond(Reason.OK, applied=lane is not None)


def decide_redrive(op: OpContext, command: Redrive) -> None:
    """Record who announced which messages. Those that are then sent are new ones, with a dispatch of their own."""
    is_valid = 1 <= len(command.offsets) <= ENTRIES_MAX and all(
        is_range(first, last) for first, last in command.offsets
    )
    if not is_valid:
        op.refuse(Reason.INVALID_PARAMETER, f"offsets takes 1..{ENTRIES_MAX} ranges of queue offsets", command.group)
        return
    by = f", by {command.by}" if command.by else ""
    why = f": {command.comment}" if command.comment else ""
    detail = shortened(f"to the {command.to}{by}{why}")
    outcome = OperationOutcome(Reason.OK, code_of(Reason.OK), applied=False)
    ranges: list[EntryRange] = [(None, first, last) for first, last in command.offsets]
    op.audit.operation_ranges(command.group, ranges, outcome, detail=detail)
    op.respond(Reason.OK)


def _end_all_leases(op: OpContext, lane: LaneState) -> None:
    """Write one row for the end of every lease of the lane, however many there were."""
    record = lane.record
    if record.leased or record.available:
        every = Delivery(
            epoch=record.epoch,
            revision=0,
            pop_time_ms=op.now_ms,
            deadline_ms=0,
            invisible_time_ms=0,
            client=0,
            attempt=0,
            state=DeliveryState.LEASED,
            suspended=False,
        )
        op.audit.step(lane, DeliveryStep.RELEASED, lane.acked.floor, record.next_offset, every, cause=op.kind)
