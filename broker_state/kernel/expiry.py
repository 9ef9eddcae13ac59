"""Step 1 of an operation: deadlines at or before `now` take effect."""

from typing import Final, NamedTuple, assert_never

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.order_info import OrderInfo
from broker_state.kernel.lanes.lease_end import end_lease
from broker_state.kernel.lanes.orderly_lane import settle_batch
from broker_state.kernel.lanes.skip_catch_up import catch_up
from broker_state.kernel.parked_pops import dismiss
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.keys import (
    DEADLINE_BATCH,
    DEADLINE_PAGE,
    DEADLINE_PARKED,
    DEADLINE_PAUSE,
    DEADLINE_QUEUE,
    DeadlineRef,
)
from broker_state.store.pages import DeliveryPage
from broker_state.store.state_records import ParkedPop
from popstream.wire.reason import Reason

__all__ = ["expire_due"]

DUE_COST_MAX = 16_384
"""What one record may spend on what is due: 5 for a page of 64 offsets, 1 for each run in it that shares a delivery, 6
for a parked pop, a pause, a batch, and each member of a batch. About 75 ms; leases that were popped one by one are 64
runs a page."""
_PAGE_COST: Final = 5
_OTHER_COST: Final = 6

ORPHANS_MAX: Final = 32_768
"""Deadlines of lanes that were reset or deleted since, that one record removes. About 100 ms."""

_LEASE: Final = 0
_PARKED: Final = 1
_PAUSE: Final = 2


class _DueRun(NamedTuple):
    """Offsets first..end-1 of a page whose lease or back-off ends."""

    page: DeliveryPage
    first: int
    end: int
    delivery: Delivery


class _DuePause(NamedTuple):
    """The end of a lane's pause."""


class _DueEvent(NamedTuple):
    """Something that is due, and its place in the order in which deadlines take effect."""

    deadline_ms: int
    group: bytes
    rank: int
    """Leases and batches come before parked pops, and these before pauses."""
    number: int
    """First offset of a run, number of a parked pop, 0 of a batch or a pause."""
    lane: LaneState
    subject: "_Subject"

    @property
    def order(self) -> tuple[int, bytes, int, int]:
        """Sort key."""
        return self.deadline_ms, self.group, self.rank, self.number


_Subject = _DueRun | OrderInfo | ParkedPop | _DuePause


def expire_due(op: OpContext) -> None:
    """Apply what is due in the order (deadline, group, leases, parked pops and pauses in this order, place).

    A record applies at most DUE_COST_MAX, what was due first; the rest stays due, and the next record of the queue goes
    on with it. Lanes with leases among it first account for what has left the log: it neither expires nor is
    dead-lettered.
    """
    pages, events = _find_due(op)
    for event in sorted(events, key=lambda event: event.order):
        op.touch(event.lane)
        _apply(op, event.lane, event.subject, event.deadline_ms)
    for lane, page in pages:
        lane.settle(page)


def _find_due(op: OpContext) -> tuple[list[tuple[LaneState, DeliveryPage]], list[_DueEvent]]:
    """Return the pages with leases that are due, and an event for all that this record applies."""
    queue, now_ms = op.queue, op.now_ms
    pages: list[tuple[LaneState, DeliveryPage]] = []
    events: list[_DueEvent] = []
    cost_left, orphans_left = DUE_COST_MAX, ORPHANS_MAX
    due = queue.deadlines.due(now_ms)
    while cost_left > 0 and orphans_left > 0 and (ref := next(due, None)) is not None:
        if ref.kind == DEADLINE_QUEUE:
            if ref.deadline_ms == queue.record.goes_on_ms:
                queue.go_on(0)  # the record itself goes on with it
            else:
                queue.overlay.drop_deadline(queue.prefix, ref)
            continue
        lane = queue.lane_by_no(ref.lane_no)
        if lane is None or ref.lane_no != (lane.record.lane_no if ref.kind == DEADLINE_PARKED else lane.era_no):
            queue.overlay.drop_deadline(queue.prefix, ref)
            orphans_left -= 1
            continue
        if ref.kind == DEADLINE_PAGE and not catch_up(op, lane):
            queue.deadlines.push(ref)
            break
        subject = _subject(lane, ref)
        if subject is None:  # what it was about has left the log
            continue
        if isinstance(subject, DeliveryPage):
            runs = _due_runs(lane, subject, now_ms)
            cost_left -= _PAGE_COST + _count_distinct(runs)
            pages.append((lane, subject))
            events += runs
            continue
        rank = _PARKED if ref.kind == DEADLINE_PARKED else _PAUSE if ref.kind == DEADLINE_PAUSE else _LEASE
        events.append(_DueEvent(ref.deadline_ms, lane.record.group.encode(), rank, ref.number, lane, subject))
        members = subject.head.member_count if isinstance(subject, OrderInfo) else 0
        cost_left -= _OTHER_COST * (1 + members)
    return pages, events


def _count_distinct(runs: list[_DueEvent]) -> int:
    """Return the number of runs after joining neighbours with equal deliveries: it follows from the offsets alone."""
    count, end, delivery = 0, -1, None
    for event in runs:
        run = event.subject
        assert isinstance(run, _DueRun), "these are the runs of a page"
        count += run.first != end or run.delivery != delivery
        end, delivery = run.end, run.delivery
    return count


def _subject(lane: LaneState, ref: DeadlineRef) -> DeliveryPage | OrderInfo | ParkedPop | _DuePause | None:
    """Return the object of a deadline; None if it was deleted or rescheduled."""
    if ref.kind == DEADLINE_PAGE:
        page = lane.page(ref.number)
        return page if page is not None and page.due_ms == ref.deadline_ms else None
    if ref.kind == DEADLINE_BATCH:
        info = lane.order_info
        return info if info.head.due_ms == ref.deadline_ms else None
    if ref.kind == DEADLINE_PAUSE:
        return _DuePause() if lane.record.paused_until_ms == ref.deadline_ms else None
    pop = lane.parked(ref.number)
    return pop if pop is not None and pop.deadline_ms == ref.deadline_ms else None


def _due_runs(lane: LaneState, page: DeliveryPage, now_ms: int) -> list[_DueEvent]:
    group = lane.record.group.encode()
    return [
        _DueEvent(delivery.deadline_ms, group, _LEASE, first, lane, _DueRun(page, first, end, delivery))
        for first, end, delivery in page.runs
        if 0 < delivery.deadline_ms <= now_ms
    ]


def _apply(op: OpContext, lane: LaneState, subject: _Subject, deadline_ms: int) -> None:
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
            if catch_up(op, lane):
                settle_batch(op, lane)
            else:
                op.queue.deadlines.push(DeadlineRef(deadline_ms, lane.era_no, DEADLINE_BATCH, 0))
        case ParkedPop():
            dismiss(op, lane, subject, Reason.POLLING_TIMEOUT)
        case _DuePause():
            if not lane.returning or catch_up(op, lane):
                lane.pause(0)  # the lane is poppable again, and step 3 serves its parked pops
        case _:
            assert_never(subject)
