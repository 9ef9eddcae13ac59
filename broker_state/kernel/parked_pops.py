"""Parked pops: the order in which they are served, and their answers."""

from typing import Final

from broker_state.audit import Origin
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import PAUSE_MS, OpContext
from broker_state.kernel.lanes.concurrent_grant import grant
from broker_state.kernel.lanes.orderly_lane import grant_in_order
from broker_state.kernel.op_window import store_parked_answer
from broker_state.store.facts import Delivery
from broker_state.store.state_records import ParkedPop
from popstream.wire.answer import LeasedRange
from popstream.wire.command import Pop
from popstream.wire.reason import Reason

__all__ = [
    "Granted",
    "answer_all_parked",
    "answer_granted",
    "dismiss",
    "grant_pop",
    "serve_parked",
    "touch_waiting_lanes",
]

_TOUCH_COST: Final = 16
"""What it costs to look whether a lane is poppable, and to notify its consumers."""
_SERVE_COST: Final = 12
"""What it costs, besides its messages, to serve a parked pop that is not the first of its lane."""
_MESSAGES_SHIFT: Final = 5
"""Each `1 << _MESSAGES_SHIFT` messages of a range that a parked pop gets cost 1 more."""

Granted = tuple[Delivery, int, list[LeasedRange]]
"""(delivery, start offset of the handle, ranges): what a pop got."""


def touch_waiting_lanes(op: OpContext) -> None:
    """Touch the lanes that wait for messages, so that they are served, if the queue has news for them.

    One record touches as many as it may; the next ones go on, at once or when the queue's deadline is due.
    """
    queue = op.queue
    record = queue.record
    if op.serve_watching or queue.written.floor != op.commit_position_before:
        record.serving_again = record.serving_next > 1
        record.serving_next = record.serving_next or 1
    if not record.serving_next:
        return
    for lane in queue.watching_lanes(record.serving_next):
        if op.work_left <= 0:
            record.serving_next = lane.record.lane_no
            queue.go_on(op.now_ms + PAUSE_MS)
            return
        op.touch(lane)
        op.work_left -= _TOUCH_COST + (_SERVE_COST if lane.record.parked else 0)
    record.serving_next = int(record.serving_again)
    record.serving_again = False
    queue.go_on(op.now_ms + PAUSE_MS if record.serving_next else 0)


def serve_parked(op: OpContext, lane: LaneState) -> None:
    """Step 3 for one lane: serve the parked pops in the order they came, while the lane is poppable.

    When there are too many for one record, in this lane or in those before it, the lane pauses before the next.
    """
    for place, pop in enumerate(lane.parked_pops()):
        if not lane.is_poppable:
            return
        if op.grants_left <= 0 or (place and op.work_left <= 0):
            op.pause(lane)
            return
        if place:  # the first was paid for when the lane was touched
            op.work_left -= _SERVE_COST
        granted = grant_pop(op, lane, pop, pop.tags)
        if granted is not None:
            op.grants_left -= sum(1 + (leased.last - leased.first >> _MESSAGES_SHIFT) for leased in granted[2])
            lane.unpark(pop)
            _store_answer(op, pop, answer_granted(op, lane, granted, pop))


def grant_pop(op: OpContext, lane: LaneState, pop: Pop | ParkedPop, tags: tuple[int, ...] | None) -> Granted | None:
    """Grant a pop the messages that it can get now; None if there are none for it."""
    if lane.record.orderly:
        return grant_in_order(
            op,
            lane,
            max_messages=pop.max_messages,
            invisible_time_ms=pop.invisible_time_ms,
            client_id=pop.client_id,
            tags=tags,
            attempt_id=pop.attempt_id,
        )
    return grant(
        op,
        lane,
        max_messages=pop.max_messages,
        invisible_time_ms=pop.invisible_time_ms,
        client_id=pop.client_id,
        tags=tags,
    )


def dismiss(op: OpContext, lane: LaneState, pop: ParkedPop, reason: Reason) -> None:
    """Answer a parked pop without messages; it waits no more."""
    lane.unpark(pop)
    op.audit.operation(reason, group=lane.record.group, origin=Origin("pop", pop.op_id, pop.client_id))
    _store_answer(op, pop, op.respond(reason, parked=pop))


def answer_all_parked(op: OpContext, lane: LaneState, reason: Reason, client_id: str | None = None) -> bool:
    """Answer every parked pop, or those of one client, with `reason`; return whether there was one."""
    found = False
    for pop in lane.parked_pops():
        if client_id is None or pop.client_id == client_id:
            found = True
            dismiss(op, lane, pop, reason)
    return found


def answer_granted(op: OpContext, lane: LaneState, granted: Granted, parked: ParkedPop | None) -> bytes | None:
    """Write a row of `operations` for each range that a pop got, and answer it; `parked` None: the record's own."""
    delivery, start_offset, ranges = granted
    text = lane.handle_text(delivery, start_offset)
    origin = None if parked is None else Origin("pop", parked.op_id, parked.client_id)
    for leased in ranges:
        op.audit.operation(
            Reason.OK,
            applied=True,
            group=lane.record.group,
            first=leased.first,
            end=leased.last + 1,
            handle_after=text,
            deadline_after_ms=delivery.deadline_ms,
            attempt=leased.attempt,
            origin=origin,
        )
    return op.respond(
        Reason.OK,
        applied=True,
        parked=parked,
        handle=text,
        messages=ranges,
        pop_time_ms=delivery.pop_time_ms,
        invisible_time_ms=delivery.invisible_time_ms,
        revive_queue_id=lane.revive_queue_id,
    )


def _store_answer(op: OpContext, pop: ParkedPop, encoded: bytes | None) -> None:
    if pop.op_id is not None and encoded is not None:
        store_parked_answer(op.queue, pop.op_id, encoded, op.now_ms)
