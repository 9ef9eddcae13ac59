"""The rules of a lane, applied to its observations.

**Order.** Times are `now_ms` of answers: the queue's clock, which never goes back from one record to the next. A
smaller time was decided before a greater one; equal times have no known order. The deliveries of a lane are ordered by
the epoch of their handle, and the changes of one delivery by its revision, also within one millisecond. Every rule
compares strictly where it needs an order, so that a tie is never held against the lane.

**Possibilities.** An operation without an answer may have been decided at any time, or never. A rule reports nothing
that such an operation could explain. A pop without an answer is known by the epoch that it took.

**Eras.** A reset_offset, a forget_lane and a declare that replaced the queue end an era: everything known of done and
leased messages. No rule compares observations of two eras, or observations at the time of a reset, with one exception:
a handle from an earlier era is stale.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from popstream.history.spans import is_within, merged_spans
from popstream.history.violation import Violation, ViolationKind
from popstream.wire.limits import OFFSET_MAX
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popstream.history.lane import AnsweredPop, CommitReport, EntryOutcome, LaneHistory, Segment
    from popstream.history.spans import Span
    from popstream.wire.answer import LeasedRange

__all__ = ["LaneRules"]

WRONG_FOR_A_DELIVERY = frozenset((Reason.UNKNOWN_HANDLE, Reason.OUTSIDE_POP, Reason.SUPERSEDED, Reason.ABOVE_MAX))
"""No ack with a handle of this lane and a message of its pop gets one of these, unless a reset came between."""


class _Finding(NamedTuple):
    """A violation at some queue offsets."""

    kind: ViolationKind
    span: Span
    op_ids: tuple[str, ...]
    detail: str


class LaneRules:
    """Judges one lane when all its observations are added."""

    def __init__(self, lane: LaneHistory) -> None:
        self._lane = lane
        self._resets = sorted(lane.resets)
        self._may_be_done = merged_spans(lane.may_be_done)
        self._removed = merged_spans(lane.removed)
        self._is_orderly = bool(lane.pops) and lane.pops[0].is_orderly
        self._kept = [*lane.segments()] if self._is_orderly else []
        """The segments of an orderly lane, whose rules look at those of a pop; other lanes need one at a time."""
        self._starts = [segment.first for segment in self._kept]
        self._epochs = [pop.epoch for pop in lane.pops]
        by_time = sorted((pop.now_ms, pop.epoch) for pop in lane.pops)
        self._times = [now_ms for now_ms, _ in by_time]
        self._greatest_epoch = list(accumulate((epoch for _, epoch in by_time), max))
        """Item n: the greatest epoch among the first n + 1 pops by time."""
        self._least_epoch = list(accumulate((epoch for _, epoch in reversed(by_time)), min))[::-1]
        """Item n: the least epoch among the pops by time from number n on."""
        self._eras: dict[int, tuple[list[int], list[CommitReport]]] = {}
        """By era: the commit reports by time, and beside each the greatest commit offset up to it."""
        for commit in sorted(lane.commits):
            era = self._era(commit.now_ms)
            if era is not None:
                greatest, commits = self._eras.setdefault(era, ([], []))
                greatest.append(max(commit.commit_offset, greatest[-1] if greatest else 0))
                commits.append(commit)

    def violations(self, written: Sequence[Span] | None = None) -> Iterator[Violation]:
        """Yield the violations, by kind and queue offset.

        Args:
            written: The group has popped and done everything: of these messages yield those that it has lost, too. They
                were never delivered, or their last lease ended without an ack.
        """
        found: dict[tuple[ViolationKind, tuple[str, ...], str], list[Span]] = defaultdict(list)
        abandoned: list[tuple[Span, str]] = []
        may_have_lost = written is not None and self._may_have_lost()
        for segment in self._kept or self._lane.segments():
            for kind, span, op_ids, detail in self._findings_of(segment):
                found[kind, op_ids, detail].append(span)
            if may_have_lost and self._is_abandoned(segment, self._lane.last_pop_ms or 0):
                abandoned.append((segment.span, segment.deliveries[-1].op_id))
        for kind, span, op_ids, detail in self._findings_of_lane():
            found[kind, op_ids, detail].append(span)
        for (kind, op_ids, detail), spans in sorted(found.items()):
            for span in merged_spans(spans):
                yield self._violation(kind, span, op_ids, detail)
        if may_have_lost:
            yield from self._lost(written or (), abandoned)

    def _may_have_lost(self) -> bool:
        lane = self._lane
        if lane.last_pop_ms is None or lane.may_be_reset or lane.has_tags:
            return False
        if lane.start_may_be_max and lane.was_forgotten:
            return False  # it may have started behind the written messages each time
        # Otherwise the messages may be dead letters of the pops without an answer.
        return not (lane.attempts_max and lane.unanswered_pop_count)

    def _lost(self, written: Sequence[Span], abandoned: Sequence[tuple[Span, str]]) -> Iterator[Violation]:
        kind = ViolationKind.LOST_MESSAGE
        for span in self._never_delivered(written):
            yield self._violation(kind, span, (), "written, and never handed out")
        for (first, last), op_id in abandoned:
            for queue_offset in range(first, last + 1):
                yield self._violation(
                    kind, (queue_offset, queue_offset), (op_id,), "handed out, and neither done nor back"
                )

    def _never_delivered(self, written: Sequence[Span]) -> Iterator[Span]:
        lane, delivered = self._lane, self._lane.delivered()
        start = lane.reset_target
        if lane.start_may_be_max:
            start = max(start, delivered[0][0]) if delivered else OFFSET_MAX
        seen = sorted([*delivered, *self._removed])
        for first, last in written:
            at = max(first, start)
            for low, high in seen:
                if high < at:
                    continue
                if low > last:
                    break
                if low > at:
                    yield at, low - 1
                at = max(at, high + 1)
            if at <= last:
                yield at, last

    def _is_abandoned(self, segment: Segment, last_pop_ms: int) -> bool:
        """Return whether the last lease of a message was over when the lane was popped again, and it did not come."""
        last = segment.deliveries[-1]
        return not (
            segment.finishes
            or last.epoch in segment.may_be_changed
            or self._may_be_done_unseen(segment)
            or self._is_reset_between(last.now_ms, OFFSET_MAX)
            or self._live_until_ms(segment, last, last_pop_ms) >= last_pop_ms
        )

    def _violation(self, kind: ViolationKind, span: Span, op_ids: tuple[str, ...], detail: str) -> Violation:
        lane, (first, last) = self._lane, span
        return Violation(
            kind=kind,
            topic=lane.topic,
            queue_id=lane.queue_id,
            group=lane.group,
            first=first,
            last=last,
            op_ids=op_ids,
            detail=detail,
        )

    def _findings_of(self, segment: Segment) -> Iterator[_Finding]:
        yield from self._check_deliveries(segment)
        yield from self._check_accepted(segment)
        yield from self._check_refused(segment)
        yield from self._check_commit_gap(segment)

    def _findings_of_lane(self) -> Iterator[_Finding]:
        yield from self._check_commits()
        if self._is_orderly:
            yield from self._check_order()
            yield from self._check_blocked()

    # --- the rules ---------------------------------------------------------------------------------------------------

    def _check_deliveries(self, segment: Segment) -> Iterator[_Finding]:
        """A message is not delivered while a client holds it, nor when it is done."""
        if not self._is_orderly:  # orderly lanes: `_check_blocked`, and a message acked out of order may come again
            for before, after in pairwise(segment.deliveries):
                if self._is_reset_between(before.now_ms, after.now_ms):
                    continue
                finishes = (finish for finish in segment.finishes if before.epoch <= finish.epoch < after.epoch)
                finish = next((finish for finish in finishes if finish.now_ms <= after.now_ms), None)
                if finish is not None:  # in a tie the ack may be the later one: then its handle was stale
                    yield _delivered_after_done(segment.span, finish.op_id, after)
                elif after.now_ms < self._live_until_ms(segment, before, after.now_ms):
                    # An unanswered ack does not explain this: a message that was acked must not come again either.
                    yield _two_live_leases(segment.span, before, after)
        for pop in segment.deliveries:
            for outcome in () if self._is_orderly else segment.reported_done:
                if outcome.now_ms < pop.now_ms and not self._is_reset_between(outcome.now_ms, pop.now_ms):
                    yield _delivered_after_done(segment.span, outcome.op_id, pop)
                    break
            commit = self._first_commit_beyond(segment.first, self._era(pop.now_ms))
            if commit is not None and commit.now_ms < pop.now_ms:
                yield _delivered_after_done(segment.span, commit.op_id, pop)

    def _check_accepted(self, segment: Segment) -> Iterator[_Finding]:
        """A handle has no effect after a later delivery, a change of its revision, an ack, or a reset."""
        kind = ViolationKind.STALE_HANDLE_ACCEPTED
        for outcome in (*segment.finishes, *segment.changes):
            later = self._later_pop_before(segment, outcome)
            if later is not None:
                detail = f"epoch {later.epoch} had been given out before"
                yield _Finding(kind, segment.span, (later.op_id, outcome.op_id), detail)
            given = next((pop for pop in segment.deliveries if pop.epoch == outcome.epoch), None)
            if given is not None and any(given.now_ms < reset_ms < outcome.now_ms for reset_ms in self._resets):
                yield _Finding(kind, segment.span, (given.op_id, outcome.op_id), "the lane had been reset since")
        if self._is_orderly:
            return  # revisions are of concurrent lanes, and a message acked out of order may be acked again
        finish_of_epoch: dict[int, EntryOutcome] = {}
        for finish in sorted(segment.finishes, key=lambda outcome: outcome.now_ms):
            first = finish_of_epoch.setdefault(finish.epoch, finish)
            if first is not finish:
                yield _Finding(kind, segment.span, (first.op_id, finish.op_id), "the message had been done before")
        first_changes: dict[tuple[int, int], EntryOutcome] = {}
        for change in sorted(segment.changes, key=lambda outcome: outcome.now_ms):
            first = first_changes.setdefault((change.epoch, change.revision), change)
            if first is not change:
                detail = f"revision {change.revision} had been changed before"
                yield _Finding(kind, segment.span, (first.op_id, change.op_id), detail)
            done = finish_of_epoch.get(change.epoch)
            if done is not None and done.now_ms < change.now_ms:
                yield _Finding(kind, segment.span, (done.op_id, change.op_id), "the message had been done before")

    def _check_refused(self, segment: Segment) -> Iterator[_Finding]:
        """An ack by the handle of a message's last delivery is applied."""
        for refusal in segment.refusals:
            given = next((pop for pop in segment.deliveries if pop.epoch == refusal.epoch), None)
            if given is None or refusal.handle not in self._lane.handles:
                continue
            if self._is_reset_between(given.now_ms, refusal.now_ms):
                continue
            is_wrong = refusal.reason in WRONG_FOR_A_DELIVERY
            if is_wrong or (refusal.reason is Reason.STALE_HANDLE and not self._may_be_stale(segment, refusal)):
                detail = f"{refusal.reason} for the handle of the last delivery, epoch {refusal.epoch}"
                op_ids = (given.op_id, refusal.op_id)
                yield _Finding(ViolationKind.VALID_ACK_REFUSED, segment.span, op_ids, detail)

    def _check_commit_gap(self, segment: Segment) -> Iterator[_Finding]:
        """The commit offset does not pass a message that was delivered and is not done."""
        kind = ViolationKind.POSITION_GAP
        checked: set[int] = set()
        for pop in segment.deliveries:
            era = self._era(pop.now_ms)
            if era is None or era in checked:
                continue
            checked.add(era)
            commit = self._first_commit_beyond(segment.first, era)
            if commit is None or commit.now_ms < pop.now_ms:
                continue
            passed = f"commit offset {commit.commit_offset} passed it"
            later = [finish for finish in segment.finishes if finish.now_ms > commit.now_ms]
            done = next((finish for finish in later if self._era(finish.now_ms) == era), None)
            if done is not None:
                proof = (pop.op_id, commit.op_id, done.op_id)
                yield _Finding(kind, segment.span, proof, f"{passed}, and it was done later")
            elif len(later) == len(segment.finishes) and not self._may_be_done_unseen(segment):
                yield _Finding(kind, segment.span, (pop.op_id, commit.op_id), f"{passed}, and it was never done")

    def _check_commits(self) -> Iterator[_Finding]:
        """The commit offset does not go back."""
        for _, commits in self._eras.values():
            greatest: CommitReport | None = None
            earlier: CommitReport | None = None
            """The greatest one of all earlier times."""
            for number, commit in enumerate(commits):
                if number and commits[number - 1].now_ms < commit.now_ms:
                    earlier = greatest
                if earlier is not None and commit.commit_offset < earlier.commit_offset:
                    detail = f"from commit offset {earlier.commit_offset} to {commit.commit_offset}"
                    op_ids = (earlier.op_id, commit.op_id)
                    span = (commit.commit_offset, commit.commit_offset)
                    yield _Finding(ViolationKind.POSITION_MOVED_BACK, span, op_ids, detail)
                if greatest is None or commit.commit_offset > greatest.commit_offset:
                    greatest = commit

    def _check_order(self) -> Iterator[_Finding]:
        """An orderly pop without tags gets every message from the commit offset on, in order.

        A message that it leaves out is done, or is a hole: it never comes later.
        """
        kind = ViolationKind.OUT_OF_ORDER
        before: AnsweredPop | None = None
        floor: tuple[int, AnsweredPop] | None = None
        left_out: dict[int, AnsweredPop] = {}
        """By first queue offset of a segment, the pop that left it out."""
        for pop in self._lane.pops:
            if before is not None and self._is_reset_between(before.now_ms, pop.now_ms):
                floor, left_out = None, {}
            before = pop
            for one, two in pairwise(pop.ranges):
                if two.first <= one.last:
                    yield _Finding(kind, (two.first, two.first), (pop.op_id,), "the ranges of one pop are not in order")
            ranges = sorted(pop.ranges, key=lambda leased: leased.first)
            for segment in self._segments_of(ranges):
                passed_by = left_out.get(segment.first)
                if floor is not None and segment.first < floor[0]:
                    passed_by = floor[1]
                if passed_by is not None:
                    op_ids = (passed_by.op_id, pop.op_id)
                    yield _Finding(kind, segment.span, op_ids, "handed out after a later message")
            if pop.has_tags:
                continue
            if floor is None or ranges[0].first > floor[0]:
                floor = ranges[0].first, pop
            for one, two in pairwise(ranges):
                for segment in self._segments_within(one.last + 1, two.first - 1):
                    left_out.setdefault(segment.first, pop)

    def _check_blocked(self) -> Iterator[_Finding]:
        """An orderly lane delivers nothing while a member of its batch is held, except to the same attempt id."""
        for before, after in pairwise(self._lane.pops):
            is_next = after.epoch == before.epoch + 1
            is_same_attempt = before.attempt_id is not None and before.attempt_id == after.attempt_id
            if not is_next or is_same_attempt or self._is_reset_between(before.now_ms, after.now_ms):
                continue
            for segment in self._segments_of(before.ranges):
                finishes = (finish for finish in segment.finishes if finish.epoch == before.epoch)
                is_done = any(outcome.now_ms <= after.now_ms for outcome in (*segment.reported_done, *finishes))
                if is_done or is_within(segment.first, self._may_be_done):
                    continue
                if after.now_ms >= self._live_until_ms(segment, before, after.now_ms):
                    continue
                if after in segment.deliveries:
                    yield _two_live_leases(segment.span, before, after)
                elif self._comes_after(segment, after):  # so it has not left the log
                    op_ids = (before.op_id, after.op_id)
                    detail = "it was held, and a later message was handed out"
                    yield _Finding(ViolationKind.OUT_OF_ORDER, segment.span, op_ids, detail)

    # --- what the rules look up --------------------------------------------------------------------------------------

    def _segments_of(self, ranges: Sequence[LeasedRange]) -> Iterator[Segment]:
        for leased in ranges:
            yield from self._segments_within(leased.first, leased.last)

    def _segments_within(self, first: int, last: int) -> Sequence[Segment]:
        """Return segments of an orderly lane; the ranges of its pops begin and end with segments."""
        return self._kept[bisect_left(self._starts, first) : bisect_right(self._starts, last)]

    def _live_until_ms(self, segment: Segment, pop: AnsweredPop, now_ms: int) -> int:
        """Return until when the lease of `pop` certainly ran, given what was decided until `now_ms`; 0: uncertain."""
        lane = self._lane
        is_uncertain = (
            pop.epoch in segment.may_be_changed
            or pop.op_id in lane.may_be_cancelled
            or pop.client_id in lane.may_be_returned
            or any(
                first <= segment.first <= last and pop.now_ms <= at_ms <= now_ms for at_ms, first, last in lane.releases
            )
        )
        if is_uncertain:
            return 0
        changes = [change for change in segment.changes if change.epoch == pop.epoch and change.now_ms <= now_ms]
        if not changes:
            return pop.deadline_ms
        # In an orderly lane revisions do not count changes, so the time orders them.
        orders = [change.now_ms if self._is_orderly else change.revision for change in changes]
        latest = max(orders)
        return min(change.deadline_ms for change, order in zip(changes, orders, strict=True) if order == latest)

    def _comes_after(self, segment: Segment, pop: AnsweredPop) -> bool:
        """Return whether the message is delivered after `pop`, in the same era."""
        last = segment.deliveries[-1]
        return last.epoch > pop.epoch and not self._is_reset_between(pop.now_ms, last.now_ms)

    def _later_pop_before(self, segment: Segment, outcome: EntryOutcome) -> AnsweredPop | None:
        """Return a delivery with a later epoch than the outcome's that was certainly decided before it."""
        if not self._is_orderly:
            later = (pop for pop in segment.deliveries if pop.epoch > outcome.epoch and pop.now_ms < outcome.now_ms)
            return next(later, None)
        # In an orderly lane only the last batch counts, whichever messages it holds.
        at = bisect_left(self._times, outcome.now_ms)
        if not at or self._greatest_epoch[at - 1] <= outcome.epoch:
            return None
        return self._lane.pops[bisect_left(self._epochs, self._greatest_epoch[at - 1])]

    def _may_be_stale(self, segment: Segment, refusal: EntryOutcome) -> bool:
        """Return whether a delivery with a later epoch may have been decided before the refusal."""
        at = bisect_right(self._times, refusal.now_ms)
        if self._is_orderly and at and self._greatest_epoch[at - 1] > refusal.epoch:
            return True
        if any(pop.epoch > refusal.epoch and pop.now_ms <= refusal.now_ms for pop in segment.deliveries):
            return True
        # Epochs that no answer reports are pops without an answer. Those up to the first one after the refusal matter.
        is_last = at == len(self._least_epoch)
        end = self._epochs[-1] + 1 if is_last else self._least_epoch[at]
        known = set(self._epochs[bisect_right(self._epochs, refusal.epoch) : bisect_left(self._epochs, end)])
        is_open = is_last and self._lane.unanswered_pop_count > 0
        return is_open or len(known) != end - refusal.epoch - 1

    def _may_be_done_unseen(self, segment: Segment) -> bool:
        """Return whether a message may be done although no answer says who has done it."""
        lane = self._lane
        attempts = segment.attempt_max + lane.unanswered_pop_count
        return bool(
            (lane.attempts_max and attempts >= lane.attempts_max)  # a dead letter
            or lane.has_tags  # a pop may have passed it over
            or segment.reported_done
            or is_within(segment.first, self._may_be_done)
            or is_within(segment.first, self._removed)
        )

    def _era(self, now_ms: int) -> int | None:
        """Return the number of the era at a time; None when that is uncertain."""
        era = bisect_left(self._resets, now_ms)
        is_tie = era < len(self._resets) and self._resets[era] == now_ms
        return None if is_tie or self._lane.may_be_reset else era

    def _is_reset_between(self, one_ms: int, other_ms: int) -> bool:
        """Return whether the lane may have been reset between two times, or at one of them."""
        low, high = min(one_ms, other_ms), max(one_ms, other_ms)
        return self._lane.may_be_reset or bisect_left(self._resets, low) < bisect_right(self._resets, high)

    def _first_commit_beyond(self, queue_offset: int, era: int | None) -> CommitReport | None:
        """Return the first report of an era whose commit offset has passed the segment."""
        if era is None or era not in self._eras:
            return None
        greatest, commits = self._eras[era]
        at = bisect_right(greatest, queue_offset)
        return commits[at] if at < len(commits) else None


def _two_live_leases(span: Span, before: AnsweredPop, after: AnsweredPop) -> _Finding:
    detail = f"handed out with epoch {after.epoch} while epoch {before.epoch} held it"
    return _Finding(ViolationKind.TWO_LIVE_LEASES, span, (before.op_id, after.op_id), detail)


def _delivered_after_done(span: Span, done_by: str, pop: AnsweredPop) -> _Finding:
    detail = f"handed out with epoch {pop.epoch} after it was done"
    return _Finding(ViolationKind.DELIVERED_AFTER_DONE, span, (done_by, pop.op_id), detail)
