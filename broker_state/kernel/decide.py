"""Decide one record, in three steps (docs/semantics.md): take what is due, decide the command, serve pops.

This is the one place that calls a function by the kind of the command.
"""

from typing import assert_never

from broker_state.kernel import op_window
from broker_state.kernel.ack_change_reject import decide_entries
from broker_state.kernel.administration import (
    CLOSING,
    close_lanes,
    decide_declare,
    decide_forget_lane,
    decide_policy,
    decide_redrive,
    decide_reset_offset,
    declare,
)
from broker_state.kernel.cancel_return_client import decide_cancel, decide_return_client
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext, refuse_without_queue
from broker_state.kernel.context.queue_state import QueueState, load_queue
from broker_state.kernel.dispatch import decide_dispatch
from broker_state.kernel.end_of_record import finish_record
from broker_state.kernel.expiry import expire_due
from broker_state.kernel.lanes.skip_catch_up import catch_up
from broker_state.kernel.parked_pops import serve_parked, touch_waiting_lanes
from broker_state.kernel.pop import decide_pop, serve_new
from broker_state.kernel.validation import is_op_id, is_queue_name, known_group, what_is_invalid
from broker_state.store.keys import op_key
from broker_state.store.overlay import Overlay
from popstream.wire.command import (
    Ack,
    Cancel,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    Policy,
    Pop,
    Redrive,
    Reject,
    ResetOffset,
    ReturnClient,
    Tick,
    group_of,
)
from popstream.wire.limits import OP_ID_BYTES_MAX
from popstream.wire.reason import Reason

__all__ = ["decide"]


def decide(overlay: Overlay, record: OpRecord, decision: Decision) -> QueueState | None:
    """Decide one record: change the state of its queue in `overlay`, and add answers, rows and letters to `decision`.

    Deterministic, in place: the same state and record give the same changes, on any machine and at any time; both
    arguments are changed.

    Returns the queue, whose deadlines may have moved; None when the record is refused without one.
    """
    command = record.command
    if record.misrouted:
        refuse_without_queue(record, decision, Reason.MISROUTED, record.misrouted)
        return None
    if record.forbidden:
        group = known_group(group_of(command))
        refuse_without_queue(record, decision, Reason.NO_PERMISSION, record.forbidden, group)
        return None
    is_name = is_queue_name(command.topic, command.queue_id)
    queue = load_queue(overlay, command.topic, command.queue_id) if is_name else None
    is_new = False
    if queue is None:
        if not isinstance(command, Declare):
            refuse_without_queue(record, decision, Reason.TOPIC_NOT_EXIST)
            return None
        invalid = (_wrong_op_id(command) or what_is_invalid(command)) if is_name else "no queue can have this name"
        if invalid is not None:
            refuse_without_queue(record, decision, Reason.INVALID_PARAMETER, invalid)
            return None
        queue = declare(overlay, command, record.timestamp_ms)
        is_new = True
    now_ms = queue.record.now_ms = max(queue.record.now_ms, record.timestamp_ms)
    op = OpContext(record, decision, queue, now_ms)
    is_due = queue.deadlines.earliest_ms <= now_ms
    if queue.unsettled and (is_due or not isinstance(command, Ack | Pop)):
        queue.settle()
    if is_due:
        expire_due(op)
    if queue.record.closing_next and not isinstance(command, Declare):
        close_lanes(op)
        refuse_without_queue(record, decision, Reason.TOPIC_NOT_EXIST, CLOSING)
    else:
        waiting = _decide_command(op, is_new=is_new)
        _grant(op, waiting)
    finish_record(op)
    return op.queue


def _decide_command(op: OpContext, *, is_new: bool) -> LaneState | None:
    """Step 2: decide the command; return the lane in which the record's own pop waits for step 3."""
    queue, command, op_id = op.queue, op.command, op.op_id
    op_window.drop_some(queue, op.now_ms)
    wrong = _wrong_op_id(command)
    if wrong is not None:
        op.refuse(Reason.INVALID_PARAMETER, wrong, group_of(command))
        return None
    if op_id is not None:
        op.op_key = op_key(queue.prefix, op_id)
        known = op_window.find(queue, op.op_key, op.now_ms)
        if known is not None:
            op_window.answer_repeated(op, known)
            return None
    waiting = _decide_by_kind(op, is_new=is_new)
    if op_id is not None and waiting is None and not op.is_undecided:
        op_window.store(op, op_id, parked=0)
    return waiting


def _wrong_op_id(command: Command) -> str | None:
    return None if command.op_id is None or is_op_id(command.op_id) else f"op_id takes 1..{OP_ID_BYTES_MAX} bytes"


def _decide_by_kind(op: OpContext, *, is_new: bool) -> LaneState | None:
    """Decide a command whose op_id is new. `is_new`: the command has just declared the queue."""
    command = op.command
    invalid = what_is_invalid(command)
    if invalid is not None:
        op.refuse(Reason.INVALID_PARAMETER, invalid, group_of(command))
        return None
    match command:
        case Pop():
            return decide_pop(op, command)
        case Ack() | ChangeInvisible() | Reject():
            decide_entries(op, command)
        case Dispatch():
            decide_dispatch(op, command)
        case Declare():
            decide_declare(op, command, is_new=is_new)
        case Policy():
            decide_policy(op, command)
        case Cancel():
            decide_cancel(op, command)
        case ReturnClient():
            decide_return_client(op, command)
        case ResetOffset():
            decide_reset_offset(op, command)
        case ForgetLane():
            decide_forget_lane(op, command)
        case Redrive():
            decide_redrive(op, command)
        case Tick():
            op.audit.operation(Reason.OK)
            op.respond(Reason.OK)
        case _:
            assert_never(command)
    return None


def _grant(op: OpContext, waiting: LaneState | None) -> None:
    """Step 3: serve pops, by lane in the order of their groups: parked pops as they came, then the record's own."""
    touch_waiting_lanes(op)
    for lane, _ in op.touched():
        if catch_up(op, lane) and lane.record.parked:
            serve_parked(op, lane)
        if lane is waiting and isinstance(op.command, Pop):
            parked = serve_new(op, lane, op.command)
            if op.op_id is not None:
                op_window.store(op, op.op_id, parked=parked.number if parked else 0)
