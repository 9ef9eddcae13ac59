"""How a pop is granted leases in a concurrent lane: available messages, fresh ones, tag filter (docs/semantics.md)."""

from collections.abc import Iterator
from typing import Final

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.pop_filter import PopFilter
from broker_state.store.facts import Delivery, DeliveryState, client_hash
from broker_state.store.pages import PAGE_SHIFT, windows
from broker_state.store.segment import SEGMENT_BITS, SEGMENT_SHIFT
from popstream.wire.answer import LeasedRange

__all__ = ["absorb_holes", "grant"]

AVAILABLE_PAGES_MAX = 2_048
"""Pages of messages handed out before from which one pop is served, about 100 ms: it gets less than it asked for."""

_AVAILABLE: Final = DeliveryState.AVAILABLE


class _Grant:
    """One pop of a concurrent lane while it is served: its choice, and the leases it got."""

    __slots__ = ("choice", "client", "client_id", "epoch", "invisible_time_ms", "lane", "leased", "now_ms", "op")

    def __init__(
        self, op: OpContext, lane: LaneState, choice: PopFilter, invisible_time_ms: int, client_id: str | None
    ) -> None:
        self.op = op
        self.lane = lane
        self.choice = choice
        self.invisible_time_ms = invisible_time_ms
        self.client_id = client_id
        self.client = client_hash(client_id)
        self.now_ms = op.now_ms
        self.epoch = lane.record.epoch + 1
        self.leased: list[tuple[int, int, Delivery]] = []

    def delivery(self, attempt: int) -> Delivery:
        if self.leased and self.leased[-1][2].attempt == attempt:
            return self.leased[-1][2]
        return Delivery(
            epoch=self.epoch,
            revision=0,
            pop_time_ms=self.now_ms,
            deadline_ms=self.now_ms + self.invisible_time_ms,
            invisible_time_ms=self.invisible_time_ms,
            client=self.client,
            attempt=attempt,
            state=DeliveryState.LEASED,
            suspended=False,
        )

    def record(self, first: int, end: int, delivery: Delivery) -> None:
        leased = self.leased
        if leased and leased[-1][1] == first and leased[-1][2] is delivery:
            leased[-1] = (leased[-1][0], end, delivery)
        else:
            leased.append((first, end, delivery))


def grant(
    op: OpContext,
    lane: LaneState,
    *,
    max_messages: int,
    invisible_time_ms: int,
    client_id: str | None,
    tags: tuple[int, ...] | None,
) -> tuple[Delivery, int, list[LeasedRange]] | None:
    """Lease messages to one pop: first those that were handed out before, lowest offset first, then fresh ones.

    Returns a delivery of the new epoch, the first offset and the ranges; None when there was no message, or none yet:
    then the lane goes on later, where the pop was cut short.
    """
    record = lane.record
    limit = lane.limits.in_flight_max
    units = limit - record.leased if limit else max_messages
    choice = PopFilter(op, max_messages, units, tags)
    work = _Grant(op, lane, choice, invisible_time_ms, client_id)
    if lane.available.count:
        _grant_available(work)
    if choice.is_open() and record.next_offset < lane.queue.written.floor:
        _grant_fresh(work)
    if not work.leased:
        if choice.is_cut_short:
            op.pause(lane)
        return None
    record.epoch = work.epoch
    ranges = []
    for first, end, delivery in work.leased:
        record.leased += end - first
        op.audit.step(lane, DeliveryStep.LEASED, first, end, delivery, cause="pop", client_id=client_id)
        ranges.append(LeasedRange(first, end - 1, delivery.attempt))
    return work.leased[0][2], work.leased[0][0], ranges


def _grant_available(work: _Grant) -> None:
    lane = work.lane
    record = lane.record
    page_no = lane.available.first()
    pages_left = AVAILABLE_PAGES_MAX
    while page_no is not None and work.choice.is_open():
        if pages_left <= 0 and work.leased:
            work.choice.units = 0  # fresh messages do not overtake those that are left
            return
        pages_left -= 1
        page = lane.page(page_no)
        assert page is not None, "a page in the tree of available pages exists"
        for run_first, run_end, before in list(page.runs):
            if before.state != _AVAILABLE:
                continue
            if not work.choice.is_open():
                break
            for first, end, given, _ in work.choice.cut(run_first, run_end):
                record.available -= end - first
                if given:
                    delivery = work.delivery(before.attempt + (0 if before.suspended else 1))
                    page.replace(first, end, delivery)
                    work.record(first, end, delivery)
                    if work.client:
                        lane.add_client_page(work.client, page, work.client_id)
                else:
                    page.replace(first, end, None)
                    _pass_over(lane, first, end)
        lane.settle(page)
        page_no = lane.available.first(page_no + 1)


def _grant_fresh(work: _Grant) -> None:
    lane, choice = work.lane, work.choice
    queue = lane.queue
    if not queue.record.holes and choice.takes_any:
        _lease_fresh(work, *choice.cut_alike(lane.record.next_offset, queue.written.floor))
        return
    for first, end in _fresh_runs(work):
        for low, high, is_given, deliver_at_ms in choice.cut(first, end):
            if is_given:
                _lease_fresh(work, low, high)
            elif deliver_at_ms:
                _put_off(lane, low, high, deliver_at_ms)
            else:
                _pass_over_fresh(work, low, high)
        if not choice.is_open():
            break
    absorb_holes(work.op, lane)


def _lease_fresh(work: _Grant, first: int, end: int) -> None:
    """Lease [first, end), the next offsets that were never handed out."""
    lane, delivery = work.lane, work.delivery(1)
    lane.record.next_offset = end
    for page_no, page_first, page_end in windows(first, end):
        page = lane.page_to_fill(page_no)
        page.replace(page_first, page_end, delivery)
        if work.client:
            lane.add_client_page(work.client, page, work.client_id)
        lane.settle_fresh(page, delivery.deadline_ms)
    work.record(first, end, delivery)


def _put_off(lane: LaneState, first: int, end: int, until_ms: int) -> None:
    """Let [first, end), the next offsets of one page that were never handed out, be available from `until_ms` on.

    They wait as messages do that back off, without a delivery: epoch and attempt are 0.
    """
    lane.record.next_offset = end
    lane.record.available += end - first
    page = lane.page_to_fill(first >> PAGE_SHIFT)
    waiting = Delivery(
        epoch=0,
        revision=0,
        pop_time_ms=0,
        deadline_ms=until_ms,
        invisible_time_ms=0,
        client=0,
        attempt=0,
        state=DeliveryState.BACKING_OFF,
        suspended=False,
    )
    page.replace(first, end, waiting)
    lane.settle_fresh(page, until_ms)


def _fresh_runs(work: _Grant) -> Iterator[tuple[int, int]]:
    """Yield runs of written offsets from `next_offset` on, in which the pop has something to look at.

    Holes, and what has none of its tags, are passed and counted before.
    """
    op, lane = work.op, work.lane
    record = lane.record
    queue = lane.queue
    while record.next_offset < queue.written.floor:
        if op.work_left <= 0:
            work.choice.is_cut_short = True
            return
        unread_end = work.choice.unread_until(record.next_offset, queue.written.floor)
        if unread_end > record.next_offset:
            _pass_over_fresh(work, record.next_offset, unread_end, may_have_holes=True)
            if work.choice.is_cut_short:
                return
        if not absorb_holes(op, lane):
            return
        first, stop = record.next_offset, queue.written.floor
        if first >= stop:
            return
        if queue.record.holes:
            stop = min(stop, ((first >> SEGMENT_SHIFT) + 1) << SEGMENT_SHIFT)
            bits = queue.holes.get(first >> SEGMENT_SHIFT) >> (first & (SEGMENT_BITS - 1))
            if bits:
                stop = min(stop, first + (bits & -bits).bit_length() - 1)
        yield first, stop
        if record.next_offset < stop:
            return


def absorb_holes(op: OpContext, lane: LaneState) -> bool:
    """Pass the holes at `next_offset`, so that they never hold the commit offset back; return whether all are passed.

    If not, the lane pauses: each 4,096 holes beyond a message that is not acked cost a segment, and the record may name
    thousands of lanes, each of which passes at least those of one segment.
    """
    record = lane.record
    queue = lane.queue
    at, floor = record.next_offset, queue.written.floor
    if not queue.record.holes or at >= floor:
        return True
    limit = floor if op.work_left > 0 else min(floor, ((at >> SEGMENT_SHIFT) + 1) << SEGMENT_SHIFT)
    end = queue.holes.end_of_run(at, limit)
    if end == at:
        return True
    if lane.acked.floor == at:
        op.spend_on_gap(at, end)
    stop = op.spend_on_segments(lane, at, end)
    lane.acked.mark(at, stop)
    record.holes += stop - at
    record.next_offset = stop
    are_all = stop == end and (end < limit or limit == floor)
    if not are_all:
        op.pause(lane)
    return are_all


def _pass_over_fresh(work: _Grant, first: int, end: int, *, may_have_holes: bool = False) -> None:
    """Pass [first, end) over, the next offsets, which the tags do not let through; or a part of it.

    While a message before them is not acked, each 4,096 cost a segment. The pop goes on in another record then.
    """
    lane, holes = work.lane, 0
    stop = work.op.spend_on_segments(lane, first, end)
    if may_have_holes and lane.queue.record.holes:
        work.op.spend_on_gap(first, stop)
        holes = lane.queue.count_holes(first, stop)
    lane.record.next_offset = stop
    lane.record.holes += holes
    _pass_over(lane, first, stop, holes)
    if stop < end:
        work.choice.is_cut_short = True


def _pass_over(lane: LaneState, first: int, end: int, holes: int = 0) -> None:
    """Mark [first, end) as done, of which all but `holes` are messages that no tag of the pop lets through."""
    lane.acked.mark(first, end)
    lane.record.acked += end - first - holes
    lane.record.passed_over += end - first - holes
