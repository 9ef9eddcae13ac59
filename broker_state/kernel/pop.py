"""pop: judged as a command, then served as the last one of its lane, or parked."""

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.orderly_lane import is_same_attempt
from broker_state.kernel.lanes.skip_catch_up import begin_on_lane
from broker_state.kernel.parked_pops import answer_granted, grant_pop
from broker_state.kernel.quotas import count_new_lane, count_pop, exceeded_by_parking, exceeded_by_pop, is_refused
from broker_state.store.state_records import DeclaredRetries, ParkedPop
from popstream.wire.command import Pop
from popstream.wire.reason import Reason

__all__ = ["decide_pop", "serve_new"]


def decide_pop(op: OpContext, command: Pop) -> LaneState | None:
    """Decide step 2 of a pop, whose fields are valid; return the lane it waits in, None if it is refused."""
    queue = op.queue
    lane = queue.lane(command.group)
    if lane is not None and lane.record.orderly not in (None, command.order):
        mode = "orderly" if lane.record.orderly else "concurrent"
        op.refuse(Reason.WRONG_MODE, f"the lane is {mode}", command.group)
        return None
    if is_refused(op, exceeded_by_pop(op, lane, command.client_id), command.group):
        return None
    if lane is None:
        count_new_lane(op)
        lane = queue.make_lane(command.group, queue.record.min_offset if command.init == "min" else queue.written.floor)
    count_pop(op, lane, command.client_id)
    lane.record.orderly = command.order
    if command.max_attempts is not None or command.back_off_ms is not None:
        _declare_retries(lane, command.max_attempts or 0, tuple(command.back_off_ms or ()))
    begin_on_lane(op, lane)
    return lane


def _declare_retries(lane: LaneState, max_attempts: int, back_off_ms: tuple[int, ...]) -> None:
    known = lane.record.declared
    if known is None or known.max_attempts != max_attempts or known.back_off_ms != back_off_ms:
        lane.record.declared = DeclaredRetries(max_attempts, back_off_ms)


def serve_new(op: OpContext, lane: LaneState, command: Pop) -> ParkedPop | None:
    """Step 3 for the record's own pop, the last of its lane; return the parked pop if it has to wait."""
    tags = None if command.tags is None else tuple(command.tags)
    record = lane.record
    granted = None
    is_again = record.orderly and is_same_attempt(lane.order_info, command.attempt_id) and not record.paused_until_ms
    if lane.is_poppable or is_again:
        granted = grant_pop(op, lane, command, tags)
    if granted is not None:
        answer_granted(op, lane, granted, None)
        return None
    if not command.poll_time_ms:
        op.refuse(Reason.NO_MESSAGE, group=command.group)
        return None
    if record.parked >= lane.limits.parked_max:
        op.refuse(Reason.POLLING_FULL, group=command.group)
        return None
    exceeded = exceeded_by_parking(lane, command.client_id)
    if exceeded is not None:
        op.refuse(Reason.POLLING_FULL, exceeded, command.group)
        return None
    return _park(op, lane, command, tags)


def _park(op: OpContext, lane: LaneState, command: Pop, tags: tuple[int, ...] | None) -> ParkedPop:
    record = lane.record
    pop = ParkedPop(
        number=record.parked_next,
        before=record.parked_last,
        after=0,
        op_id=op.op_id,
        reply_to=command.reply_to,
        max_messages=command.max_messages,
        invisible_time_ms=command.invisible_time_ms,
        deadline_ms=op.now_ms + command.poll_time_ms,
        client_id=command.client_id,
        attempt_id=command.attempt_id,
        tags=tags,
    )
    lane.park(pop)
    return pop
