"""ack, change_invisible, reject: entry by entry, every offset judged, neighbours with one outcome as one run."""

from bisect import bisect_right
from collections.abc import Sequence

from broker_state.answer import Run
from broker_state.audit import DeliveryStep
from broker_state.command import Ack, ChangeEntry, ChangeInvisible, Entry, Reject, RejectEntry
from broker_state.handle import REVIVE_QUEUE_ID_ORDERLY, Handle
from broker_state.kernel.catch_up import catch_up, enter
from broker_state.kernel.delivery import ack_range, end_lease
from broker_state.kernel.in_order import decide_in_order
from broker_state.kernel.limits import INVISIBLE_TIME_MS_MAX, is_of_lite_topic, is_range
from broker_state.kernel.outcome import Piece
from broker_state.kernel.queue_state import LaneState
from broker_state.kernel.turn import Turn, handle_text, read_handle, shortened
from broker_state.pages import Delivery, DeliveryPage, DeliveryState, windows
from broker_state.reason import Reason, code_of

__all__ = ["decide_entries"]

_LEASED = DeliveryState.LEASED

Entries = Ack | ChangeInvisible | Reject


class _Named:
    """The offsets of one group that a record has named so far, as disjoint half-open runs in order."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> list[tuple[int, int, bool]]:
        """Name [first, end); it comes back cut into (first, end, named before)."""
        firsts, ends = self._firsts, self._ends
        low = bisect_right(ends, first)
        cuts: list[tuple[int, int, bool]] = []
        at = first
        high = low
        while high < len(firsts) and firsts[high] < end:
            if firsts[high] > at:
                cuts.append((at, firsts[high], False))
                at = firsts[high]
            stop = min(ends[high], end)
            cuts.append((at, stop, True))
            at = stop
            high += 1
        if at < end:
            cuts.append((at, end, False))
        if high > low:
            first, end = min(first, firsts[low]), max(end, ends[high - 1])
        firsts[low:high] = [first]
        ends[low:high] = [end]
        return cuts


class _Request:
    """One record with entries, while it is decided."""

    __slots__ = ("command", "handles", "named", "new_handles", "runs", "turn")

    def __init__(self, turn: Turn, command: Entries) -> None:
        self.turn = turn
        self.command = command
        self.runs: list[Run] = []
        self.handles: list[str] = []
        self.new_handles: dict[str, int] = {}
        self.named: dict[str, _Named] = {}

    def run(
        self,
        index: int,
        piece: Piece,
        *,
        group: str | None,
        handle_before: str | None,
        orderly: bool = False,
        handle_after: str | None = None,
        handle_index: int | None = None,
    ) -> None:
        reason, before, after = piece.reason, piece.before, piece.after
        applied = reason is Reason.OK
        code = code_of(reason, is_ack=not isinstance(self.command, ChangeInvisible), orderly=orderly)
        pop_time_ms, invisible_time_ms, revive_queue_id = piece.header or (None, None, None)
        self.runs.append(
            Run(
                entry=index,
                first=piece.first,
                last=piece.end - 1,
                code=code,
                reason=reason,
                applied=applied,
                pop_time_ms=pop_time_ms,
                invisible_time_ms=invisible_time_ms,
                revive_queue_id=revive_queue_id,
                handle=handle_index,
            )
        )
        self.turn.row(
            reason,
            applied=applied,
            group=group,
            entry=index,
            first=piece.first,
            end=piece.end,
            handle_before=handle_before,
            handle_after=handle_after,
            code=code,
            deadline_before_ms=before.deadline_ms or None if before else None,
            deadline_after_ms=after.deadline_ms or None if after and applied else None,
            attempt=before.attempt if before else None,
            detail=getattr(self.command.entries[index], "cause", None),
        )

    def handle_index(self, text: str) -> int:
        """Where in the answer's handles `text` stands; a handle shared by many messages is listed once."""
        known = self.new_handles.get(text)
        if known is None:
            known = self.new_handles[text] = len(self.handles)
            self.handles.append(text)
        return known


def decide_entries(turn: Turn, command: Entries) -> None:
    """Decide every entry at the record's `now` and answer with the runs."""
    request = _Request(turn, command)
    lanes: dict[str, LaneState] = {}
    entries: Sequence[Entry] = command.entries
    for index, entry in enumerate(entries):
        refused = _refuse_entry(request, lanes, entry)
        if isinstance(refused, Reason):
            _refuse_ranges(request, index, entry, refused)
            continue
        lane, handle, text = refused
        for first, last in entry.offsets:
            _decide_range(request, lane, handle, text, index, entry, first, last + 1)
    turn.respond(
        _overall(request.runs),
        applied=any(run.applied for run in request.runs),
        runs=request.runs,
        handles=request.handles,
        commit_offsets={group: lane.acked.floor for group, lane in lanes.items()},
    )


def _overall(runs: list[Run]) -> Reason:
    """OK when every run came out with code 0, else the reason of the first that did not."""
    for run in runs:
        if run.code:
            return run.reason
    return Reason.OK


def _refuse_entry(
    request: _Request, lanes: dict[str, LaneState], entry: Entry
) -> Reason | tuple[LaneState, Handle, str]:
    """Why the whole entry is refused, or the lane and handle to judge its offsets by."""
    command, turn = request.command, request.turn
    if not 0 <= entry.handle < len(command.handles) or not entry.offsets:
        return Reason.INVALID_PARAMETER
    for first, last in entry.offsets:
        if not is_range(first, last):
            return Reason.INVALID_PARAMETER
    if isinstance(entry, ChangeEntry) and not 0 <= entry.invisible_time_ms <= INVISIBLE_TIME_MS_MAX:
        return Reason.INVALID_PARAMETER
    if isinstance(entry, ChangeEntry) and not is_of_lite_topic(command.topic, entry.lite_topic):
        return Reason.MISROUTED
    if entry.handle in turn.record.forged:
        return Reason.NO_PERMISSION
    ref = command.handles[entry.handle]
    handle = read_handle(ref.handle)
    lane = lanes.get(ref.group)
    if lane is None:
        lane = turn.queue.lane(ref.group)
        if lane is None:
            return Reason.UNKNOWN_HANDLE
        catch_up(turn, lane)
    if handle is None or not lane.gave_out(handle):
        return Reason.UNKNOWN_HANDLE
    if (handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY) != bool(lane.record.orderly):
        return Reason.WRONG_MODE
    if ref.group not in lanes:
        enter(turn, lane)
        lanes[ref.group] = lane
    return lane, handle, ref.handle


def _refuse_ranges(request: _Request, index: int, entry: Entry, reason: Reason) -> None:
    handles = request.command.handles
    ref = handles[entry.handle] if 0 <= entry.handle < len(handles) else None
    for first, last in entry.offsets or [(-1, -1)]:
        request.run(
            index,
            Piece(first, last + 1, reason),
            group=shortened(ref.group) if ref else None,
            handle_before=shortened(ref.handle) if ref else None,
        )


def _decide_range(
    request: _Request, lane: LaneState, handle: Handle, text: str, index: int, entry: Entry, first: int, end: int
) -> None:
    group = lane.record.group
    least, most = lane.queue.record.min_offset, lane.queue.written.floor
    low, high = max(first, least), min(end, most)
    pieces: list[Piece] = []
    if first < least:
        pieces.append(Piece(first, min(end, least), Reason.BELOW_MIN))
    if low < high:
        command = request.command
        if len(command.entries) == 1 and len(entry.offsets) == 1:
            pieces += _decide_named(request, lane, handle, entry, low, high)
        else:
            for at, stop, again in request.named.setdefault(group, _Named()).add(low, high):
                if again:
                    pieces.append(Piece(at, stop, Reason.DUPLICATE_ENTRY))
                else:
                    pieces += _decide_named(request, lane, handle, entry, at, stop)
    if end > most:
        pieces.append(Piece(max(first, most), end, Reason.ABOVE_MAX))
    for piece in _joined(pieces):
        handle_after = None
        new_handle: int | None = None
        if piece.after is not None and isinstance(entry, ChangeEntry):
            handle_after = handle_text(lane, piece.after, handle.start_offset)
            new_handle = request.handle_index(handle_after)
        request.run(
            index,
            piece,
            group=group,
            handle_before=text,
            orderly=bool(lane.record.orderly),
            handle_after=handle_after,
            handle_index=new_handle,
        )


def _decide_named(
    request: _Request, lane: LaneState, handle: Handle, entry: Entry, first: int, end: int
) -> list[Piece]:
    """Judge [first, end), all within the queue and not named before, and apply what is good."""
    if lane.record.orderly:
        return decide_in_order(request.turn, lane, handle, entry, first, end)
    pieces: list[Piece] = []
    for page_no, low, high in windows(first, end):
        page = lane.page(page_no)
        if page is None:
            pieces += _judge_not_in_flight(lane, handle, low, high)
            continue
        changed = False
        for at, stop, delivery in page.within(low, high):
            if delivery is None:
                pieces += _judge_not_in_flight(lane, handle, at, stop)
            elif delivery.epoch != handle.epoch:
                late = delivery.epoch > handle.epoch or handle.epoch <= lane.record.reset_epoch
                pieces.append(Piece(at, stop, Reason.STALE_HANDLE if late else Reason.OUTSIDE_POP, delivery))
            elif isinstance(entry, ChangeEntry) and delivery.revision != handle.revision:
                pieces.append(Piece(at, stop, Reason.SUPERSEDED, delivery, delivery))
            else:
                changed = True
                pieces.append(_apply(request, lane, page, entry, at, stop, delivery))
        if changed:
            lane.settle(page)
    return pieces


def _judge_not_in_flight(lane: LaneState, handle: Handle, first: int, end: int) -> list[Piece]:
    """Offsets without a delivery: acked, a hole, or not handed out since the lane was made or reset."""
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


def _apply(
    request: _Request, lane: LaneState, page: DeliveryPage, entry: Entry, first: int, end: int, before: Delivery
) -> Piece:
    turn = request.turn
    if isinstance(entry, ChangeEntry):
        return _change(turn, lane, page, entry, first, end, before)
    record = lane.record
    page.replace(first, end, None)
    if before.state == _LEASED:
        record.leased -= end - first
    else:
        record.available -= end - first
    ack_range(lane, first, end)
    if isinstance(entry, RejectEntry):
        cause = shortened(entry.cause) or "rejected"
        record.dead_lettered += end - first
        turn.step(lane, DeliveryStep.DEAD_LETTERED, first, end, before, cause=cause, client_id=turn.client_id)
        turn.dead_letter(lane, first, end, before, reason=cause, at_ms=turn.now_ms)
    else:
        turn.step(lane, DeliveryStep.ACKED, first, end, before, cause=entry.cause or "ack", client_id=turn.client_id)
    return Piece(first, end, Reason.OK, before)


def _change(
    turn: Turn, lane: LaneState, page: DeliveryPage, entry: ChangeEntry, first: int, end: int, before: Delivery
) -> Piece:
    record = lane.record
    if before.state != _LEASED:
        record.available -= end - first
        record.leased += end - first
    after = Delivery(
        before.epoch,
        before.revision + 1,
        turn.now_ms,
        turn.now_ms + entry.invisible_time_ms,
        entry.invisible_time_ms,
        before.client,
        before.attempt,
        _LEASED,
        entry.suspend,
    )
    if entry.invisible_time_ms:
        page.replace(first, end, after)
        turn.step(lane, DeliveryStep.CHANGED, first, end, after, cause="change_invisible", client_id=turn.client_id)
    else:
        end_lease(
            turn,
            lane,
            page,
            first,
            end,
            after,
            step=DeliveryStep.RELEASED,
            cause="change_invisible",
            at_ms=turn.now_ms,
        )
    return Piece(first, end, Reason.OK, before, after, (after.pop_time_ms, after.invisible_time_ms, 0))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours with the same outcome as one; what they were before may differ, the first is told."""
    if len(pieces) < 2:
        return pieces
    joined = [pieces[0]]
    for piece in pieces[1:]:
        last = joined[-1]
        is_same = piece.reason is last.reason and piece.header == last.header
        if is_same and piece.first == last.end and _same_after(piece.after, last.after):
            joined[-1] = Piece(last.first, piece.end, last.reason, last.before, last.after, last.header)
        else:
            joined.append(piece)
    return joined


def _same_after(one: Delivery | None, other: Delivery | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or (
        one.epoch == other.epoch
        and one.revision == other.revision
        and one.pop_time_ms == other.pop_time_ms
        and one.invisible_time_ms == other.invisible_time_ms
    )
