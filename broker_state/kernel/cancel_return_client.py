"""cancel and return_client: one pop is taken back, or everything that a client holds is released."""

from typing import Final

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.lease_end import release, release_client
from broker_state.kernel.lanes.orderly_lane import release_members
from broker_state.kernel.lanes.skip_catch_up import begin_on_lane
from broker_state.kernel.op_window import answered_pop, find
from broker_state.kernel.parked_pops import answer_all_parked, dismiss
from broker_state.store.facts import DeliveryState, client_hash
from broker_state.store.keys import op_key
from broker_state.store.pages import windows
from broker_state.store.span import Span, append_span
from popstream.wire.answer import Answer
from popstream.wire.command import Cancel, OffsetRange, ReturnClient
from popstream.wire.handle import read_handle
from popstream.wire.reason import Reason

__all__ = ["decide_cancel", "decide_return_client"]

_LEASED: Final = DeliveryState.LEASED
_RETURNING_MAX: Final = 64
"""Clients of one lane whose leases may wait to be released: the value stays below 4 KiB."""


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
        begin_on_lane(op, lane)
        if entry.parked:
            pop = lane.parked(entry.parked)
            assert pop is not None, "a parked pop has an entry"
            dismiss(op, lane, pop, Reason.CANCELLED)
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
        begin_on_lane(op, lane)
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
