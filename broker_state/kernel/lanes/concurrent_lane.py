"""A concurrent lane: entries are judged by the last delivery of each message (docs/semantics.md, "Judging...").

A record names a message at most once, and the outcome for it depends on its own delivery alone. So a page is read,
changed and settled once for all claims on it, however many there are.
"""

from collections.abc import Sequence
from typing import Final

from broker_state.audit import DeliveryStep, release_cause, shortened
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.entry_claim import Claim, Header, Piece
from broker_state.kernel.lanes.lease_end import end_lease, is_release, wait_of_release_ms
from broker_state.store.facts import Delivery, DeliveryState, client_hash
from broker_state.store.pages import PAGE_SHIFT, DeliveryPage, windows
from popstream.wire.command import AckEntry, ChangeEntry, Entry, RejectEntry
from popstream.wire.handle import Handle
from popstream.wire.reason import Reason

__all__ = ["ack_run", "decide_concurrently", "judge"]

_LEASED: Final = DeliveryState.LEASED


def decide_concurrently(op: OpContext, lane: LaneState, claims: Sequence[Claim]) -> list[Piece]:
    """Judge `claims`, and apply those that are good.

    The claims are in order and apart, within the queue, and name no offset that the record named before.
    """
    work = _Work(op, lane)
    for page_no, parts in _by_page(claims):
        page = lane.page(page_no)
        if page is None:
            for first, end, claim in parts:
                work.pieces += _judge_not_in_flight(lane, claim.handle, first, end)
        else:
            work.decide_page(page, parts)
    lane.acked.mark_runs(work.acked)
    return work.pieces


def judge(lane: LaneState, entry: Entry, handle: Handle, delivery: Delivery) -> Reason:
    """Judge an entry for messages in flight by their delivery: OK, or the reason why it is refused."""
    if delivery.epoch != handle.epoch:
        is_late = delivery.epoch > handle.epoch or handle.epoch <= lane.record.reset_epoch
        return Reason.STALE_HANDLE if is_late else Reason.OUTSIDE_POP
    if isinstance(entry, ChangeEntry) and delivery.revision != handle.revision:
        return Reason.SUPERSEDED
    return Reason.OK


def ack_run(
    op: OpContext, lane: LaneState, entry: AckEntry | RejectEntry, first: int, end: int, before: Delivery
) -> None:
    """Count and report neighbours with one delivery as acked or rejected; the caller changes page and position."""
    record = lane.record
    if before.state == _LEASED:
        record.leased -= end - first
    else:
        record.available -= end - first
    record.acked += end - first
    cause: str
    if isinstance(entry, AckEntry):
        cause = entry.cause or "ack"
        op.audit.step(lane, DeliveryStep.ACKED, first, end, before, cause=cause, client_id=op.client_id)
    else:
        cause = shortened(entry.cause) or "rejected"
        record.dead_lettered += end - first
        op.audit.step(lane, DeliveryStep.DEAD_LETTERED, first, end, before, cause=cause, client_id=op.client_id)
        op.dead_letter(lane, first, end, before, reason=cause, at_ms=op.now_ms)


_Part = tuple[int, int, Claim]
"""(first, end, claim): the part of a claim that lies in one page."""
_Cut = tuple[int, int, Delivery | None, Claim]
"""(first, end, delivery, claim): a part, cut where the delivery changes."""


def _by_page(claims: Sequence[Claim]) -> list[tuple[int, list[_Part]]]:
    """Return (page no, parts) of each page that the claims touch, in order."""
    pages: list[tuple[int, list[_Part]]] = []
    page_no = -1
    for claim in claims:
        if claim.end - 1 >> PAGE_SHIFT == page_no:  # a claim of one page, right after the one before
            pages[-1][1].append((claim.first, claim.end, claim))
            continue
        for number, first, end in windows(claim.first, claim.end):
            if number != page_no:
                page_no = number
                pages.append((page_no, []))
            pages[-1][1].append((first, end, claim))
    return pages


def _alike(cuts: list[_Cut]) -> list[list[_Cut]]:
    """Group neighbours that share a delivery, and for which entries ask the same with the same handle."""
    groups = [cuts[:1]]
    for cut in cuts[1:]:
        first, _, delivery, claim = cut
        _, end, last_delivery, last_claim = groups[-1][-1]
        if first == end and delivery is last_delivery and _asks_the_same(claim, last_claim):
            groups[-1].append(cut)
        else:
            groups.append([cut])
    return groups


def _asks_the_same(claim: Claim, other: Claim) -> bool:
    if claim.handle is not other.handle:
        return False
    one, two = claim.entry, other.entry
    if isinstance(one, ChangeEntry) and isinstance(two, ChangeEntry):
        # A release may be the last attempt: then it has two audit rows, which follow each other for each run.
        if is_release(one) or is_release(two):
            return False
        return one.invisible_time_ms == two.invisible_time_ms and one.suspend == two.suspend
    return one.cause == two.cause


class _Work:
    """Claims on one lane while they are decided: the pieces so far, and the runs of offsets that were acked."""

    __slots__ = ("acked", "lane", "last_change", "op", "pieces")

    def __init__(self, op: OpContext, lane: LaneState) -> None:
        self.op = op
        self.lane = lane
        self.pieces: list[Piece] = []
        self.acked: list[tuple[int, int]] = []
        self.last_change: tuple[Delivery, Delivery] | None = None
        """(before, after)"""

    def decide_page(self, page: DeliveryPage, parts: list[_Part]) -> None:
        lane, pieces = self.lane, self.pieces
        self.op.meet(page)
        changed: list[tuple[int, int, Delivery | None]] = []
        for alike in _alike(page.within_each(parts)):
            first, _, delivery, claim = alike[0]
            end, handle, entry = alike[-1][1], claim.handle, claim.entry
            if delivery is None:
                pieces += _judge_not_in_flight(lane, handle, first, end)
            elif (reason := judge(lane, entry, handle, delivery)) is not Reason.OK:
                current = delivery if reason is Reason.SUPERSEDED else None
                pieces.append(Piece(first, end, reason, delivery, current))
            elif not isinstance(entry, ChangeEntry):
                self._ack(entry, first, end, delivery)
                changed.append((first, end, None))
            else:
                after = self._change(entry, first, end, delivery)
                if delivery.state != _LEASED and after is not None and after.client:
                    # A return of the client has forgotten the page.
                    lane.add_client_page(after.client, page, self._id_of(after.client))
                changed += [(at, stop, after) for at, stop, _, _ in alike]
        if changed:
            page.replace_each(changed)
            lane.settle(page)

    def _id_of(self, client: int) -> str | None:
        """Return the id of the client that sends the record, if it is this one."""
        sender = self.op.client_id
        return sender if sender is not None and client_hash(sender) == client else None

    def _ack(self, entry: AckEntry | RejectEntry, first: int, end: int, before: Delivery) -> None:
        acked = self.acked
        if acked and acked[-1][1] == first:
            acked[-1] = (acked[-1][0], end)
        else:
            acked.append((first, end))
        ack_run(self.op, self.lane, entry, first, end, before)
        self.pieces.append(Piece(first, end, Reason.OK, before))

    def _change(self, entry: ChangeEntry, first: int, end: int, before: Delivery) -> Delivery | None:
        """Apply a change; return the delivery that the page gets, None for a dead letter."""
        op, lane = self.op, self.lane
        if before.state != _LEASED:
            lane.record.available -= end - first
            lane.record.leased += end - first
        wait_ms = wait_of_release_ms(lane, entry, before.attempt)
        after = self._changed(entry, before, wait_ms)
        header = Header(after.pop_time_ms, after.invisible_time_ms, 0)
        self.pieces.append(Piece(first, end, Reason.OK, before, after, header))
        if is_release(entry):
            return end_lease(
                op,
                lane,
                first,
                end,
                after,
                step=DeliveryStep.RELEASED,
                cause=release_cause(entry.cause),
                at_ms=op.now_ms,
                wait_ms=None if entry.release is None else wait_ms,
                client_id=op.client_id,
            )
        step = DeliveryStep.CHANGED
        op.audit.step(lane, step, first, end, after, cause="change_invisible", client_id=op.client_id)
        return after

    def _changed(self, entry: ChangeEntry, before: Delivery, invisible_time_ms: int) -> Delivery:
        """Return the delivery after a change; messages with equal deliveries before and after share it."""
        if self.last_change is not None:
            last_before, after = self.last_change
            is_same = after.invisible_time_ms == invisible_time_ms and after.suspended == entry.suspend
            if last_before is before and is_same:
                return after
        after = before.changed(now_ms=self.op.now_ms, invisible_time_ms=invisible_time_ms, suspend=entry.suspend)
        self.last_change = before, after
        return after


def _judge_not_in_flight(lane: LaneState, handle: Handle, first: int, end: int) -> list[Piece]:
    """Judge offsets without a delivery: acked, a hole, or not handed out since the lane was made or reset."""
    pieces: list[Piece] = []
    at = first
    fresh = Reason.STALE_HANDLE if handle.epoch <= lane.record.reset_epoch else Reason.OUTSIDE_POP
    queue = lane.queue
    for low, high in lane.acked.unmarked(first, end):
        if low > at:
            pieces.append(Piece(at, low, Reason.ALREADY_ACKED))
        at = low
        if queue.record.holes:
            for hole_first, hole_end in queue.holes.runs(low, high):
                if hole_first > at:
                    pieces.append(Piece(at, hole_first, fresh))
                pieces.append(Piece(hole_first, hole_end, Reason.ALREADY_ACKED))
                at = hole_end
        if at < high:
            pieces.append(Piece(at, high, fresh))
        at = high
    if at < end:
        pieces.append(Piece(at, end, Reason.ALREADY_ACKED))
    return pieces
