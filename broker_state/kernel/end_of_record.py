"""The end of an operation: a row for each position that moved, a notification for each lane that became poppable."""

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from popstream.wire.notification import Notification

__all__ = ["finish_record"]


def finish_record(op: OpContext) -> None:
    """Finish a record that is decided: write the rows of its queue and lanes, and notify their consumers."""
    queue = op.queue
    queue.touch()
    commit_position = queue.written.floor
    if commit_position != op.commit_position_before:
        op.audit.commit_position(queue.record, op.commit_position_before, commit_position)
    for lane, commit_offset_before in op.touched():
        if lane.acked.floor != commit_offset_before:
            op.audit.commit_offset(lane.record, commit_offset_before, lane.acked.floor)
        if lane.record.orderly:
            _audit_batch(op, lane)
        _notify(op, lane)


def _notify(op: OpContext, lane: LaneState) -> None:
    """Send a notification if the lane was empty or blocked and is poppable now; note whether it waits for messages."""
    record = lane.record
    queue = op.queue
    poppable = lane.is_poppable
    if record.empty and poppable:
        op.decision.notifications.append(Notification(queue.topic, queue.queue_id, record.group, op.now_ms))
    record.empty = not poppable
    watching = record.empty or record.parked > 0
    if watching != record.watching:
        record.watching = watching
        (queue.watching.add if watching else queue.watching.discard)(record.lane_no)


def _audit_batch(op: OpContext, lane: LaneState) -> None:
    """Write a row of `order_info` if the record changed the lane's batch."""
    info = lane.order_info
    if not info.is_changed:
        return
    info.is_changed = False
    head = info.head
    op.audit.batch(
        group=lane.record.group,
        epoch=head.epoch,
        pop_time_ms=head.pop_time_ms,
        invisible_time_ms=head.invisible_time_ms,
        attempt_id=head.attempt_id,
        first=head.first,
        end=head.end,
        members=head.member_count,
        acked=head.acked_count,
        commit_offset=lane.acked.floor,
        free_at_ms=head.due_ms or None,
        least_count=head.least_count,
    )
