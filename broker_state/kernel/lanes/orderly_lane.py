"""The rules of an orderly lane (RIP-51): a pop makes a batch, entries are judged by it, and the batch becomes free.

docs/semantics.md, "A message in an orderly lane", has the rules; `order_info` stores the batch. Read downwards:

    rule here               RocketMQ's ConsumerOrderInfoManager
    grant_in_order          update, OrderInfo.mergeOffsetConsumedCount
    decide_in_order         commitAndNext, updateNextVisibleTime
    settle_batch            checkBlock, getLockFreeTimestamp
    release_members         (none: cancel and return_client)
    expire_members          (none: a batch keeps members that have left the log)
    note_operation          autoClean
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from broker_state.audit import DeliveryStep, is_handler_cause, release_cause, shortened
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.order_info import MemberRun, OrderInfo
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.lanes.concurrent_grant import absorb_holes
from broker_state.kernel.lanes.entry_claim import NO_HEADER, Claim, Header, Piece
from broker_state.kernel.lanes.lease_end import is_release, wait_of_release_ms
from broker_state.kernel.lanes.pop_filter import PopFilter
from broker_state.store.facts import Delivery, DeliveryState, Member, client_hash
from broker_state.store.keys import DEADLINE_BATCH
from broker_state.store.pages import PAGE_OFFSETS, Runs
from broker_state.store.span import Span, append_span
from popstream.wire.answer import LeasedRange
from popstream.wire.command import AckEntry, ChangeEntry, RejectEntry
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY
from popstream.wire.reason import Reason

__all__ = [
    "IDLE_MS",
    "acked_within",
    "decide_in_order",
    "expire_members",
    "grant_in_order",
    "is_same_attempt",
    "note_operation",
    "release_members",
    "settle_batch",
]

IDLE_MS: Final = 24 * 60 * 60 * 1000
"""A lane without an operation for longer than this forgets the counts of its batch."""
_FIRST_DELIVERY: Final = Member(is_member=True)
_ZERO_HEADER: Final = Header(0, 0, 0)
_SPANS_COST: Final = 64
"""What it costs to list the spans between the holes of a segment."""


# A pop makes the batch.


def is_same_attempt(info: OrderInfo, attempt_id: str | None) -> bool:
    """Whether a pop with this attempt id may have the batch again, blocked or not (RocketMQ: OrderInfo.needBlock)."""
    return attempt_id is not None and info.head.attempt_id == attempt_id


def grant_in_order(
    op: OpContext,
    lane: LaneState,
    *,
    max_messages: int,
    invisible_time_ms: int,
    client_id: str | None,
    tags: tuple[int, ...] | None,
    attempt_id: str | None,
) -> tuple[Delivery, int, list[LeasedRange]] | None:
    """Make what follows the commit offset the new batch (RocketMQ: ConsumerOrderInfoManager.update).

    The caller has seen that the lane is not blocked, or that the batch is that of the same attempt.
    Returns a delivery of the new epoch, the first member and the ranges; None when the tags let nothing through.
    """
    info = lane.order_info
    limit = lane.limits.in_flight_max
    choice = PopFilter(op, max_messages, min(max_messages, limit) if limit else max_messages, tags)
    members, searched_end, deliver_at_ms = _choose_members(lane, choice)
    if not members:
        _pass_over(op, lane, searched_end)
        if choice.is_cut_short:
            op.pause(lane)
        elif deliver_at_ms:
            lane.pause(deliver_at_ms)
        return None
    if info.head.due_ms:  # the same attempt: what it still holds is released to it
        for first, end, member in info.unacked():
            if not member.ended:
                op.audit.step(lane, DeliveryStep.RELEASED, first, end, _delivery(info, member), cause="attempt_id")
    lane.record.epoch += 1
    batch = _with_counts(info, members, attempt_id)
    client = client_hash(client_id)
    lane.replace_client(info.head.client, client, client_id)
    info.begin(
        batch,
        epoch=lane.record.epoch,
        now_ms=op.now_ms,
        invisible_time_ms=invisible_time_ms,
        attempt_id=attempt_id,
        client=client,
        least_count=_least_count(batch),
    )
    _begin_beyond(lane)
    lane.record.next_offset = info.head.end
    lane.record.leased = info.head.member_count
    settle_batch(op, lane)
    return _delivery(info, _FIRST_DELIVERY), info.head.first, _lease_members(op, lane, client_id)


def _choose_members(lane: LaneState, choice: PopFilter) -> tuple[list[Span], int, int]:
    """Return what one pop takes from the commit offset on: written offsets that are not holes and pass the tags.

    Also returns the offset up to which it has looked, the commit position unless the pop is full, and the delivery time
    of the message there; 0: what ended the pop was no time to come.
    """
    members: list[Span] = []
    searched_end = lane.acked.floor
    for written in _spans_to_search(lane.queue, choice, searched_end):
        searched_end = choice.unread_until(searched_end, written[0])
        choice.pass_gap(searched_end, written[0])
        if not choice.is_open():
            return members, searched_end, 0
        for first, end, is_given, deliver_at_ms in choice.cut(*written):
            if deliver_at_ms:  # nothing overtakes it
                return members, first, deliver_at_ms
            searched_end = end
            if is_given:
                append_span(members, first, end)
        if not choice.is_open():
            return members, searched_end, 0
    return members, lane.queue.written.floor, 0


def _with_counts(info: OrderInfo, members: list[Span], attempt_id: str | None) -> list[MemberRun]:
    """Give each of `members` the deliveries before this one (RocketMQ: OrderInfo.mergeOffsetConsumedCount).

    An offset that was a member of the last batch, acked or not, counts one delivery more, unless it was suspended. A
    pop of the same attempt changes no count, and keeps those of offsets that are no longer members.
    """
    is_same = is_same_attempt(info, attempt_id)
    counts: Runs[int] = Runs([])
    for first, end, member in info.runs():
        count = member.count if is_same or member.suspended else member.count + 1
        if count and (is_same or member.is_member):
            counts.runs.append((first, end, count))
    batch: list[MemberRun] = [
        (first, end, Member(True, count=count) if count else _FIRST_DELIVERY)
        for first, end, count, _ in counts.within_each((first, end, None) for first, end in members)
    ]
    if is_same:
        chosen = Runs([(first, end, True) for first, end in members])
        batch += [
            (first, end, Member(False, count=count))
            for first, end, is_member, count in chosen.within_each(counts.runs)
            if not is_member
        ]
        batch.sort(key=lambda run: run[0])
    return batch


def _least_count(batch: list[MemberRun]) -> int:
    """Return the least count when as many offsets have one as there are members, else 0 (RocketMQ: the order count)."""
    counted = sum(end - first for first, end, member in batch if member.count)
    if counted != sum(end - first for first, end, member in batch if member.is_member):
        return 0
    return min(member.count for _, _, member in batch if member.count)


def _lease_members(op: OpContext, lane: LaneState, client_id: str | None) -> list[LeasedRange]:
    """Report the lease of each member, and return the ranges for the answer."""
    info, leased = lane.order_info, DeliveryStep.LEASED
    ranges: list[LeasedRange] = []
    for first, end, member in info.runs():
        if not member.is_member:
            continue
        op.audit.step(lane, leased, first, end, _delivery(info, member), cause="pop_in_order", client_id=client_id)
        if ranges and ranges[-1].last == first - 1 and ranges[-1].attempt == member.count + 1:
            ranges[-1] = LeasedRange(ranges[-1].first, end - 1, member.count + 1)
        else:
            ranges.append(LeasedRange(first, end - 1, member.count + 1))
    return ranges


def _pass_over(op: OpContext, lane: LaneState, searched_end: int) -> None:
    """The tags of a pop let nothing below `searched_end` through: the lane is done up to there; its batch stays."""
    info, floor = lane.order_info, lane.acked.floor
    for first, end, member in info.unacked():
        low, high = max(first, floor), min(end, searched_end)
        if low < high and not member.ended:  # leased still, when the same attempt comes again
            _become(lane, low, high, member, replace(member, ended=True))
            op.audit.step(lane, DeliveryStep.RELEASED, low, high, _delivery(info, member), cause="passed_over")
    lane.record.passed_over += _move_commit_offset(lane, searched_end)
    _balance(op, lane)


# Entries are judged offset by offset, and applied.


def decide_in_order(op: OpContext, lane: LaneState, claims: Sequence[Claim]) -> list[Piece]:
    """Judge `claims`, all within the queue and not named before, and apply what is good.

    What follows from it takes effect before the next offset is judged, as if each were an operation of its own: the
    commit offset moves, and members whose leases end may be dead-lettered.
    """
    pieces: list[Piece] = []
    for claim in claims:
        at = claim.first
        while at < claim.end:
            pieces += _judge(op, lane, claim, at)
            at = pieces[-1].end
    return pieces


def _judge(op: OpContext, lane: LaneState, claim: Claim, first: int) -> list[Piece]:
    """Judge the offsets of `claim` from `first` on, as far as they are alike; the first rule that holds decides.

    RocketMQ: AckMessageProcessor.ackOrderly, ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForOrder.
    """
    info, floor, entry = lane.order_info, lane.acked.floor, claim.entry
    head = info.head
    next_visible_ms = op.now_ms + entry.invisible_time_ms if isinstance(entry, ChangeEntry) else None
    if first < floor:
        header = NO_HEADER if next_visible_ms is None else _ZERO_HEADER
        return [Piece(first, min(claim.end, floor), Reason.ALREADY_ACKED, header=header)]
    if not head.member_count or claim.handle.epoch != head.epoch:
        header = _header(claim.handle.pop_time_ms, next_visible_ms)
        return [Piece(first, claim.end, Reason.STALE_HANDLE, header=header)]
    end, member = info.at(first, claim.end)
    if member is None or not member.is_member:
        return [
            Piece(low, high, Reason.ALREADY_ACKED if is_hole else Reason.OUTSIDE_POP)
            for low, high, is_hole in _cut_by_holes(lane.queue, first, end)
        ]
    if member.acked:
        before, header = _delivery(info, member), _header(head.pop_time_ms, next_visible_ms)
        return [
            Piece(low, high, Reason.ALREADY_ACKED)
            if is_hole
            else Piece(low, high, Reason.ALREADY_ACKED, before, header=header)
            for low, high, is_hole in _cut_by_holes(lane.queue, first, end)
        ]
    if 0 < head.due_ms <= op.now_ms:
        end = first + 1  # the batch is free since before this record: what follows changes as soon as it is settled
    if isinstance(entry, ChangeEntry):
        if is_release(entry) and lane.policy.max_attempts:
            end = first + 1  # this release may dead-letter the offsets that follow
        return [_change(op, lane, entry, first, end, member)]
    return [_ack(op, lane, entry, first, end, member)]


def _ack(op: OpContext, lane: LaneState, entry: AckEntry | RejectEntry, first: int, end: int, member: Member) -> Piece:
    """An ack or a reject of unacked members (RocketMQ: ConsumerOrderInfoManager.commitAndNext)."""
    before = _delivery(lane.order_info, member)
    _become(lane, first, end, member, replace(member, acked=True))
    if isinstance(entry, RejectEntry):
        reason = shortened(entry.cause) or "rejected"
        _dead_letter(op, lane, first, end, before, reason=reason, at_ms=op.now_ms, client_id=op.client_id)
    else:
        cause = entry.cause or "ack"
        op.audit.step(lane, DeliveryStep.ACKED, first, end, before, cause=cause, client_id=op.client_id)
    settle_batch(op, lane)
    return Piece(first, end, Reason.OK, before)


def _change(op: OpContext, lane: LaneState, entry: ChangeEntry, first: int, end: int, member: Member) -> Piece:
    """A change or a release of unacked members (RocketMQ: ConsumerOrderInfoManager.updateNextVisibleTime)."""
    info = lane.order_info
    ends = is_release(entry)
    wait_ms = wait_of_release_ms(lane, entry, member.count + 1)
    if ends and _is_at_limit(member, lane.policy.max_attempts) and not entry.suspend:
        wait_ms = 0  # there is no further attempt to wait for
    next_visible_ms = op.now_ms + wait_ms
    changed = replace(member, next_visible_ms=next_visible_ms, suspended=entry.suspend, ended=ends)
    before, after = _delivery(info, member), _delivery(info, changed)
    _become(lane, first, end, member, changed)
    info.touch()
    step = DeliveryStep.RELEASED if ends else DeliveryStep.CHANGED
    cause = release_cause(entry.cause) if ends else "change_invisible"
    op.audit.step(lane, step, first, end, after, cause=cause, client_id=op.client_id)
    settle_batch(op, lane, released=(first, cause) if ends else None)
    return Piece(first, end, Reason.OK, before, after, _header(info.head.pop_time_ms, next_visible_ms))


def _header(pop_time_ms: int, next_visible_ms: int | None) -> Header:
    """Keep the pop time and move the invisible time, as RocketMQ does for an orderly handle; an ack has no header."""
    if next_visible_ms is None:
        return NO_HEADER
    return Header(pop_time_ms, next_visible_ms - pop_time_ms, REVIVE_QUEUE_ID_ORDERLY)


# The batch becomes free: leases end, and the commit offset follows the acks.


def settle_batch(op: OpContext, lane: LaneState, *, released: tuple[int, str] | None = None) -> None:
    """Bring the lane in line with its batch, which was changed or is due.

    The batch blocks the lane while an unacked member is invisible (RocketMQ: ConsumerOrderInfoManager.checkBlock). The
    lane is free when the last one becomes visible; that moment is the stored deadline (RocketMQ: getLockFreeTimestamp,
    which takes the first one). With `released` a client gave something back, from this offset on and for this cause:
    leases end although the lane was free.
    """
    info = lane.order_info
    head = info.head
    free_ms = info.latest_visible_ms()
    if (head.due_ms or released) and free_ms <= op.now_ms:
        _end_leases(op, lane, released)
    if head.acked_count:  # without an ack the offsets before the first member, which tags left out, are not passed
        lane.record.passed_over += _move_commit_offset(lane, head.next_offset)
    due_ms = free_ms if free_ms > op.now_ms else 0
    if due_ms != head.due_ms:
        lane.queue.set_deadline(lane.era_no, DEADLINE_BATCH, 0, head.due_ms, due_ms)
        head.due_ms = due_ms
        info.touch()
    _balance(op, lane)


def _end_leases(op: OpContext, lane: LaneState, released: tuple[int, str] | None) -> None:
    """The batch is free: leases of unacked members expire, and members at the attempt limit are dead-lettered."""
    info = lane.order_info
    free_since_ms = min(info.head.due_ms, op.now_ms) or op.now_ms
    if lane.record.leased:
        _expire_leases(op, lane)
    if lane.policy.max_attempts:
        _dead_letter_first_members(op, lane, lane.policy.max_attempts, free_since_ms, released)


def _expire_leases(op: OpContext, lane: LaneState) -> None:
    """End the lease of each unacked member that a client holds, at the member's own deadline."""
    info = lane.order_info
    for first, end, member in info.unacked():
        if not member.ended:
            delivery = _delivery(info, member)
            ended_ms = min(delivery.deadline_ms, op.now_ms)
            _become(lane, first, end, member, replace(member, ended=True))
            op.audit.step(lane, DeliveryStep.EXPIRED, first, end, delivery, cause="deadline", at_ms=ended_ms)


def _dead_letter_first_members(
    op: OpContext, lane: LaneState, max_attempts: int, at_ms: int, released: tuple[int, str] | None
) -> None:
    """Dead-letter unacked members at the attempt limit, from the first one on, up to one with attempts left.

    The members behind that one are delivered again with it, which a dead letter must not be. The one that was
    `released` by a handler that failed is a letter of its own, with that cause.
    """
    failed, cause = released if released and is_handler_cause(released[1]) else (-1, "")
    info = lane.order_info
    for first, end, member in info.unacked():
        if end <= lane.acked.floor:
            continue  # a pop has passed it over
        if not _is_at_limit(member, max_attempts) or member.suspended:
            return
        _become(lane, first, end, member, replace(member, acked=True))
        cuts = (first, failed, failed + 1, end) if first <= failed < end else (first, end)
        for low, high in pairwise(cuts):
            why = cause if low == failed else None
            if low < high:
                _dead_letter(
                    op, lane, low, high, _delivery(info, member), reason="attempt_limit", at_ms=at_ms, cause=why
                )


def _is_at_limit(member: Member, max_attempts: int) -> bool:
    """Whether the delivery of a member is the last one that the policy allows."""
    return 0 < max_attempts <= member.count + 1


def release_members(op: OpContext, lane: LaneState, cause: str, *, counted: bool) -> list[Span]:
    """Make every invisible, unacked member visible now; return those that a client held.

    With `counted` False the delivery does not count as an attempt, as after `suspend`.
    """
    info = lane.order_info
    released: list[Span] = []
    for first, end, member in info.unacked():
        if info.next_visible_ms(member) <= op.now_ms:
            continue
        suspended = member.suspended or not counted
        visible = replace(member, next_visible_ms=op.now_ms, suspended=suspended, ended=True)
        _become(lane, first, end, member, visible)
        info.touch()
        if not member.ended:  # else a pop has passed it over, and nobody holds it
            op.audit.step(lane, DeliveryStep.RELEASED, first, end, _delivery(info, member), cause=cause)
            append_span(released, first, end)
    settle_batch(op, lane)
    return released


def expire_members(op: OpContext, lane: LaneState, first: int, end: int, *, is_prefix: bool) -> None:
    """[first, end) left the log: its members count as acked, so that they block no more once the batch is settled.

    With `is_prefix` everything below `end` left the log, and the commit offset moves to it.
    """
    info, record, floor = lane.order_info, lane.record, lane.acked.floor
    for at, stop, member in info.runs(first, end):
        if not member.is_member or member.acked:
            continue
        _become(lane, at, stop, member, replace(member, acked=True))
        if stop > floor:  # what lies below was counted when the commit offset passed it
            low = max(at, floor)
            record.expired_from_log += stop - low
            op.audit.step(lane, DeliveryStep.EXPIRED_FROM_LOG, low, stop, _delivery(info, member), cause="log_start")
    if is_prefix:
        record.expired_from_log += _move_commit_offset(lane, end)


def note_operation(lane: LaneState, now_ms: int) -> None:
    """Drop the consumed counts when the lane's last operation is more than 24 hours ago.

    RocketMQ's ConsumerOrderInfoManager.autoClean drops the whole entry then, and with it what blocks the lane.
    """
    info = lane.order_info
    head = info.head
    if head.member_count and now_ms - head.last_op_ms > IDLE_MS:
        info.forget_counts()
    if now_ms > head.last_op_ms:
        head.last_op_ms = now_ms
        info.put_head()


def _become(lane: LaneState, first: int, end: int, before: Member, after: Member) -> None:
    """Store members of one page as they are now, and keep the lane's count of leases."""
    lane.order_info.replace(first, end, before, after)
    lane.record.leased += (end - first) * (_is_leased(after) - _is_leased(before))


def _is_leased(member: Member) -> bool:
    """Whether a client holds a member."""
    return not (member.acked or member.ended)


def _dead_letter(
    op: OpContext,
    lane: LaneState,
    first: int,
    end: int,
    delivery: Delivery,
    *,
    reason: str,
    at_ms: int,
    client_id: str | None = None,
    cause: str | None = None,
) -> None:
    lane.record.dead_lettered += end - first
    op.audit.step(
        lane, DeliveryStep.DEAD_LETTERED, first, end, delivery, cause=reason, at_ms=at_ms, client_id=client_id
    )
    op.dead_letter(lane, first, end, delivery, reason=reason, at_ms=at_ms, cause=cause)


def _delivery(info: OrderInfo, member: Member) -> Delivery:
    """Return a member's lease in the form of concurrent lanes, for rows and handles."""
    head, deadline_ms = info.head, info.next_visible_ms(member)
    return Delivery(
        epoch=head.epoch,
        revision=0,
        pop_time_ms=head.pop_time_ms,
        deadline_ms=deadline_ms,
        invisible_time_ms=deadline_ms - head.pop_time_ms,
        client=head.client,
        attempt=member.count + 1,
        state=DeliveryState.LEASED,
        suspended=member.suspended,
    )


# The counts of the lane: commit offset, holes, leased, available.


def acked_within(lane: LaneState, first: int, end: int) -> int:
    """How many members of [first, end) are acked and not holes."""
    return sum(
        stop - at - lane.queue.count_holes(at, stop)
        for at, stop, member in lane.order_info.runs(first, end)
        if member.acked
    )


def _move_commit_offset(lane: LaneState, to: int) -> int:
    """Everything below `to` is done; return how many messages of it were not acked."""
    head, record, queue, floor = lane.order_info.head, lane.record, lane.queue, lane.acked.floor
    if to <= floor:
        return 0
    _begin_beyond(lane)
    holes = queue.count_holes(floor, to)
    is_acked = lane.order_info.is_whole and head.first <= floor and to <= head.next_offset and not holes
    acked = to - floor if is_acked else acked_within(lane, floor, to)
    done = to - floor - holes
    record.acked += done
    record.holes_passed += holes
    record.next_offset = max(record.next_offset, to)
    lane.acked.mark(floor, to)
    if to == record.next_offset:
        record.holes = record.holes_passed
    return done - acked


def _begin_beyond(lane: LaneState) -> None:
    """Nothing is handed out beyond the commit offset: all holes that were counted lie below it."""
    if lane.acked.floor == lane.record.next_offset:
        lane.record.holes_passed = lane.record.holes


def _balance(op: OpContext, lane: LaneState) -> None:
    """Count what lies in [commit offset, next_offset): holes, what a client holds, and the rest."""
    record, floor = lane.record, lane.acked.floor
    if floor == record.next_offset:
        absorb_holes(op, lane)
        assert not record.leased, "a message that a client holds lies beyond the commit offset"
        record.available = 0
        return
    holes = lane.queue.count_holes(floor, record.next_offset)
    record.holes = record.holes_passed + holes
    record.available = record.next_offset - floor - holes - record.leased


def _written_spans(queue: QueueState, first: int) -> Iterator[tuple[int, int]]:
    """Spans of written offsets from `first` on that are not holes."""
    end = queue.written.floor
    if first >= end:
        return
    if not queue.record.holes:
        yield first, end
    else:
        yield from queue.holes.runs(first, end, marked=False)


def _spans_to_search(queue: QueueState, choice: PopFilter, first: int) -> Iterator[tuple[int, int]]:
    """Spans of written offsets from `first` on in which the pop has something to look at, and a few without."""
    end = queue.written.floor
    at = choice.unread_until(first, end)
    while at < end:
        if queue.record.holes:
            choice.spend(_SPANS_COST)
        for low, high in _written_spans(queue, at):
            yield low, high
            at = choice.unread_until(high, end)
            if at - high > PAGE_OFFSETS:  # it may be far, and there may be many spans before it
                break
        else:
            return


def _cut_by_holes(queue: QueueState, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """[first, end) as (first, end, whether these are holes)."""
    at = first
    for low, high in queue.holes.runs(first, end) if queue.record.holes else ():
        if at < low:
            yield at, low, False
        yield low, high, True
        at = high
    if at < end:
        yield at, end, False
