"""pop, cancel, return_client, and parked pops: the order in which they are served, and their answers."""

from broker_state.audit import Origin
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import PAUSE_MS, OpContext
from broker_state.kernel.lanes.concurrent_grant import grant
from broker_state.kernel.lanes.lease_end import release, release_client
from broker_state.kernel.lanes.orderly_lane import grant_in_order, is_same_attempt, release_members
from broker_state.kernel.lanes.skip_catch_up import enter
from broker_state.kernel.op_window import answered_pop, find, store_parked_answer
from broker_state.kernel.quotas import (
    count_new_lane,
    count_pop,
    exceeded_by_parking,
    exceeded_by_pop,
    is_refused,
)
from broker_state.store.facts import Delivery, DeliveryState, client_hash
from broker_state.store.keys import op_key
from broker_state.store.pages import windows
from broker_state.store.span import Span, append_span
from broker_state.store.state_records import DeclaredRetries, ParkedPop
from popstream.wire.answer import Answer, LeasedRange
from popstream.wire.command import Cancel, OffsetRange, Pop, ReturnClient
from popstream.wire.handle import read_handle
from popstream.wire.reason import Reason

__all__ = [
    "answer_all_parked",
    "decide_cancel",
    "decide_pop",
    "decide_return_client",
    "serve",
    "serve_new",
    "time_out",
    "touch_waiting_lanes",
]

_LEASED = DeliveryState.LEASED
_RETURNING_MAX = 64
"""Clients of one lane whose leases may wait to be released: the value stays below 4 KiB."""
_TOUCH_COST = 16
"""What it costs to look whether a lane is poppable, and to notify its consumers."""
_GRANT_COST, _MESSAGES_SHIFT = 12, 5
"""What it costs to serve a parked pop, and 1 << what number of messages one more."""
_Granted = tuple[Delivery, int, list[LeasedRange]]


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
    enter(op, lane)
    return lane


def _declare_retries(lane: LaneState, max_attempts: int, back_off_ms: tuple[int, ...]) -> None:
    known = lane.record.declared
    if known is None or known.max_attempts != max_attempts or known.back_off_ms != back_off_ms:
        lane.record.declared = DeclaredRetries(max_attempts, back_off_ms)


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
        op.work_left -= _TOUCH_COST + (_GRANT_COST if lane.record.parked else 0)
    record.serving_next = int(record.serving_again)
    record.serving_again = False
    queue.go_on(op.now_ms + PAUSE_MS if record.serving_next else 0)


def serve(op: OpContext, lane: LaneState) -> None:
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
            op.work_left -= _GRANT_COST
        granted = _give(op, lane, pop, pop.tags)
        if granted is not None:
            op.grants_left -= sum(1 + (leased.last - leased.first >> _MESSAGES_SHIFT) for leased in granted[2])
            lane.unpark(pop)
            _answer_parked(op, lane, pop, Reason.OK, granted)


def serve_new(op: OpContext, lane: LaneState, command: Pop) -> ParkedPop | None:
    """Step 3 for the record's own pop, the last of its lane; return the parked pop if it has to wait."""
    tags = None if command.tags is None else tuple(command.tags)
    record = lane.record
    granted = None
    is_again = record.orderly and is_same_attempt(lane.order_info, command.attempt_id) and not record.paused_until_ms
    if lane.is_poppable or is_again:
        granted = _give(op, lane, command, tags)
    if granted is not None:
        _answer_granted(op, lane, granted, None)
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


def _give(op: OpContext, lane: LaneState, pop: Pop | ParkedPop, tags: tuple[int, ...] | None) -> _Granted | None:
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


def time_out(op: OpContext, lane: LaneState, pop: ParkedPop) -> None:
    """Answer a parked pop that got no message in its time."""
    lane.unpark(pop)
    _answer_parked(op, lane, pop, Reason.POLLING_TIMEOUT, None)


def answer_all_parked(op: OpContext, lane: LaneState, reason: Reason, client_id: str | None = None) -> bool:
    """Answer every parked pop, or those of one client, with `reason`; return whether there was one."""
    found = False
    for pop in lane.parked_pops():
        if client_id is None or pop.client_id == client_id:
            found = True
            lane.unpark(pop)
            _answer_parked(op, lane, pop, reason, None)
    return found


def decide_cancel(op: OpContext, command: Cancel) -> None:
    """Take a pop back: unpark it, or release the messages it still holds as if they had not been delivered."""
    target = op_key(op.queue.prefix, command.target_op_id)
    entry = find(op.queue, target, op.now_ms)
    if entry is None:
        op.refuse(Reason.UNKNOWN_HANDLE, "no such op_id within the window")
        return
    if entry.kind != "pop":
        op.refuse(Reason.INVALID_PARAMETER, f"the op_id is that of a {entry.kind}", entry.group)
        return
    lane = op.queue.lane(entry.group) if entry.group is not None else None
    released: list[Span] = []
    applied = False
    if lane is not None:
        enter(op, lane)
        if entry.parked:
            pop = lane.parked(entry.parked)
            assert pop is not None, "a parked pop has an entry"
            lane.unpark(pop)
            _answer_parked(op, lane, pop, Reason.CANCELLED, None)
            applied = True
        else:
            released = _release_answered(op, lane, answered_pop(op.queue, target, entry))
            applied = bool(released)
    op.audit.operation(Reason.OK, applied=applied, group=entry.group, detail=command.target_op_id)
    op.respond(Reason.OK, applied=applied, released=_inclusive(released))


def _release_answered(op: OpContext, lane: LaneState, answer: Answer) -> list[Span]:
    handle = read_handle(answer.handle) if answer.handle is not None else None
    if handle is None:
        return []
    if lane.record.orderly:
        is_current = lane.order_info.head.epoch == handle.epoch
        return release_members(op, lane, "cancel", counted=False) if is_current else []
    released: list[Span] = []
    for granted in answer.messages:
        for page_no, low, high in windows(granted.first, granted.last + 1):
            page = lane.page(page_no)
            if page is None:
                continue
            for first, end, delivery in page.within(low, high):
                if delivery is not None and delivery.epoch == handle.epoch and delivery.state == _LEASED:
                    page.replace(first, end, release(op, lane, first, end, delivery, "cancel", counted=False))
                    append_span(released, first, end)
            lane.settle(page)
    return released


def decide_return_client(op: OpContext, command: ReturnClient) -> None:
    """Release every lease of a client, and answer its parked pops CANCELLED.

    What is too much for one record is released by later ones, while the lane pauses.
    """
    lane = op.queue.lane(command.group)
    released: list[Span] = []
    applied = False
    if lane is not None:
        enter(op, lane)
        applied = answer_all_parked(op, lane, Reason.CANCELLED, command.client_id)
        client = client_hash(command.client_id)
        if lane.record.orderly and lane.order_info.head.client == client:
            released = release_members(op, lane, "return_client", counted=True)
        elif not lane.record.orderly:
            released, is_done = release_client(op, lane, client)
            if not is_done and not _return_later(op, lane, client):
                op.refuse(Reason.QUOTA_EXCEEDED, f"{_RETURNING_MAX} clients return their leases already", command.group)
                return
    applied = applied or bool(released)
    op.audit.operation(Reason.OK, applied=applied, group=command.group)
    op.respond(Reason.OK, applied=applied, released=_inclusive(released))


def _return_later(op: OpContext, lane: LaneState, client: int) -> bool:
    """Let later records release what a client still holds; False if too many clients wait for that."""
    clients = lane.returning
    if client not in clients:
        if len(clients) >= _RETURNING_MAX:
            return False
        lane.set_returning([*clients, client])
    op.pause(lane)
    return True


def _inclusive(spans: list[Span]) -> list[OffsetRange]:
    """Return half-open spans as the inclusive ranges of an answer."""
    return [(first, end - 1) for first, end in spans]


def _answer_granted(op: OpContext, lane: LaneState, granted: _Granted, parked: ParkedPop | None) -> bytes | None:
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


def _answer_parked(
    op: OpContext,
    lane: LaneState,
    pop: ParkedPop,
    reason: Reason,
    granted: _Granted | None,
) -> None:
    if granted is not None:
        encoded = _answer_granted(op, lane, granted, pop)
    else:
        op.audit.operation(reason, group=lane.record.group, origin=Origin("pop", pop.op_id, pop.client_id))
        encoded = op.respond(reason, parked=pop)
    if pop.op_id is not None and encoded is not None:
        store_parked_answer(op.queue, pop.op_id, encoded, op.now_ms)
