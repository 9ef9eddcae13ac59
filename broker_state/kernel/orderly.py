"""An orderly lane: its batch is handed out, changed and done with (docs/semantics.md, "...in an orderly lane")."""

from collections.abc import Iterator, Sequence

from broker_state.audit import DeliveryStep, shortened
from broker_state.kernel.claim import Claim, Header, Piece
from broker_state.kernel.delivery import Choice, absorb_holes
from broker_state.kernel.op_context import OpContext
from broker_state.kernel.order_info import Member, OrderInfo
from broker_state.kernel.queue_state import LaneState, QueueState
from broker_state.store.keys import DEADLINE_BATCH
from broker_state.store.pages import Delivery, DeliveryState, client_hash
from popstream.wire.answer import LeasedRange
from popstream.wire.command import AckEntry, ChangeEntry, Entry, RejectEntry
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle
from popstream.wire.reason import Reason

__all__ = ["acked_within", "decide_in_order", "expire_members", "grant_in_order", "release_members", "settle_batch"]


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
    """Make what follows the commit offset the new batch; the caller has seen that the lane is not blocked.

    Returns a delivery of the new epoch, the first member and the ranges; None when the tags let nothing through.
    """
    limit = lane.policy.in_flight_max
    choice = Choice(lane.queue, max_messages, min(max_messages, limit) if limit else max_messages, tags)
    members: list[tuple[int, int]] = []
    for first, end in _written_runs(lane.queue, lane.acked.floor):
        for low, high, given in choice.cut(first, end):
            if not given:
                continue
            if members and members[-1][1] == low:
                members[-1] = (members[-1][0], high)
            else:
                members.append((low, high))
        if not choice.is_open():
            break
    if not members:
        _pass_over_all(op, lane)
        return None
    record, info = lane.record, lane.order_info
    if info.due_ms:  # the same attempt id: what it held is released to it
        for first, end, member in info.unacked():
            if not member.ended:
                op.audit.step(
                    lane.record, DeliveryStep.RELEASED, first, end, _delivery(info, member), cause="attempt_id"
                )
    record.epoch += 1
    info.update(
        epoch=record.epoch,
        pop_time_ms=op.now_ms,
        invisible_time_ms=invisible_time_ms,
        members=members,
        now_ms=op.now_ms,
        attempt_id=attempt_id,
        client=client_hash(client_id) if client_id else 0,
    )
    _begin_beyond(lane)
    record.next_offset = info.end
    record.leased = info.member_count
    settle_batch(op, lane)
    ranges: list[LeasedRange] = []
    for first, end, member in info.runs():
        if not member.is_member:
            continue
        op.audit.step(
            lane.record,
            DeliveryStep.LEASED,
            first,
            end,
            _delivery(info, member),
            cause="pop_in_order",
            client_id=client_id,
        )
        if ranges and ranges[-1].last == first - 1 and ranges[-1].attempt == member.count + 1:
            ranges[-1] = LeasedRange(ranges[-1].first, end - 1, member.count + 1)
        else:
            ranges.append(LeasedRange(first, end - 1, member.count + 1))
    return _delivery(info, Member(True)), info.first, ranges


def decide_in_order(op: OpContext, lane: LaneState, claims: Sequence[Claim]) -> list[Piece]:
    """Judge `claims`, all within the queue and not named before, and apply what is good.

    What follows from it takes effect before the next offset is judged, as if each were an operation of its own: the
    commit offset moves, and members whose leases end may be dead-lettered.
    """
    pieces: list[Piece] = []
    for claim in claims:
        pieces += _decide_range(op, lane, claim.handle, claim.entry, claim.first, claim.end)
    return pieces


def _decide_range(op: OpContext, lane: LaneState, handle: Handle, entry: Entry, first: int, end: int) -> list[Piece]:
    info = lane.order_info
    next_visible_ms = op.now_ms + entry.invisible_time_ms if isinstance(entry, ChangeEntry) else None
    is_current = info.member_count > 0 and handle.epoch == info.epoch
    pieces: list[Piece] = []
    at = first
    while at < end:
        if at < lane.acked.floor:
            stop = min(end, lane.acked.floor)
            header = None if next_visible_ms is None else (0, 0, 0)
            pieces.append(Piece(at, stop, Reason.ALREADY_ACKED, header=header))
        elif not is_current:
            stop = end
            header = _header(handle.pop_time_ms, next_visible_ms)
            pieces.append(Piece(at, stop, Reason.STALE_HANDLE, header=header))
        else:
            stop, member = info.at(at, end)
            if member is None or not member.is_member:
                pieces += [
                    Piece(low, high, Reason.ALREADY_ACKED if is_hole else Reason.OUTSIDE_POP)
                    for low, high, is_hole in _cut_by_holes(lane.queue, at, stop)
                ]
            elif member.acked:
                for low, high, is_hole in _cut_by_holes(lane.queue, at, stop):
                    header = None if is_hole else _header(info.pop_time_ms, next_visible_ms)
                    before = None if is_hole else _delivery(info, member)
                    pieces.append(Piece(low, high, Reason.ALREADY_ACKED, before, header=header))
            elif isinstance(entry, ChangeEntry):
                if not entry.invisible_time_ms and lane.policy.max_attempts:
                    stop = at + 1  # it may be the last attempt of those that follow too
                pieces.append(_change(op, lane, info, entry, at, stop, member))
            else:
                pieces.append(_ack(op, lane, info, entry, at, stop, member))
        at = stop
    return pieces


def settle_batch(op: OpContext, lane: LaneState, *, is_release: bool = False) -> None:
    """The batch was changed, or is due: move the commit offset, tell what has ended, store the deadline.

    With `is_release` a client gave something back, which ends a lease also when the lane was free already.
    """
    info = lane.order_info
    free_ms = info.free_ms()
    if (info.due_ms or is_release) and free_ms <= op.now_ms:
        _end_leases(op, lane, info)
    _follow_acks(lane, info)
    due_ms = free_ms if free_ms > op.now_ms else 0
    if due_ms != info.due_ms:
        lane.queue.set_deadline(lane.record.lane_no, DEADLINE_BATCH, 0, info.due_ms, due_ms)
        info.set_due_ms(due_ms)
    _balance(lane)


def release_members(op: OpContext, lane: LaneState, cause: str, *, counted: bool) -> list[tuple[int, int]]:
    """Make every invisible, unacked member visible now; the ranges that a client held, half-open."""
    info = lane.order_info
    released: list[tuple[int, int]] = []
    for first, end, member in list(info.unacked()):
        if info.next_visible_ms(member) <= op.now_ms:
            continue
        info.change(first, end, op.now_ms, suspended=member.suspended or not counted, ended=True)
        if not member.ended:  # else a pop has passed it over, and nobody holds it
            lane.record.leased -= end - first
            op.audit.step(lane.record, DeliveryStep.RELEASED, first, end, _delivery(info, member), cause=cause)
            released.append((first, end))
    settle_batch(op, lane)
    return released


def expire_members(op: OpContext, lane: LaneState, first: int, end: int, *, is_prefix: bool) -> None:
    """[first, end) left the log; with `is_prefix` everything below `end` did, and the commit offset moves to it."""
    info, record, floor = lane.order_info, lane.record, lane.acked.floor
    for at, stop, member in list(info.runs(first, end)):
        if not member.is_member or member.acked:
            continue
        # What the lane has passed already is marked, so that it blocks no more, and is not counted again.
        if stop > floor:
            low = max(at, floor)
            op.audit.step(
                lane.record, DeliveryStep.EXPIRED_FROM_LOG, low, stop, _delivery(info, member), cause="log_start"
            )
            record.leased -= 0 if member.ended else stop - low
            record.expired_from_log += stop - low
        info.ack(at, stop)
    if is_prefix:
        record.expired_from_log += _move_commit_offset(lane, info, end)
    settle_batch(op, lane)


def acked_within(lane: LaneState, first: int, end: int) -> int:
    """How many members of [first, end) are acked and no holes."""
    return sum(
        stop - at - lane.queue.count_holes(at, stop)
        for at, stop, member in lane.order_info.runs(first, end)
        if member.acked
    )


def _written_runs(queue: QueueState, first: int) -> Iterator[tuple[int, int]]:
    """Runs of written offsets from `first` on that are no holes."""
    end = queue.written.floor
    if first >= end:
        return
    if not queue.record.holes:
        yield first, end
    else:
        yield from queue.holes.runs(first, end, marked=False)


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


def _header(pop_time_ms: int, next_visible_ms: int | None) -> Header | None:
    """RocketMQ keeps the pop time of an orderly handle and moves its invisible time (ChangeInvisibleTimeProcessor)."""
    if next_visible_ms is None:
        return None
    return pop_time_ms, next_visible_ms - pop_time_ms, REVIVE_QUEUE_ID_ORDERLY


def _change(
    op: OpContext, lane: LaneState, info: OrderInfo, entry: ChangeEntry, first: int, end: int, member: Member
) -> Piece:
    next_visible_ms = op.now_ms + entry.invisible_time_ms
    is_release = not entry.invisible_time_ms
    before = _delivery(info, member)
    changed = Member(True, False, next_visible_ms, member.count, entry.suspend, is_release)
    after = _delivery(info, changed)
    info.change(first, end, next_visible_ms, suspended=entry.suspend, ended=is_release)
    lane.record.leased += (end - first) * (member.ended - is_release)
    step = DeliveryStep.RELEASED if is_release else DeliveryStep.CHANGED
    op.audit.step(lane.record, step, first, end, after, cause="change_invisible", client_id=op.client_id)
    settle_batch(op, lane, is_release=is_release)
    return Piece(first, end, Reason.OK, before, after, _header(info.pop_time_ms, next_visible_ms))


def _ack(op: OpContext, lane: LaneState, info: OrderInfo, entry: Entry, first: int, end: int, member: Member) -> Piece:
    before = _delivery(info, member)
    info.ack(first, end)
    lane.record.leased -= 0 if member.ended else end - first
    if isinstance(entry, RejectEntry):
        cause = shortened(entry.cause) or "rejected"
        lane.record.dead_lettered += end - first
        op.audit.step(lane.record, DeliveryStep.DEAD_LETTERED, first, end, before, cause=cause, client_id=op.client_id)
        op.dead_letter(lane, first, end, before, reason=cause, at_ms=op.now_ms)
    else:
        cause = (entry.cause if isinstance(entry, AckEntry) else None) or "ack"
        op.audit.step(lane.record, DeliveryStep.ACKED, first, end, before, cause=cause, client_id=op.client_id)
    settle_batch(op, lane)
    return Piece(first, end, Reason.OK, before)


def _end_leases(op: OpContext, lane: LaneState, info: OrderInfo) -> None:
    """Nothing blocks any more: what was not acked has expired; from the front on, what has no attempt left is dead."""
    at_ms = min(info.due_ms, op.now_ms) or op.now_ms
    for first, end, member in list(info.unacked()) if lane.record.leased else ():  # else a client holds none of them
        if not member.ended:
            delivery = _delivery(info, member)
            lane.record.leased -= end - first
            ended_ms = min(delivery.deadline_ms, op.now_ms)
            op.audit.step(lane.record, DeliveryStep.EXPIRED, first, end, delivery, cause="deadline", at_ms=ended_ms)
            info.end_lease(first, end, member)
    limit = lane.policy.max_attempts
    for first, end, member in info.unacked() if limit else ():
        if end <= lane.acked.floor:
            continue  # a pop has passed it over
        if member.count + 1 < limit or member.suspended:
            return  # what follows comes again with it: a message that is dead must not
        delivery = _delivery(info, member)
        info.ack(first, end)
        lane.record.dead_lettered += end - first
        op.audit.step(lane.record, DeliveryStep.DEAD_LETTERED, first, end, delivery, cause="attempt_limit", at_ms=at_ms)
        op.dead_letter(lane, first, end, delivery, reason="attempt_limit", at_ms=at_ms)


def _delivery(info: OrderInfo, member: Member) -> Delivery:
    """A member's lease in the words of concurrent lanes, for rows and handles."""
    deadline_ms = info.next_visible_ms(member)
    return Delivery(
        info.epoch,
        0,
        info.pop_time_ms,
        deadline_ms,
        deadline_ms - info.pop_time_ms,
        info.client,
        member.count + 1,
        DeliveryState.LEASED,
        member.suspended,
    )


def _pass_over_all(op: OpContext, lane: LaneState) -> None:
    """The tags of a pop let nothing through: the lane is done up to the commit position, and its batch stays."""
    info, floor = lane.order_info, lane.acked.floor
    for first, end, member in list(info.unacked()):
        if end > floor and not member.ended:  # as the same attempt id may find it
            low = max(first, floor)
            info.end_lease(low, end, member)
            lane.record.leased -= end - low
            op.audit.step(lane.record, DeliveryStep.RELEASED, low, end, _delivery(info, member), cause="passed_over")
    lane.record.passed_over += _move_commit_offset(lane, info, lane.queue.written.floor)
    _balance(lane)


def _follow_acks(lane: LaneState, info: OrderInfo) -> None:
    """The commit offset is the batch's; a pop alone does not pass what its tags left out before its first member."""
    if info.acked_count:
        lane.record.passed_over += _move_commit_offset(lane, info, info.next_offset)


def _begin_beyond(lane: LaneState) -> None:
    """Nothing is handed out beyond the commit offset: all holes that were counted lie below it."""
    if lane.acked.floor == lane.record.next_offset:
        lane.record.holes_passed = lane.record.holes


def _balance(lane: LaneState) -> None:
    """Beyond the commit offset: holes, what a client holds, and what is neither."""
    record, floor = lane.record, lane.acked.floor
    if floor == record.next_offset:
        absorb_holes(lane)
        assert not record.leased, "who holds a message holds it beyond the commit offset"
        record.available = 0
        return
    holes = lane.queue.count_holes(floor, record.next_offset)
    record.holes = record.holes_passed + holes
    record.available = record.next_offset - floor - holes - record.leased


def _move_commit_offset(lane: LaneState, info: OrderInfo, to: int) -> int:
    """Everything below `to` is done; how many messages of it were not acked."""
    record, queue, first = lane.record, lane.queue, lane.acked.floor
    if to <= first:
        return 0
    _begin_beyond(lane)
    holes = queue.count_holes(first, to)
    is_acked = info.is_whole and info.first <= first and to <= info.next_offset and not holes
    acked = to - first if is_acked else acked_within(lane, first, to)
    done = to - first - holes
    record.acked += done
    record.holes_passed += holes
    record.next_offset = max(record.next_offset, to)
    lane.acked.mark(first, to)
    if to == record.next_offset:
        record.holes = record.holes_passed
    return done - acked
