"""Step 1 of an operation: every deadline at or before `now` takes effect."""

from typing import assert_never

import msgspec

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.order_info import OrderInfo
from broker_state.kernel.context.queue_state import LaneState, QueueState
from broker_state.kernel.lanes.lease_end import end_lease
from broker_state.kernel.lanes.orderly_lane import settle_batch
from broker_state.kernel.lanes.skip_catch_up import catch_up
from broker_state.kernel.parked_pops import time_out
from broker_state.store.keys import DEADLINE_BATCH, DEADLINE_PAGE, DeadlineRef
from broker_state.store.pages import Delivery, DeliveryPage, DeliveryState
from broker_state.store.state_records import ParkedPop

__all__ = ["take_due"]

_LEASE, _PARKED = range(2)


class _DueRun(msgspec.Struct, frozen=True, gc=False):
    """Offsets first..end-1 of a page whose lease or back-off ends."""

    page: DeliveryPage
    first: int
    end: int
    delivery: Delivery


class _DueEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that is due, and its place in the order in which deadlines take effect."""

    deadline_ms: int
    group: bytes
    rank: int
    """Leases and batches come before parked pops."""
    number: int
    """First offset of a run, 0 of a batch, number of a parked pop."""
    lane: LaneState
    subject: _DueRun | OrderInfo | ParkedPop

    @property
    def order(self) -> tuple[int, bytes, int, int]:
        """Sort key."""
        return self.deadline_ms, self.group, self.rank, self.number


def take_due(op: OpContext) -> None:
    """Apply what is due in the order (deadline, group, leases before parked pops, place)."""
    pages, events = _find_due(op.queue, op.now_ms)
    # What has left the log neither expires nor is dead-lettered. Only for deadlines that still hold: whether the index
    # yields one that has moved depends on how the log was cut into micro-batches.
    for lane, _ in pages:
        catch_up(op, lane)
    pages = [(lane, page) for lane, page in pages if page.runs]
    for lane, page in pages:
        events += _due_runs(lane, page, op.now_ms)
    for event in sorted(events, key=lambda event: event.order):
        op.touch(event.lane)
        _apply(op, event.lane, event.subject, event.deadline_ms)
    for lane, page in pages:
        lane.settle(page)


def _find_due(queue: QueueState, now_ms: int) -> tuple[list[tuple[LaneState, DeliveryPage]], list[_DueEvent]]:
    """Return the pages, members and parked pops that are due; delete index entries that no longer apply."""
    pages: list[tuple[LaneState, DeliveryPage]] = []
    events: list[_DueEvent] = []
    for ref in sorted(queue.deadlines.take(now_ms)):
        lane = queue.lane_by_no(ref.lane_no)
        subject = None if lane is None else _subject(lane, ref)
        if lane is None or subject is None:
            queue.overlay.drop_spent_deadline(queue.prefix, ref)
        elif isinstance(subject, DeliveryPage):
            pages.append((lane, subject))
        else:
            rank, number = (_PARKED, subject.number) if isinstance(subject, ParkedPop) else (_LEASE, 0)
            events.append(_DueEvent(ref.deadline_ms, lane.record.group.encode(), rank, number, lane, subject))
    return pages, events


def _subject(lane: LaneState, ref: DeadlineRef) -> DeliveryPage | OrderInfo | ParkedPop | None:
    """Return the object of a deadline; None if it was deleted or rescheduled."""
    if ref.kind == DEADLINE_PAGE:
        page = lane.page(ref.number)
        return page if page is not None and page.due_ms == ref.deadline_ms else None
    if ref.kind == DEADLINE_BATCH:
        info = lane.order_info
        return info if info.head.due_ms == ref.deadline_ms else None
    pop = lane.parked(ref.number)
    return pop if pop is not None and pop.deadline_ms == ref.deadline_ms else None


def _due_runs(lane: LaneState, page: DeliveryPage, now_ms: int) -> list[_DueEvent]:
    group = lane.record.group.encode()
    return [
        _DueEvent(delivery.deadline_ms, group, _LEASE, first, lane, _DueRun(page, first, end, delivery))
        for first, end, delivery in page.runs
        if 0 < delivery.deadline_ms <= now_ms
    ]


def _apply(op: OpContext, lane: LaneState, subject: _DueRun | OrderInfo | ParkedPop, deadline_ms: int) -> None:
    match subject:
        case _DueRun(page, first, end, delivery):
            after: Delivery | None
            if delivery.state == DeliveryState.LEASED:
                step = DeliveryStep.EXPIRED
                after = end_lease(op, lane, first, end, delivery, step=step, cause="deadline", at_ms=deadline_ms)
            else:
                after = delivery.offered_again(suspended=delivery.suspended)
            page.replace(first, end, after)
        case OrderInfo():
            catch_up(op, lane)
            settle_batch(op, lane)
        case ParkedPop():
            time_out(op, lane, subject)
        case _:
            assert_never(subject)
