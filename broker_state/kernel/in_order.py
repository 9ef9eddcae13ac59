"""An orderly lane: its batch is handed out, changed and done with (docs/semantics.md, "...in an orderly lane")."""

from collections.abc import Iterator

from broker_state.answer import LeasedRange
from broker_state.audit import DeliveryStep
from broker_state.command import ChangeEntry, RejectEntry
from broker_state.handle import REVIVE_QUEUE_ID_ORDERLY, Handle
from broker_state.kernel.delivery import Choice, absorb_holes
from broker_state.kernel.order_info import Member, OrderInfo
from broker_state.kernel.outcome import Header, Piece
from broker_state.kernel.queue_state import LaneState, QueueState
from broker_state.kernel.turn import Turn, client_hash, shortened
from broker_state.keys import DEADLINE_BATCH
from broker_state.pages import Delivery, DeliveryState
from broker_state.reason import Reason

__all__ = ["expire_members", "grant_in_order", "judge_in_order", "release_members", "settle_batch"]


def grant_in_order(
    turn: Turn,
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
        _move_commit_offset(lane, lane.queue.written.floor)
        return None
    record, info = lane.record, lane.order_info
    record.epoch += 1
    info.update(
        epoch=record.epoch,
        pop_time_ms=turn.now_ms,
        invisible_time_ms=invisible_time_ms,
        members=members,
        now_ms=turn.now_ms,
        attempt_id=attempt_id,
        client=client_hash(client_id) if client_id else 0,
    )
    _account_for_batch(lane, info)
    settle_batch(turn, lane)
    ranges: list[LeasedRange] = []
    for first, end, member in info.runs():
        if not member.is_member:
            continue
        turn.step(lane, DeliveryStep.LEASED, first, end, _delivery(info, member), cause="pop", client_id=client_id)
        if ranges and ranges[-1].last == first - 1 and ranges[-1].attempt == member.count + 1:
            ranges[-1] = LeasedRange(ranges[-1].first, end - 1, member.count + 1)
        else:
            ranges.append(LeasedRange(first, end - 1, member.count + 1))
    return _delivery(info, Member(True)), info.first, ranges


def judge_in_order(turn: Turn, lane: LaneState, handle: Handle, entry: object, first: int, end: int) -> list[Piece]:
    """Judge [first, end), all within the queue and not named before, and apply what is good."""
    info = lane.order_info
    next_visible_ms = turn.now_ms + entry.invisible_time_ms if isinstance(entry, ChangeEntry) else None
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
            _, stop, member = next(info.within(at, end))
            if member is None or not member.is_member:
                pieces += _judge_no_member(lane.queue, at, stop)
            elif member.acked:
                header = _header(info.pop_time_ms, next_visible_ms)
                pieces.append(Piece(at, stop, Reason.ALREADY_ACKED, _delivery(info, member), header=header))
                if next_visible_ms is not None:
                    info.change(at, stop, next_visible_ms, suspended=member.suspended, ended=member.ended)
            elif isinstance(entry, ChangeEntry):
                pieces.append(_change(turn, lane, info, entry, at, stop, member))
            else:
                pieces.append(_ack(turn, lane, info, entry, at, stop, member))
        at = stop
    return pieces


def settle_batch(turn: Turn, lane: LaneState) -> None:
    """The batch was changed, or is due: move the commit offset, tell what has ended, store the deadline."""
    info = lane.order_info
    free_ms = info.free_ms()
    if info.due_ms and free_ms <= turn.now_ms:
        _end_leases(turn, lane, info)
    if info.acked_count:  # a pop alone does not pass over what its tags left out before its first member
        _move_commit_offset(lane, info.next_offset)
    due_ms = free_ms if free_ms > turn.now_ms else 0
    if due_ms != info.due_ms:
        lane.queue.set_deadline(lane.record.lane_no, DEADLINE_BATCH, 0, info.due_ms, due_ms)
        info.set_due_ms(due_ms)


def release_members(turn: Turn, lane: LaneState, cause: str, *, counted: bool) -> list[tuple[int, int]]:
    """Make every invisible, unacked member visible now; their ranges, half-open."""
    info = lane.order_info
    released: list[tuple[int, int]] = []
    for first, end, member in list(info.unacked()):
        if info.next_visible_ms(member) <= turn.now_ms:
            continue
        info.change(first, end, turn.now_ms, suspended=member.suspended or not counted, ended=True)
        turn.step(lane, DeliveryStep.RELEASED, first, end, _delivery(info, member), cause=cause)
        released.append((first, end))
    settle_batch(turn, lane)
    return released


def expire_members(turn: Turn, lane: LaneState, first: int, end: int, *, is_prefix: bool) -> None:
    """[first, end) left the log; with `is_prefix` everything below `end` did, and the commit offset moves to it."""
    info, record = lane.order_info, lane.record
    for at, stop, member in list(info.runs(max(first, lane.acked.floor), end)):
        if member.is_member and not member.acked:
            turn.step(lane, DeliveryStep.EXPIRED_FROM_LOG, at, stop, _delivery(info, member), cause="log_start")
            record.expired_from_log += info.ack(at, stop)
    if is_prefix:
        record.expired_from_log += _move_commit_offset(lane, end, is_passing_over=False)
    settle_batch(turn, lane)


def _written_runs(queue: QueueState, first: int) -> Iterator[tuple[int, int]]:
    """Runs of written offsets from `first` on that are no holes."""
    end = queue.written.floor
    if first >= end:
        return
    if not queue.record.holes:
        yield first, end
    else:
        yield from queue.holes.runs(first, end, marked=False)


def _judge_no_member(queue: QueueState, first: int, end: int) -> list[Piece]:
    if not queue.record.holes:
        return [Piece(first, end, Reason.OUTSIDE_POP)]
    pieces = []
    at = first
    for low, high in queue.holes.runs(first, end):
        if at < low:
            pieces.append(Piece(at, low, Reason.OUTSIDE_POP))
        pieces.append(Piece(low, high, Reason.ALREADY_ACKED))
        at = high
    if at < end:
        pieces.append(Piece(at, end, Reason.OUTSIDE_POP))
    return pieces


def _header(pop_time_ms: int, next_visible_ms: int | None) -> Header | None:
    """RocketMQ keeps the pop time of an orderly handle and moves its invisible time (pop_semantics 4)."""
    if next_visible_ms is None:
        return None
    return pop_time_ms, next_visible_ms - pop_time_ms, REVIVE_QUEUE_ID_ORDERLY


def _change(
    turn: Turn, lane: LaneState, info: OrderInfo, entry: ChangeEntry, first: int, end: int, member: Member
) -> Piece:
    next_visible_ms = turn.now_ms + entry.invisible_time_ms
    is_release = not entry.invisible_time_ms
    before = _delivery(info, member)
    changed = Member(True, False, next_visible_ms, member.count, entry.suspend, is_release)
    after = _delivery(info, changed)
    info.change(first, end, next_visible_ms, suspended=entry.suspend, ended=is_release)
    step = DeliveryStep.RELEASED if is_release else DeliveryStep.CHANGED
    turn.step(lane, step, first, end, after, cause="change_invisible", client_id=turn.client_id)
    settle_batch(turn, lane)
    return Piece(first, end, Reason.OK, before, after, _header(info.pop_time_ms, next_visible_ms))


def _ack(turn: Turn, lane: LaneState, info: OrderInfo, entry: object, first: int, end: int, member: Member) -> Piece:
    before = _delivery(info, member)
    info.ack(first, end)
    if isinstance(entry, RejectEntry):
        cause = shortened(entry.cause) or "rejected"
        lane.record.dead_lettered += end - first
        turn.step(lane, DeliveryStep.DEAD_LETTERED, first, end, before, cause=cause, client_id=turn.client_id)
        turn.dead_letter(lane, first, end, before, reason=cause, at_ms=turn.now_ms)
    else:
        cause = getattr(entry, "cause", None) or "ack"
        turn.step(lane, DeliveryStep.ACKED, first, end, before, cause=cause, client_id=turn.client_id)
    settle_batch(turn, lane)
    return Piece(first, end, Reason.OK, before)


def _end_leases(turn: Turn, lane: LaneState, info: OrderInfo) -> None:
    """Nothing blocks any more: what was not acked has expired, and what has no attempt left is dead-lettered."""
    limit = lane.policy.max_attempts
    at_ms = min(info.due_ms, turn.now_ms)
    for first, end, member in list(info.unacked()):
        delivery = _delivery(info, member)
        if not member.ended:
            ended_ms = min(delivery.deadline_ms, turn.now_ms)
            turn.step(lane, DeliveryStep.EXPIRED, first, end, delivery, cause="deadline", at_ms=ended_ms)
        if limit and member.count + 1 >= limit and not member.suspended:
            info.ack(first, end)
            lane.record.dead_lettered += end - first
            turn.step(lane, DeliveryStep.DEAD_LETTERED, first, end, delivery, cause="attempt_limit", at_ms=at_ms)
            turn.dead_letter(lane, first, end, delivery, reason="attempt_limit", at_ms=at_ms)
        elif not member.ended:
            info.end_lease(first, end, member)


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


def _account_for_batch(lane: LaneState, info: OrderInfo) -> None:
    """From the commit offset to the last member everything is handed out, waits beside a member, or is a hole."""
    record, floor = lane.record, lane.acked.floor
    record.holes -= lane.queue.count_holes(floor, record.next_offset)
    holes = lane.queue.count_holes(floor, info.end)
    record.next_offset = info.end
    record.holes += holes
    record.leased = info.member_count
    record.available = info.end - floor - holes - info.member_count


def _move_commit_offset(lane: LaneState, to: int, *, is_passing_over: bool = True) -> int:
    """Everything below `to` is done; how many messages of it were no members."""
    record, queue, first = lane.record, lane.queue, lane.acked.floor
    passed = 0
    if to > first:
        handed_out = max(min(to, record.next_offset), first)
        members = lane.order_info.members_within(first, handed_out)
        waiting = handed_out - first - queue.count_holes(first, handed_out) - members
        fresh_holes = queue.count_holes(handed_out, to)
        passed = waiting + to - handed_out - fresh_holes
        record.leased -= members
        record.available -= waiting
        record.holes += fresh_holes
        record.acked += members + passed
        if is_passing_over:
            record.passed_over += passed
        record.next_offset = max(record.next_offset, to)
        lane.acked.mark(first, to)
    if lane.acked.floor == record.next_offset:
        absorb_holes(lane)
    return passed
