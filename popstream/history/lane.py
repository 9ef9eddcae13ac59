"""The observations of one lane: everything that its clients sent and were answered, by message.

`LaneHistory` only collects; `lane_rules` judges. It keeps each observation once, with the range of messages that it is
about, and `segments` brings together what is known of each message. An operation without an answer may have been
decided at any time, or never: it is kept as a possibility, in the attributes whose names begin with `may_be`.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

import msgspec

from popstream.history.spans import Span, merged_spans
from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.command import ChangeEntry, Entry, EntryCommand, Pop
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, decode_handle
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["AnsweredPop", "CommitReport", "EntryOutcome", "LaneHistory", "OutcomeKind", "Segment"]

_read_handle = lru_cache(maxsize=65_536)(decode_handle)


class AnsweredPop(msgspec.Struct, frozen=True, eq=False):
    """A pop that leased messages, from `now_ms` until `deadline_ms` unless an operation changes that."""

    op_id: str
    epoch: int
    now_ms: int
    deadline_ms: int
    client_id: str | None
    attempt_id: str | None
    has_tags: bool
    is_orderly: bool
    ranges: list[LeasedRange]


class _Observation(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An observation of the messages `first..last`."""

    first: int
    last: int


class _Delivery(_Observation, frozen=True, eq=False, gc=False):
    """A pop leased them."""

    attempt: int
    pop: AnsweredPop


class OutcomeKind(enum.Enum):
    """The outcomes that rules are about."""

    FINISHED = enum.auto()
    """An ack or reject was applied."""
    CHANGED = enum.auto()
    """A change was applied."""
    REFUSED = enum.auto()
    """An ack or reject was refused, except as ALREADY_ACKED."""
    REPORTED_DONE = enum.auto()
    """An ack, reject or change was answered ALREADY_ACKED."""


class EntryOutcome(_Observation, frozen=True, eq=False, gc=False):
    """The answer to an ack, reject or change by a handle of delivery `epoch`; `handle` is empty unless refused."""

    kind: OutcomeKind
    op_id: str
    epoch: int
    revision: int
    now_ms: int
    deadline_ms: int
    reason: Reason
    handle: str


class _PossibleChange(_Observation, frozen=True, eq=False, gc=False):
    """A change by a handle of delivery `epoch` was not answered."""

    epoch: int


class Segment(msgspec.Struct, eq=False):
    """Neighbouring messages of which the same is known; each was delivered.

    Attributes:
        first: First queue offset.
        last: Last queue offset.
        deliveries: Pops that leased them, by epoch.
        attempt_max: Greatest attempt that one of these pops reported.
        finishes: Acks and rejects that were applied, in the order of the history; also the other outcomes.
        changes: Changes that were applied.
        refusals: Acks and rejects that were refused, except as ALREADY_ACKED.
        reported_done: Acks, rejects and changes that were answered ALREADY_ACKED.
        may_be_changed: Epochs whose lease an unanswered change may have changed.
    """

    first: int
    last: int
    deliveries: list[AnsweredPop]
    attempt_max: int = 0
    # Most messages are delivered once and acked once: what is rare takes no memory until it happens.
    finishes: tuple[EntryOutcome, ...] = ()
    changes: tuple[EntryOutcome, ...] = ()
    refusals: tuple[EntryOutcome, ...] = ()
    reported_done: tuple[EntryOutcome, ...] = ()
    may_be_changed: frozenset[int] = frozenset()

    @property
    def span(self) -> Span:
        """The first and the last queue offset."""
        return self.first, self.last


class CommitReport(msgspec.Struct, frozen=True, order=True, gc=False):
    """The commit offset that an answer reported."""

    now_ms: int
    commit_offset: int
    op_id: str


class LaneHistory:
    """One (group, topic, queue_id).

    Attributes:
        pops: Pops that leased messages, by epoch.
        delivery_count: Deliveries of all messages.
        handles: Every handle that was given out.
        commits: Commit offsets that were reported.
        releases: (now_ms, first, last) of leases that a cancel or a return_client ended.
        resets: Times at which an era ended (see `lane_rules`).
        removed: Offsets that are or may be holes, or have left the log.
        unanswered_pop_count: Pops without an answer.
        last_pop_ms: Time of the last answered pop that could lease messages; None: no such pop was answered.
        attempts_max: Least attempt limit that a policy gave the lane; 0: none.
        has_tags: A pop chose by tags, and may have passed messages over.
        start_may_be_max: The lane may have started at the commit position of that time.
        was_forgotten: A forget_lane was applied, so the lane may have started several times.
        reset_target: Greatest queue offset that a reset went to.
        may_be_reset: A reset was not answered.
        may_be_cancelled: Pops whose cancel was not answered.
        may_be_returned: Clients whose return was not answered.
        may_be_done: Offsets of acks and rejects that were not answered.
    """

    def __init__(self, topic: str, queue_id: int, group: str) -> None:
        """Start empty."""
        self.topic, self.queue_id, self.group = topic, queue_id, group
        self.pops: list[AnsweredPop] = []
        self.delivery_count = 0
        self._observations: list[_Observation] = []
        self.handles: set[str] = set()
        self.commits: list[CommitReport] = []
        self.releases: list[tuple[int, int, int]] = []
        self.resets: list[int] = []
        self.removed: list[Span] = []
        self.unanswered_pop_count = 0
        self.last_pop_ms: int | None = None
        self.attempts_max = 0
        self.has_tags = False
        self.start_may_be_max = False
        self.was_forgotten = False
        self.reset_target = 0
        self.may_be_reset = False
        self.may_be_cancelled: set[str] = set()
        self.may_be_returned: set[str] = set()
        self.may_be_done: list[Span] = []

    @property
    def is_mixed(self) -> bool:
        """Whether the mode of the lane has changed, so that it is not judged."""
        return len({pop.is_orderly for pop in self.pops}) > 1

    def add_pop(self, command: Pop, answer: Answer | None) -> None:
        """Add a pop; None: without an answer."""
        self.has_tags |= command.tags is not None
        self.start_may_be_max |= command.init == "max"
        self.limit_attempts(command.max_attempts or 0)
        if answer is None:
            self.unanswered_pop_count += 1
            return
        if answer.reason in {Reason.OK, Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT}:
            self.last_pop_ms = max(answer.now_ms, self.last_pop_ms or 0)
        handle = _read_handle(answer.handle) if answer.handle is not None else None
        if answer.handle is None or handle is None or not answer.messages:
            return
        pop = AnsweredPop(
            op_id=answer.op_id,
            epoch=handle.epoch,
            now_ms=answer.now_ms,
            deadline_ms=answer.now_ms + command.invisible_time_ms,
            client_id=command.client_id,
            attempt_id=command.attempt_id,
            has_tags=command.tags is not None,
            is_orderly=handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY,
            ranges=answer.messages,
        )
        self.pops.append(pop)
        self.handles.add(answer.handle)
        for leased in answer.messages:
            self._observe(_Delivery(leased.first, leased.last, leased.attempt, pop))
            self.delivery_count += max(0, leased.last - leased.first + 1)

    def end_pops(self) -> None:
        """Order the pops, when all are added."""
        self.pops.sort(key=_epoch_and_time)

    def add_run(self, command: EntryCommand, run: Run, answer: Answer) -> None:
        """Add the outcome of neighbouring offsets of one entry, whose handle is of this lane."""
        entry = command.entries[run.entry]
        text = command.handles[entry.handle].handle
        handle = _read_handle(text)
        if handle is None:
            return
        if run.handle is not None and run.handle < len(answer.handles):
            self.handles.add(answer.handles[run.handle])
        if run.reason is Reason.BELOW_MIN:
            self.removed.append((0, run.last))
        kind = _kind_of(run, is_change=isinstance(entry, ChangeEntry))
        if kind is None:
            return
        self._observe(
            EntryOutcome(
                first=run.first,
                last=run.last,
                kind=kind,
                op_id=answer.op_id,
                epoch=handle.epoch,
                revision=handle.revision,
                now_ms=answer.now_ms,
                deadline_ms=_leased_until_ms(entry, answer.now_ms),
                reason=run.reason,
                handle=text if kind is OutcomeKind.REFUSED else "",
            )
        )

    def add_commit(self, answer: Answer, commit_offset: int) -> None:
        """Add the commit offset that an answer reported."""
        self.commits.append(CommitReport(answer.now_ms, commit_offset, answer.op_id))

    def add_unanswered_entries(self, command: EntryCommand) -> None:
        """Add acks, rejects or changes without an answer."""
        for entry in command.entries:
            ref = command.handles[entry.handle] if 0 <= entry.handle < len(command.handles) else None
            handle = _read_handle(ref.handle) if ref is not None and ref.group == self.group else None
            if handle is None:
                continue
            for first, last in entry.offsets:
                if isinstance(entry, ChangeEntry):
                    self._observe(_PossibleChange(first, last, handle.epoch))
                else:
                    self.may_be_done.append((first, last))

    def add_release(self, answer: Answer) -> None:
        """Add the leases that a cancel or a return_client has ended."""
        self.releases += [(answer.now_ms, first, last) for first, last in answer.released]

    def add_reset(self, answer: Answer | None) -> None:
        """Add the end of an era; None: there may have been one, at any time."""
        if answer is None:
            self.may_be_reset = True
        elif answer.applied:
            self.resets.append(answer.now_ms)

    def limit_attempts(self, attempts_max: int) -> None:
        """Add an attempt limit of the lane or of its queue; the least one counts, because it is the careful choice."""
        if attempts_max > 0:
            self.attempts_max = min(attempts_max, self.attempts_max or attempts_max)

    def delivered(self) -> list[Span]:
        """Return the offsets that were delivered."""
        return merged_spans((leased.first, leased.last) for pop in self.pops for leased in pop.ranges)

    def segments(self) -> Iterator[Segment]:
        """Yield what is known of the messages that were delivered, by queue offset.

        No span of `removed`, `releases` or `may_be_done` begins or ends within a segment, and no commit offset is
        within one. So a rule may judge all its messages by the first one.
        """
        observations, cuts = self._observations, self._cuts()
        waiting = sorted(range(len(observations)), key=lambda number: observations[number].first, reverse=True)
        present: list[int] = []
        first = cut = 0
        while waiting or present:
            if not present:
                first = observations[waiting[-1]].first
            while waiting and observations[waiting[-1]].first <= first:
                present.append(waiting.pop())
            end = min(observations[number].last for number in present) + 1
            if waiting:
                end = min(end, observations[waiting[-1]].first)
            cut = bisect_right(cuts, first, cut)
            if cut < len(cuts):
                end = min(end, cuts[cut])
            segment = _segment(first, end - 1, [observations[number] for number in sorted(present)])
            if segment.deliveries:
                yield segment
            first = end
            present = [number for number in present if observations[number].last >= first]

    def _cuts(self) -> list[int]:
        """Return the offsets at which a segment must begin, whatever was observed of its messages."""
        cuts = {commit.commit_offset for commit in self.commits}
        spans = [*self.may_be_done, *self.removed, *((first, last) for _, first, last in self.releases)]
        for first, last in spans:
            cuts |= {first, last + 1}
        return sorted(cuts)

    def _observe(self, observation: _Observation) -> None:
        if observation.first <= observation.last:
            self._observations.append(observation)


def _leased_until_ms(entry: Entry, now_ms: int) -> int:
    """Return until when a client holds messages after a change that was decided at `now_ms`; 0: it is no change."""
    if not isinstance(entry, ChangeEntry):
        return 0
    return now_ms if entry.release is not None else now_ms + entry.invisible_time_ms


def _kind_of(run: Run, *, is_change: bool) -> OutcomeKind | None:
    """Return the kind of an outcome; None: no rule is about it."""
    if run.applied:
        return OutcomeKind.CHANGED if is_change else OutcomeKind.FINISHED
    if run.reason is Reason.ALREADY_ACKED:
        return OutcomeKind.REPORTED_DONE
    return None if is_change else OutcomeKind.REFUSED


def _segment(first: int, last: int, observations: Sequence[_Observation]) -> Segment:
    segment = Segment(first, last, [])
    for observed in observations:
        if isinstance(observed, _Delivery):
            segment.deliveries.append(observed.pop)
            segment.attempt_max = max(segment.attempt_max, observed.attempt)
        elif isinstance(observed, EntryOutcome):
            _add_outcome(segment, observed)
        elif isinstance(observed, _PossibleChange):
            segment.may_be_changed |= {observed.epoch}
    segment.deliveries.sort(key=_epoch_and_time)
    return segment


def _add_outcome(segment: Segment, outcome: EntryOutcome) -> None:
    match outcome.kind:
        case OutcomeKind.FINISHED:
            segment.finishes += (outcome,)
        case OutcomeKind.CHANGED:
            segment.changes += (outcome,)
        case OutcomeKind.REFUSED:
            segment.refusals += (outcome,)
        case OutcomeKind.REPORTED_DONE:
            segment.reported_done += (outcome,)
        case _:
            assert_never(outcome.kind)


def _epoch_and_time(pop: AnsweredPop) -> tuple[int, int]:
    return pop.epoch, pop.now_ms
