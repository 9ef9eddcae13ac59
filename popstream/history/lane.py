"""One lane as its clients saw it, and what they saw that no lane can do (`client_history` has the whole picture).

**What is certain about order.** Times below are `now_ms` of answers, the queue's clock, which never goes back from
one record to the next. So a smaller time was decided before a greater one; equal times say nothing. The deliveries
of a lane are ordered by the epoch of their handle, and the changes of one delivery by its revision, also within one
millisecond. Every rule compares strictly where it needs an order, so that a tie is never held against the lane.

**What is only possible.** An operation without an answer may have been decided at any time, or never. It is kept as a
doubt: about the messages of an ack, the lease of a change, a cancelled pop or a returned client, and for a reset about
the whole lane. A rule that a doubt could explain is silent. A pop without an answer is seen by the epoch it took.

**Eras.** A reset_offset, a forget_lane and a declare that replaced the queue end all that was known of done and leased
messages. No rule compares what lies before one with what lies after it, or at its time; except that a handle from
before is stale.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.command import ChangeEntry, EntryCommand, Pop
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, read_handle
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Found", "LaneHistory", "Span", "Violation", "ViolationKind"]

Span = tuple[int, int]
"""[first, last] of queue offsets."""

WRONG_FOR_A_DELIVERY = frozenset((Reason.UNKNOWN_HANDLE, Reason.OUTSIDE_POP, Reason.SUPERSEDED, Reason.ABOVE_MAX))
"""No ack with a handle of this lane and a message of its pop gets one of these, whatever came between but a reset."""


class ViolationKind(enum.StrEnum):
    """What a lane must not do."""

    TWO_LIVE_LEASES = "TWO_LIVE_LEASES"
    DELIVERED_AFTER_DONE = "DELIVERED_AFTER_DONE"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    STALE_HANDLE_ACCEPTED = "STALE_HANDLE_ACCEPTED"
    VALID_ACK_REFUSED = "VALID_ACK_REFUSED"
    POSITION_GAP = "POSITION_GAP"
    POSITION_MOVED_BACK = "POSITION_MOVED_BACK"
    LOST_MESSAGE = "LOST_MESSAGE"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring messages `first..last` of a lane to which the same was done by the same operations.

    Args:
        kind: What it was.
        topic: Topic of the lane.
        queue_id: Its queue.
        group: Its group.
        first: First queue offset.
        last: Last queue offset.
        op_ids: Operations that together show it, the earlier one first.
        detail: One sentence.
    """

    kind: ViolationKind
    topic: str
    queue_id: int
    group: str
    first: int
    last: int
    op_ids: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        """One line: kind, lane, offsets, sentence, operations."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}..{self.last}"
        lane = f"{self.group} {self.topic}/{self.queue_id}"
        return f"{self.kind}  {lane}  {offsets}  {self.detail} [{', '.join(self.op_ids)}]"


class Found(NamedTuple):
    """A violation at one offset."""

    kind: ViolationKind
    offset: int
    op_ids: tuple[str, ...]
    detail: str


class _Pop(msgspec.Struct, frozen=True, eq=False):
    """A pop that was given messages; its lease starts at `now_ms` and ends at `deadline_ms` if nothing changes it."""

    op_id: str
    epoch: int
    now_ms: int
    deadline_ms: int
    client_id: str | None
    attempt_id: str | None
    has_tags: bool
    is_orderly: bool
    ranges: list[LeasedRange]


class _Step(msgspec.Struct, frozen=True, eq=False):
    """An ack, reject or change of one message by a handle of delivery `epoch`, with what was answered."""

    op_id: str
    epoch: int
    revision: int
    now_ms: int
    reason: Reason
    handle: str
    deadline_ms: int


class _Message:
    """All that is known of one message in one lane."""

    __slots__ = ("attempt_max", "changes", "deliveries", "finishes", "may_be_changed", "refusals", "told_done")

    def __init__(self) -> None:
        # Most messages are handed out once and acked once: what is rare costs nothing until it comes.
        self.deliveries: list[_Pop] = []
        self.attempt_max = 0
        self.finishes: tuple[_Step, ...] = ()
        self.changes: tuple[_Step, ...] = ()
        self.refusals: tuple[_Step, ...] = ()
        """Acks and rejects that were not applied."""
        self.told_done: tuple[_Step, ...] = ()
        """Of those and of changes, the ones that were told it is done."""
        self.may_be_changed: frozenset[int] = frozenset()
        """Epochs whose lease an operation without an answer may have changed."""


class _Commit(NamedTuple):
    now_ms: int
    offset: int
    op_id: str


class LaneHistory:
    """One (group, topic, queue_id): takes the pops first (`add_pop`), then the rest, then `judge` tells.

    Attributes:
        unseen_count: Pops without an answer.
        attempts_max: The least attempt limit that any policy gave the lane; 0: none.
        start_may_be_max: The lane may have begun at the commit position of its time.
        was_forgotten: A forget_lane came into effect, so it may have begun several times.
        was_popped: A pop was answered that could have been given messages.
        reset_target: Highest offset that a reset went to.
    """

    def __init__(self, topic: str, queue_id: int, group: str) -> None:
        """Start empty."""
        self.topic, self.queue_id, self.group = topic, queue_id, group
        self.unseen_count = 0
        self.attempts_max = 0
        self.start_may_be_max = False
        self.was_forgotten = False
        self.was_popped = False
        self.reset_target = 0
        self._has_tags = False
        self._pops: list[_Pop] = []
        self._messages: dict[int, _Message] = {}
        self._offsets: list[int] = []
        self._handles: set[str] = set()
        self._resets: list[int] = []
        self._may_be_reset = False
        self._released: list[tuple[int, int, int]] = []
        """(now, first, last)"""
        self._may_be_cancelled: set[str] = set()
        self._may_be_returned: set[str] = set()
        self._may_be_done: list[Span] = []
        self._gone: list[Span] = []
        """What is not in the log, or may not be."""
        self._commits: list[_Commit] = []

    # --- what was seen -----------------------------------------------------------------------------------------------

    def add_pop(self, command: Pop, answer: Answer | None) -> None:
        """A pop; None: without an answer."""
        self._has_tags |= command.tags is not None
        self.start_may_be_max |= command.init == "max"
        if answer is None:
            self.unseen_count += 1
            return
        self.was_popped |= answer.reason in {Reason.OK, Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT}
        handle = read_handle(answer.handle) if answer.handle is not None else None
        if answer.handle is None or handle is None or not answer.messages:
            return
        pop = _Pop(
            answer.op_id,
            handle.epoch,
            answer.now_ms,
            answer.now_ms + command.invisible_time_ms,
            command.client_id,
            command.attempt_id,
            command.tags is not None,
            handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY,
            answer.messages,
        )
        self._pops.append(pop)
        self._handles.add(answer.handle)
        for leased in answer.messages:
            for offset in range(leased.first, leased.last + 1):
                message = self._messages.setdefault(offset, _Message())
                message.deliveries.append(pop)
                message.attempt_max = max(message.attempt_max, leased.attempt)

    def end_pops(self) -> None:
        """All pops are added."""
        self._pops.sort(key=lambda pop: (pop.epoch, pop.now_ms))
        self._offsets = sorted(self._messages)
        for message in self._messages.values():
            message.deliveries.sort(key=lambda pop: (pop.epoch, pop.now_ms))

    def add_run(self, command: EntryCommand, run: Run, answer: Answer) -> None:
        """What came of neighbouring offsets of an entry of this lane."""
        entry = command.entries[run.entry]
        text = command.handles[entry.handle].handle
        handle = read_handle(text)
        if handle is None:
            return
        now_ms = answer.now_ms
        deadline_ms = now_ms + entry.invisible_time_ms if isinstance(entry, ChangeEntry) else 0
        step = _Step(answer.op_id, handle.epoch, handle.revision, now_ms, run.reason, text, deadline_ms)
        if run.handle is not None and run.handle < len(answer.handles):
            self._handles.add(answer.handles[run.handle])
        if run.reason is Reason.BELOW_MIN:
            self._gone.append((0, run.last))
        for message in self._within(run.first, run.last):
            if run.applied and isinstance(entry, ChangeEntry):
                message.changes += (step,)
            elif run.applied:
                message.finishes += (step,)
            elif run.reason is Reason.ALREADY_ACKED:
                message.told_done += (step,)
            elif not isinstance(entry, ChangeEntry):
                message.refusals += (step,)

    def add_commit(self, answer: Answer, commit_offset: int) -> None:
        """The commit offset that an answer told."""
        self._commits.append(_Commit(answer.now_ms, commit_offset, answer.op_id))

    def add_unanswered(self, command: EntryCommand) -> None:
        """Acks, rejects or changes that may have been decided, or may yet be."""
        for entry in command.entries:
            ref = command.handles[entry.handle] if 0 <= entry.handle < len(command.handles) else None
            handle = read_handle(ref.handle) if ref is not None and ref.group == self.group else None
            if handle is None:
                continue
            for first, last in entry.offsets:
                if not isinstance(entry, ChangeEntry):
                    self._may_be_done.append((first, last))
                    continue
                for message in self._within(first, last):
                    message.may_be_changed |= {handle.epoch}

    def add_release(self, answer: Answer) -> None:
        """Leases that a cancel or a return_client has ended."""
        self._released += [(answer.now_ms, first, last) for first, last in answer.released]

    def add_doubt(self, *, cancelled: str | None = None, returned: str | None = None) -> None:
        """A cancel of a pop, or a return of a client, that was not answered."""
        if cancelled is not None:
            self._may_be_cancelled.add(cancelled)
        if returned is not None:
            self._may_be_returned.add(returned)

    def add_reset(self, now_ms: int | None) -> None:
        """An era ended then; None: perhaps, at some time."""
        if now_ms is None:
            self._may_be_reset = True
        else:
            self._resets.append(now_ms)

    def add_gone(self, spans: Iterable[Span]) -> None:
        """Offsets that were declared holes, or perhaps were."""
        self._gone += spans

    # --- what follows from it ----------------------------------------------------------------------------------------

    @property
    def delivery_count(self) -> int:
        """How many messages were handed out, each as often as it was."""
        return sum(len(message.deliveries) for message in self._messages.values())

    @property
    def is_mixed(self) -> bool:
        """Whether the mode of the lane has changed: then it is not judged."""
        return len({pop.is_orderly for pop in self._pops}) > 1

    def judge(self) -> Iterator[Violation]:
        """The violations, by kind and offset."""
        self._prepare()
        found: dict[tuple[ViolationKind, tuple[str, ...], str], set[int]] = defaultdict(set)
        for kind, offset, op_ids, detail in self._found():
            found[kind, op_ids, detail].add(offset)
        for (kind, op_ids, detail), offsets in sorted(found.items()):
            for first, last in _spans(offsets):
                yield self._violation(kind, first, last, op_ids, detail)

    def judge_lost(self, written: Sequence[Span]) -> Iterator[Violation]:
        """Of `written`, which all could be popped, the messages that were never handed out."""
        if not self.was_popped or self._may_be_reset or self._has_tags:
            return
        if self.start_may_be_max and self.was_forgotten:
            return  # each time it may have begun behind what is written
        if self.attempts_max and self.unseen_count:
            return  # they may be dead letters of pops that were not answered
        start = self.reset_target
        if self.start_may_be_max:
            start = max(start, self._offsets[0]) if self._offsets else 1 << 63
        seen = sorted([*_spans(self._offsets), *self._gone])
        for first, last in written:
            at = max(first, start)
            for low, high in seen:
                if high < at:
                    continue
                if low > last:
                    break
                if low > at:
                    yield self._lost(at, low - 1)
                at = max(at, high + 1)
            if at <= last:
                yield self._lost(at, last)

    def _violation(self, kind: ViolationKind, first: int, last: int, op_ids: tuple[str, ...], detail: str) -> Violation:
        return Violation(
            kind=kind,
            topic=self.topic,
            queue_id=self.queue_id,
            group=self.group,
            first=first,
            last=last,
            op_ids=op_ids,
            detail=detail,
        )

    def _lost(self, first: int, last: int) -> Violation:
        return self._violation(ViolationKind.LOST_MESSAGE, first, last, (), "written, and never handed out")

    def _prepare(self) -> None:
        self._resets.sort()
        self._commits.sort()
        self._may_be_done = _merged(self._may_be_done)
        self._gone = _merged(self._gone)
        self._is_orderly = bool(self._pops) and self._pops[0].is_orderly
        self._epochs = [pop.epoch for pop in self._pops]
        in_time = sorted((pop.now_ms, pop.epoch) for pop in self._pops)
        self._times = [now_ms for now_ms, _ in in_time]
        self._epoch_until = list(accumulate((epoch for _, epoch in in_time), max))
        """Greatest epoch among the first pops in time, so many and one."""
        self._epoch_from = list(accumulate((epoch for _, epoch in reversed(in_time)), min))[::-1]
        """Least epoch among the pops from there on."""
        self._eras: dict[int, tuple[list[int], list[_Commit]]] = {}
        for commit in self._commits:
            era = self._era(commit.now_ms)
            if era is not None:
                highest, commits = self._eras.setdefault(era, ([], []))
                highest.append(max(commit.offset, highest[-1] if highest else 0))
                commits.append(commit)

    def _found(self) -> Iterator[Found]:
        for offset in self._offsets:
            message = self._messages[offset]
            yield from self._judge_deliveries(offset, message)
            yield from self._judge_accepted(offset, message)
            yield from self._judge_refused(offset, message)
            yield from self._judge_passed(offset, message)
        yield from self._judge_commits()
        if self._is_orderly:
            yield from self._judge_order()
            yield from self._judge_blocked()

    # --- the rules ---------------------------------------------------------------------------------------------------

    def _judge_deliveries(self, offset: int, message: _Message) -> Iterator[Found]:
        """A message is not handed out while a client holds it, nor when it is done."""
        if not self._is_orderly:  # orderly: `_judge_blocked`, and what was acked out of order may come again
            for before, after in pairwise(message.deliveries):
                if self._is_reset_between(before.now_ms, after.now_ms):
                    continue
                finishes = (step for step in message.finishes if before.epoch <= step.epoch < after.epoch)
                finish = next((step for step in finishes if step.now_ms <= after.now_ms), None)
                if finish is not None:  # in a tie the ack may be the later one: then its handle was stale
                    yield _found_after_done(offset, finish.op_id, after)
                elif after.now_ms < self._live_until_ms(offset, message, before, after.now_ms):
                    # A doubt about an ack is none about this: a message that was acked must not come again either.
                    yield _found_two_leases(offset, before, after)
        for pop in message.deliveries:
            for step in () if self._is_orderly else message.told_done:
                if step.now_ms < pop.now_ms and not self._is_reset_between(step.now_ms, pop.now_ms):
                    yield _found_after_done(offset, step.op_id, pop)
                    break
            commit = self._first_commit_beyond(offset, self._era(pop.now_ms))
            if commit is not None and commit.now_ms < pop.now_ms:
                yield _found_after_done(offset, commit.op_id, pop)

    def _judge_accepted(self, offset: int, message: _Message) -> Iterator[Found]:
        """Nothing comes of a handle that a later delivery, a change of its revision, or a reset has made stale."""
        kind = ViolationKind.STALE_HANDLE_ACCEPTED
        for step in (*message.finishes, *message.changes):
            later = self._later_pop_before(message, step)
            if later is not None:
                yield Found(kind, offset, (later.op_id, step.op_id), f"epoch {later.epoch} had been given out before")
            given = next((pop for pop in message.deliveries if pop.epoch == step.epoch), None)
            if given is not None and any(given.now_ms < reset_ms < step.now_ms for reset_ms in self._resets):
                yield Found(kind, offset, (given.op_id, step.op_id), "the lane had been reset since")
        if self._is_orderly:
            return  # revisions are of concurrent lanes
        known: dict[tuple[int, int], _Step] = {}
        for step in sorted(message.changes, key=lambda change: change.now_ms):
            first = known.setdefault((step.epoch, step.revision), step)
            if first is not step:
                detail = f"revision {step.revision} had been changed before"
                yield Found(kind, offset, (first.op_id, step.op_id), detail)

    def _judge_refused(self, offset: int, message: _Message) -> Iterator[Found]:
        """The handle of a message's last delivery is good for an ack."""
        for step in message.refusals:
            given = next((pop for pop in message.deliveries if pop.epoch == step.epoch), None)
            if given is None or step.handle not in self._handles:
                continue
            if self._is_reset_between(given.now_ms, step.now_ms):
                continue
            is_wrong = step.reason in WRONG_FOR_A_DELIVERY
            if is_wrong or (step.reason is Reason.STALE_HANDLE and not self._may_be_stale(message, step)):
                detail = f"{step.reason} for the handle of the last delivery, epoch {step.epoch}"
                yield Found(ViolationKind.VALID_ACK_REFUSED, offset, (given.op_id, step.op_id), detail)

    def _judge_passed(self, offset: int, message: _Message) -> Iterator[Found]:
        """The commit offset does not pass a message that was handed out and is not done."""
        kind = ViolationKind.POSITION_GAP
        judged: set[int] = set()
        for pop in message.deliveries:
            era = self._era(pop.now_ms)
            if era is None or era in judged:
                continue
            judged.add(era)
            commit = self._first_commit_beyond(offset, era)
            if commit is None or commit.now_ms < pop.now_ms:
                continue
            later = [step for step in message.finishes if step.now_ms > commit.now_ms]
            done = next((step for step in later if self._era(step.now_ms) == era), None)
            if done is not None:
                detail = f"commit offset {commit.offset} passed it, and it was done later"
                yield Found(kind, offset, (pop.op_id, commit.op_id, done.op_id), detail)
            elif len(later) == len(message.finishes) and not self._may_be_done_unseen(offset, message):
                detail = f"commit offset {commit.offset} passed it, and nobody has done it"
                yield Found(kind, offset, (pop.op_id, commit.op_id), detail)

    def _judge_commits(self) -> Iterator[Found]:
        """The commit offset does not go back."""
        for _, commits in self._eras.values():
            highest: _Commit | None = None
            earlier: _Commit | None = None
            """The highest one of all times before."""
            for number, commit in enumerate(commits):
                if number and commits[number - 1].now_ms < commit.now_ms:
                    earlier = highest
                if earlier is not None and commit.offset < earlier.offset:
                    detail = f"from commit offset {earlier.offset} to {commit.offset}"
                    op_ids = (earlier.op_id, commit.op_id)
                    yield Found(ViolationKind.POSITION_MOVED_BACK, commit.offset, op_ids, detail)
                if highest is None or commit.offset > highest.offset:
                    highest = commit

    def _judge_order(self) -> Iterator[Found]:
        """An orderly pop without tags gets all that follows the commit offset, in order: what it leaves out is done.

        Or it is a hole; then it never comes. So nothing that it leaves out comes later.
        """
        kind = ViolationKind.OUT_OF_ORDER
        before: _Pop | None = None
        floor: tuple[int, _Pop] | None = None
        left_out: dict[int, _Pop] = {}
        for pop in self._pops:
            if before is not None and self._is_reset_between(before.now_ms, pop.now_ms):
                floor, left_out = None, {}
            before = pop
            for one, two in pairwise(pop.ranges):
                if two.first <= one.last:
                    yield Found(kind, two.first, (pop.op_id,), "the ranges of one pop are not in order")
            ranges = sorted(pop.ranges, key=lambda leased: leased.first)
            for leased in ranges:
                for offset in range(leased.first, leased.last + 1):
                    passed_by = floor[1] if floor is not None and offset < floor[0] else left_out.get(offset)
                    if passed_by is not None:
                        detail = "handed out after what follows it"
                        yield Found(kind, offset, (passed_by.op_id, pop.op_id), detail)
            if pop.has_tags:
                continue
            if floor is None or ranges[0].first > floor[0]:
                floor = ranges[0].first, pop
            for one, two in pairwise(ranges):
                for offset in self._known_offsets(one.last + 1, two.first - 1):
                    left_out.setdefault(offset, pop)

    def _judge_blocked(self) -> Iterator[Found]:
        """An orderly lane hands out nothing while a client holds a member of its batch, but to the same attempt id."""
        for before, after in pairwise(self._pops):
            is_next = after.epoch == before.epoch + 1
            is_same_attempt = before.attempt_id is not None and before.attempt_id == after.attempt_id
            if not is_next or is_same_attempt or self._is_reset_between(before.now_ms, after.now_ms):
                continue
            for offset in _offsets_of(before):
                message = self._messages[offset]
                done = [*message.told_done, *(step for step in message.finishes if step.epoch == before.epoch)]
                if _is_within(offset, self._may_be_done) or any(step.now_ms <= after.now_ms for step in done):
                    continue
                if after.now_ms >= self._live_until_ms(offset, message, before, after.now_ms):
                    continue
                if after in message.deliveries:
                    yield _found_two_leases(offset, before, after)
                elif self._comes_after(message, after):  # so it has not left the log
                    detail = "it was held, and what follows it was handed out"
                    op_ids = (before.op_id, after.op_id)
                    yield Found(ViolationKind.OUT_OF_ORDER, offset, op_ids, detail)

    # --- what the rules ask ------------------------------------------------------------------------------------------

    def _live_until_ms(self, offset: int, message: _Message, pop: _Pop, now_ms: int) -> int:
        """Until when the message of `pop` was held for certain, as far as was decided until `now_ms`; 0: in doubt."""
        in_doubt = (
            pop.epoch in message.may_be_changed
            or pop.op_id in self._may_be_cancelled
            or pop.client_id in self._may_be_returned
            or any(first <= offset <= last and pop.now_ms <= at_ms <= now_ms for at_ms, first, last in self._released)
        )
        if in_doubt:
            return 0
        changes = [step for step in message.changes if step.epoch == pop.epoch and step.now_ms <= now_ms]
        if not changes:
            return pop.deadline_ms
        last = max(step.now_ms if self._is_orderly else step.revision for step in changes)
        return min(step.deadline_ms for step in changes if (step.now_ms if self._is_orderly else step.revision) == last)

    def _comes_after(self, message: _Message, pop: _Pop) -> bool:
        """Whether the message is handed out after `pop`, in the same era."""
        last = message.deliveries[-1]
        return last.epoch > pop.epoch and not self._is_reset_between(pop.now_ms, last.now_ms)

    def _later_pop_before(self, message: _Message, step: _Step) -> _Pop | None:
        """A delivery with a later epoch than the step's, given out for certain before the step."""
        if not self._is_orderly:
            later = (pop for pop in message.deliveries if pop.epoch > step.epoch and pop.now_ms < step.now_ms)
            return next(later, None)
        # In an orderly lane only the last batch counts, whatever it holds.
        at = bisect_left(self._times, step.now_ms)
        if not at or self._epoch_until[at - 1] <= step.epoch:
            return None
        return self._pops[bisect_left(self._epochs, self._epoch_until[at - 1])]

    def _may_be_stale(self, message: _Message, step: _Step) -> bool:
        """Whether a delivery with a later epoch may have been given out before the step."""
        at = bisect_right(self._times, step.now_ms)
        if self._is_orderly and at and self._epoch_until[at - 1] > step.epoch:
            return True
        if any(pop.epoch > step.epoch and pop.now_ms <= step.now_ms for pop in message.deliveries):
            return True
        # Epochs that nobody tells of are pops without an answer. Those up to the first one after the step matter.
        end = self._epoch_from[at] if at < len(self._epoch_from) else self._epochs[-1] + 1
        known = set(self._epochs[bisect_right(self._epochs, step.epoch) : bisect_left(self._epochs, end)])
        is_open = at == len(self._epoch_from) and self.unseen_count > 0
        return is_open or len(known) != end - step.epoch - 1

    def _may_be_done_unseen(self, offset: int, message: _Message) -> bool:
        """Whether a message that nobody is known to have done may be done all the same."""
        may_be_dead = self.attempts_max and message.attempt_max + self.unseen_count >= self.attempts_max
        return bool(
            may_be_dead
            or self._has_tags  # a pop may have passed it over
            or message.told_done
            or _is_within(offset, self._may_be_done)
            or _is_within(offset, self._gone)
        )

    def _era(self, now_ms: int) -> int | None:
        """Number of the era at a time; None when that is in doubt."""
        era = bisect_left(self._resets, now_ms)
        is_tie = era < len(self._resets) and self._resets[era] == now_ms
        return None if is_tie or self._may_be_reset else era

    def _is_reset_between(self, one_ms: int, other_ms: int) -> bool:
        """Whether the lane may have been reset between two times, or at one of them."""
        low, high = min(one_ms, other_ms), max(one_ms, other_ms)
        return self._may_be_reset or bisect_left(self._resets, low) < bisect_right(self._resets, high)

    def _first_commit_beyond(self, offset: int, era: int | None) -> _Commit | None:
        """The first answer of an era whose commit offset has passed the message."""
        if era is None or era not in self._eras:
            return None
        highest, commits = self._eras[era]
        at = bisect_right(highest, offset)
        return commits[at] if at < len(commits) else None

    def _within(self, first: int, last: int) -> Iterator[_Message]:
        for offset in self._known_offsets(first, last):
            yield self._messages[offset]

    def _known_offsets(self, first: int, last: int) -> Sequence[int]:
        return self._offsets[bisect_left(self._offsets, first) : bisect_right(self._offsets, last)]


def _found_two_leases(offset: int, before: _Pop, after: _Pop) -> Found:
    detail = f"handed out with epoch {after.epoch} while epoch {before.epoch} held it"
    return Found(ViolationKind.TWO_LIVE_LEASES, offset, (before.op_id, after.op_id), detail)


def _found_after_done(offset: int, done_by: str, pop: _Pop) -> Found:
    detail = f"handed out with epoch {pop.epoch} after it was done"
    return Found(ViolationKind.DELIVERED_AFTER_DONE, offset, (done_by, pop.op_id), detail)


def _offsets_of(pop: _Pop) -> Iterator[int]:
    for leased in pop.ranges:
        yield from range(leased.first, leased.last + 1)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Disjoint ranges, in order.

    >>> _merged([(7, 9), (0, 3), (2, 4)])
    [(0, 4), (7, 9)]
    """
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _is_within(offset: int, merged: Sequence[Span]) -> bool:
    at = bisect_right(merged, (offset, 1 << 63))
    return at > 0 and offset <= merged[at - 1][1]


def _spans(offsets: Iterable[int]) -> list[Span]:
    """Offsets as ranges.

    >>> _spans([3, 1, 2, 7])
    [(1, 3), (7, 7)]
    """
    spans: list[Span] = []
    for offset in sorted(offsets):
        if spans and spans[-1][1] == offset - 1:
            spans[-1] = (spans[-1][0], offset)
        else:
            spans.append((offset, offset))
    return spans
