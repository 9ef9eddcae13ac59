"""ack, change_invisible, reject: every offset of every entry is judged; neighbours with one outcome make a run."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

import msgspec

from broker_state.audit import shortened
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.concurrent_lane import decide_concurrently
from broker_state.kernel.lanes.entry_claim import Claim, Piece, RunOutcome
from broker_state.kernel.lanes.orderly_lane import decide_in_order
from broker_state.kernel.lanes.skip_catch_up import begin_on_lane, catch_up
from broker_state.kernel.lone_ack import decide_lone_ack
from broker_state.kernel.validation import is_of_lite_topic, is_range
from broker_state.store.facts import Delivery
from popstream.wire.answer import Run
from popstream.wire.command import Ack, ChangeEntry, ChangeInvisible, Entry, EntryCommand, Reject
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, read_handle
from popstream.wire.limits import CAUSE_CHARACTERS_MAX, INVISIBLE_TIME_MS_MAX
from popstream.wire.reason import Reason, code_of

__all__ = ["decide_entries"]

_RANGES_MAX = 256
"""Ranges that are decided together: more do not fit the processor's caches. That a record is full is noticed between
two decisions, so this number is part of what is decided."""
_CLAIMED_OFFSETS_MAX = 16_384
"""Offsets that are decided together: the number of runs is bounded between two decisions."""
NAMED_OFFSETS_MAX = 131_072
"""Offsets of the queue that the entries of one record may name together."""
_RUNS_MET_MAX = 100_000
"""No further offsets are decided when the pages in which some were named have met as many runs (`OpContext.meet`).

1,250 pages of 64 deliveries, or 5,882 of one, about 150 ms."""
_LANES_MAX: Final = 1_024
"""Groups in which the entries of one record may name offsets."""
_ROWS_MAX = 20_000
"""No further offsets are decided when the record has this number of runs and of rows of `deliveries`."""


class _Named:
    """The offsets of one group that a record has named so far, as disjoint half-open ranges in order."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add_beyond(self, first: int, end: int) -> bool:
        """Name [first, end) if all offsets named so far lie below it, as is usual; return whether they do."""
        ends = self._ends
        if not ends or ends[-1] < first:
            self._firsts.append(first)
            ends.append(end)
        elif ends[-1] == first:
            ends[-1] = end
        else:
            return False
        return True

    def add(self, first: int, end: int) -> list[tuple[int, int, bool]]:
        """Name [first, end), and return it cut into (first, end, was named before)."""
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


class _Subject:
    """A handle of the record, its lane, and the offsets that the record has named in its group."""

    __slots__ = ("handle", "lane", "named", "text")

    def __init__(self, lane: LaneState, handle: Handle, text: str, named: _Named) -> None:
        self.lane = lane
        self.handle = handle
        self.text = text
        self.named = named

    def claim(self, index: int, entry: Entry, first: int, last: int) -> Claim:
        """Return the claim of a range of an entry that has the handle."""
        return Claim(first, last + 1, [(index, first, last)], entry, self.handle, self.text)


class _Request:
    """One record with entries, while it is decided.

    Ranges in ascending order are collected in `claims` and decided together: a concurrent lane then reads and settles
    each page once, and not once for each entry.
    """

    __slots__ = (
        "claimed_offsets",
        "claimed_ranges",
        "claims",
        "command",
        "commit_position",
        "handles",
        "is_ack",
        "lane",
        "lanes",
        "last_handle",
        "min_offset",
        "named",
        "new_handles",
        "offsets_left",
        "op",
        "runs",
        "subjects",
    )

    def __init__(self, op: OpContext, command: EntryCommand) -> None:
        self.op = op
        self.command = command
        match command:
            case Ack() | Reject():
                self.is_ack = True
            case ChangeInvisible():
                self.is_ack = False
            case _:
                assert_never(command)
        self.min_offset = op.queue.record.min_offset
        self.commit_position = op.queue.written.floor
        self.runs: list[Run] = []
        self.handles: list[str] = []
        self.new_handles: dict[str, int] = {}
        self.last_handle: tuple[Delivery | None, Handle | None, int] = (None, None, 0)
        """(delivery, handle that was sent, index of the new one)"""
        self.lanes: dict[str, LaneState] = {}
        self.named: dict[str, _Named] = {}
        self.subjects: dict[int, _Subject | Reason] = {}
        """By the index of the handle; a handle is judged once for all entries that have it."""
        self.claims: list[Claim] = []
        self.claimed_ranges = 0
        self.claimed_offsets = 0
        self.offsets_left = NAMED_OFFSETS_MAX
        self.lane: LaneState | None = None
        """The lane of `claims`."""

    def add(self, index: int, entry: Entry) -> None:
        """Take an entry in: it is decided now, or together with those that follow."""
        subject = self._subject(entry)
        if not isinstance(subject, _Subject):
            self.decide_claims()
            self._refuse_ranges(index, entry, subject)
            return
        lane, handle, named = subject.lane, subject.handle, subject.named
        can_join = self.is_ack and not lane.record.orderly
        for first, last in entry.offsets:
            is_within = self.min_offset <= first and last < self.commit_position
            count = last + 1 - first
            if not is_within:
                count = max(0, min(last + 1, self.commit_position) - max(first, self.min_offset))
            self.offsets_left -= count
            self.claimed_offsets += count
            if self.claimed_offsets >= _CLAIMED_OFFSETS_MAX:
                self.decide_claims()
            if self.offsets_left < 0 or self._is_full():
                self.decide_claims()
                refused = subject.claim(index, entry, first, last)
                self._report(lane, [refused], [Piece(first, last + 1, Reason.INVALID_PARAMETER)])
                continue
            if not is_within or count >= _CLAIMED_OFFSETS_MAX or not named.add_beyond(first, last + 1):
                self.decide_claims()
                self._decide_cut(lane, named, subject.claim(index, entry, first, last))
                continue
            if self.claims and (lane is not self.lane or self.claimed_ranges == _RANGES_MAX):
                self.decide_claims()
            self.claimed_ranges += 1
            last_claim = self.claims[-1] if can_join and self.claims else None
            if (
                last_claim is not None
                and last_claim.end == first
                and last_claim.handle is handle
                and last_claim.entry.cause == entry.cause
            ):
                last_claim.end = last + 1
                last_claim.ranges.append((index, first, last))
            else:
                self.lane = lane
                self.claims.append(subject.claim(index, entry, first, last))

    def _is_full(self) -> bool:
        return len(self.runs) + self.op.audit.delivery_rows >= _ROWS_MAX or self.op.runs_met >= _RUNS_MET_MAX

    def decide_claims(self) -> None:
        """Decide the claims collected so far."""
        claims, lane = self.claims, self.lane
        self.claimed_offsets = self.claimed_ranges = 0
        if claims and lane is not None:
            self.claims = []
            self._report(lane, claims, self._judge(lane, claims))

    def _subject(self, entry: Entry) -> _Subject | Reason:
        """Return the lane and handle by which the entry is judged, or the reason to refuse the whole entry."""
        if not 0 <= entry.handle < len(self.command.handles) or not entry.offsets:
            return Reason.INVALID_PARAMETER
        for first, last in entry.offsets:
            if not is_range(first, last):
                return Reason.INVALID_PARAMETER
        if isinstance(entry, ChangeEntry):
            is_cause_long = entry.cause is not None and len(entry.cause) > CAUSE_CHARACTERS_MAX
            if is_cause_long or not 0 <= entry.invisible_time_ms <= INVISIBLE_TIME_MS_MAX:
                return Reason.INVALID_PARAMETER
            if not is_of_lite_topic(self.command.topic, entry.lite_topic):
                return Reason.MISROUTED
        known = self.subjects.get(entry.handle)
        if known is None:
            known = self.subjects[entry.handle] = self._find_subject(entry.handle)
        return known

    def _find_subject(self, index: int) -> _Subject | Reason:
        """Judge a handle: return its lane with it, or the reason to refuse its entries."""
        op = self.op
        if index in op.record.forged:
            return Reason.NO_PERMISSION
        group, text = self.command.handles[index].group, self.command.handles[index].handle
        handle = read_handle(text)
        lane = self.lanes.get(group)
        if lane is None:
            if len(self.lanes) == _LANES_MAX:
                return Reason.INVALID_PARAMETER
            self.decide_claims()  # their rows precede those of this lane's catch-up
            lane = op.queue.lane(group)
            if lane is None:
                return Reason.UNKNOWN_HANDLE
            catch_up(op, lane)
        if handle is None or not lane.gave_out(handle):
            return Reason.UNKNOWN_HANDLE
        if (handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY) != bool(lane.record.orderly):
            return Reason.WRONG_MODE
        if group not in self.lanes:
            begin_on_lane(op, lane)
            if lane.record.orderly:
                op.runs_met += 5 * lane.order_info.head.member_count >> 2
            self.lanes[group] = lane
            self.named[group] = _Named()
        return _Subject(lane, handle, text, self.named[group])

    def _refuse_ranges(self, index: int, entry: Entry, reason: Reason) -> None:
        handles = self.command.handles
        ref = handles[entry.handle] if 0 <= entry.handle < len(handles) else None
        text = shortened(ref.handle) if ref else None
        group, code = shortened(ref.group) if ref else None, code_of(reason)
        for first, last in entry.offsets or [(-1, -1)]:
            self.runs.append(Run(entry=index, first=first, last=last, code=code, reason=reason, applied=False))
            self.op.audit.operation(
                reason,
                group=group,
                entry=index,
                first=first,
                end=last + 1,
                handle_before=text,
                code=code,
                detail=entry.cause,
            )

    def _decide_cut(self, lane: LaneState, named: _Named, claim: Claim) -> None:
        """Decide a range that may lie partly outside the queue, or be named before in part."""
        first, end = claim.first, claim.end
        least, most = self.min_offset, self.commit_position
        low, high = max(first, least), min(end, most)
        pieces: list[Piece] = []
        if first < least:
            pieces.append(Piece(first, min(end, least), Reason.BELOW_MIN))
        for at, stop, again in named.add(low, high) if low < high else ():
            if again:
                pieces.append(Piece(at, stop, Reason.DUPLICATE_ENTRY))
            else:
                self._judge_wide(lane, msgspec.structs.replace(claim, first=at, end=stop), pieces)
        if end > most:
            pieces.append(Piece(max(first, most), end, Reason.ABOVE_MAX))
        self._report(lane, [claim], pieces)

    def _judge_wide(self, lane: LaneState, claim: Claim, pieces: list[Piece]) -> None:
        """Append the pieces of a claim, part by part, until the answer would have too many runs."""
        counted = len(pieces)
        runs = len(self.runs) + counted
        for at in range(claim.first, claim.end, _CLAIMED_OFFSETS_MAX):
            if runs + self.op.audit.delivery_rows >= _ROWS_MAX:
                pieces.append(Piece(at, claim.end, Reason.INVALID_PARAMETER))
                return
            stop = min(claim.end, at + _CLAIMED_OFFSETS_MAX)
            pieces += self._judge(lane, [msgspec.structs.replace(claim, first=at, end=stop)])
            for number in range(max(counted, 1), len(pieces)):
                runs += not _is_same_outcome(pieces[number - 1], pieces[number])
            counted = len(pieces)

    def _judge(self, lane: LaneState, claims: list[Claim]) -> list[Piece]:
        return (decide_in_order if lane.record.orderly else decide_concurrently)(self.op, lane, claims)

    def _report(self, lane: LaneState, claims: list[Claim], pieces: list[Piece]) -> None:
        """Add the outcome of `claims` to the answer, and to the audit."""
        group, append = lane.record.group, self.runs.append
        last: Piece | None = None
        for claim, ranges, piece in _by_claim(claims, pieces):
            if piece is not last:  # usually many claims share one piece
                last, outcome = piece, self._outcome(lane, claim.handle, piece)
                code, reason, applied, new = outcome.code, outcome.reason, outcome.applied, outcome.handle
                header = outcome.header
                pop_time_ms, invisible_time_ms = header.pop_time_ms, header.invisible_time_ms
                revive_queue_id = header.revive_queue_id
            for entry, first_offset, last_offset in ranges:
                append(
                    Run(  # by place, which takes half as long: a record may have 10,000 of them
                        entry,
                        first_offset,
                        last_offset,
                        code,
                        reason,
                        applied,
                        pop_time_ms,
                        invisible_time_ms,
                        revive_queue_id,
                        new,
                    )
                )
            self.op.audit.operation_ranges(group, ranges, outcome, handle_before=claim.text, detail=claim.entry.cause)

    def _outcome(self, lane: LaneState, handle: Handle, piece: Piece) -> RunOutcome:
        reason, before, after = piece.reason, piece.before, piece.after
        applied = reason is Reason.OK
        new = None if after is None or self.is_ack else self._handle_index(lane, after, handle)
        return RunOutcome(
            reason=reason,
            code=code_of(reason, is_ack=self.is_ack, orderly=bool(lane.record.orderly)),
            applied=applied,
            handle_after=None if new is None else self.handles[new],
            deadline_before_ms=before.deadline_ms or None if before else None,
            deadline_after_ms=after.deadline_ms or None if after and applied else None,
            attempt=before.attempt if before else None,
            header=piece.header,
            handle=new,
        )

    def _handle_index(self, lane: LaneState, delivery: Delivery, handle: Handle) -> int:
        """Return the index of the handle of `delivery` in the answer; one that many messages share is listed once."""
        last_delivery, last_handle, known = self.last_handle
        if delivery is not last_delivery or handle is not last_handle:
            text = lane.handle_text(delivery, handle.start_offset)
            known = self.new_handles.setdefault(text, len(self.handles))
            if known == len(self.handles):
                self.handles.append(text)
            self.last_handle = delivery, handle, known
        return known


def decide_entries(op: OpContext, command: EntryCommand) -> None:
    """Decide every entry, and answer with the runs."""
    if isinstance(command, Ack) and decide_lone_ack(op, command, NAMED_OFFSETS_MAX):
        return
    request = _Request(op, command)
    entries: Sequence[Entry] = command.entries
    for index, entry in enumerate(entries):
        request.add(index, entry)
    request.decide_claims()
    op.respond(
        _overall(request.runs),
        applied=any(run.applied for run in request.runs),
        runs=request.runs,
        handles=request.handles,
        commit_offsets={group: lane.acked.floor for group, lane in request.lanes.items()},
    )


def _overall(runs: list[Run]) -> Reason:
    """Return OK if every run has code 0, else the reason of the first that has not."""
    for run in runs:
        if run.code:
            return run.reason
    return Reason.OK


def _by_claim(claims: list[Claim], pieces: list[Piece]) -> Iterator[tuple[Claim, list[tuple[int, int, int]], Piece]]:
    """Yield (claim, ranges, piece): each range of a claim, cut where the outcome changes; `pieces` cover all claims.

    Ranges of pieces that are alike are yielded together. Of a range neighbouring pieces with the same outcome are
    joined; the first represents them, although their deliveries before may differ.
    """
    number = 0
    for claim in claims:
        piece, alike = pieces[number], number
        while pieces[alike].end < claim.end and _is_alike(piece, pieces[alike + 1]):
            alike += 1
        if claim.end <= pieces[alike].end:
            yield claim, claim.ranges, piece
            number = alike + (pieces[alike].end == claim.end)
            continue
        for index, first, last in claim.ranges:
            end = last + 1
            at = first
            while at < end:
                piece = pieces[number]
                stop = piece.end
                while stop < end and _is_same_outcome(piece, pieces[number + 1]):
                    number += 1
                    stop = pieces[number].end
                if stop <= end:
                    number += 1
                else:  # the next range has the rest of it
                    stop = end
                yield claim, [(index, at, stop - 1)], piece
                at = stop


def _is_same_outcome(one: Piece, other: Piece) -> bool:
    return one.reason is other.reason and one.header == other.header and _is_same_delivery(one.after, other.after)


def _is_alike(one: Piece, other: Piece) -> bool:
    return one.before == other.before and _is_same_outcome(one, other)


def _is_same_delivery(one: Delivery | None, other: Delivery | None) -> bool:
    """Return whether two deliveries have the same handle."""
    if one is None or other is None:
        return one is other
    return one is other or (
        one.epoch == other.epoch
        and one.revision == other.revision
        and one.pop_time_ms == other.pop_time_ms
        and one.invisible_time_ms == other.invisible_time_ms
    )
