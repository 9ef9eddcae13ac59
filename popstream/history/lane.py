"""The observations of one lane: everything that its clients sent and were answered, by message.

`LaneHistory` only collects; `lane_rules` judges. Pops are added first, because the other operations name messages of
pops. An operation without an answer may have been decided at any time, or never: it is kept as a possibility, in the
attributes whose names begin with `may_be`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.command import ChangeEntry, EntryCommand, Pop
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, decode_handle
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popstream.history.spans import Span

__all__ = ["AnsweredPop", "CommitReport", "EntryOutcome", "LaneHistory", "MessageHistory"]

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

    def offsets(self) -> Iterator[int]:
        """Yield the queue offsets in the order of the answer."""
        for leased in self.ranges:
            yield from range(leased.first, leased.last + 1)


class EntryOutcome(msgspec.Struct, frozen=True, eq=False):
    """The answer to an ack, reject or change of one message by a handle of delivery `epoch`."""

    op_id: str
    epoch: int
    revision: int
    now_ms: int
    reason: Reason
    handle: str
    deadline_ms: int


class MessageHistory:
    """Everything known of one message in one lane.

    Attributes:
        deliveries: Pops that leased it.
        attempt_max: Greatest attempt that one of them reported.
        finishes: Acks and rejects that were applied.
        changes: Changes that were applied.
        refusals: Acks and rejects that were refused, except as ALREADY_ACKED.
        reported_done: Acks, rejects and changes that were answered ALREADY_ACKED.
        may_be_changed: Epochs whose lease an unanswered change may have changed.
    """

    __slots__ = ("attempt_max", "changes", "deliveries", "finishes", "may_be_changed", "refusals", "reported_done")

    def __init__(self) -> None:
        # Most messages are delivered once and acked once: what is rare takes no memory until it happens.
        self.deliveries: list[AnsweredPop] = []
        self.attempt_max = 0
        self.finishes: tuple[EntryOutcome, ...] = ()
        self.changes: tuple[EntryOutcome, ...] = ()
        self.refusals: tuple[EntryOutcome, ...] = ()
        self.reported_done: tuple[EntryOutcome, ...] = ()
        self.may_be_changed: frozenset[int] = frozenset()


class CommitReport(NamedTuple):
    """The commit offset that an answer reported."""

    now_ms: int
    commit_offset: int
    op_id: str


class LaneHistory:
    """One (group, topic, queue_id).

    Attributes:
        pops: Pops that leased messages, by epoch.
        messages: By queue offset.
        offsets: The queue offsets of `messages`, in order.
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
        self.messages: dict[int, MessageHistory] = {}
        self.offsets: list[int] = []
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
    def delivery_count(self) -> int:
        """The number of deliveries of all messages."""
        return sum(len(message.deliveries) for message in self.messages.values())

    @property
    def is_mixed(self) -> bool:
        """Whether the mode of the lane has changed, so that it is not judged."""
        return len({pop.is_orderly for pop in self.pops}) > 1

    def add_pop(self, command: Pop, answer: Answer | None) -> None:
        """Add a pop; None: without an answer."""
        self.has_tags |= command.tags is not None
        self.start_may_be_max |= command.init == "max"
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
            for queue_offset in range(leased.first, leased.last + 1):
                message = self.messages.setdefault(queue_offset, MessageHistory())
                message.deliveries.append(pop)
                message.attempt_max = max(message.attempt_max, leased.attempt)

    def end_pops(self) -> None:
        """Order the deliveries, when all pops are added."""
        self.pops.sort(key=lambda pop: (pop.epoch, pop.now_ms))
        self.offsets = sorted(self.messages)
        for message in self.messages.values():
            message.deliveries.sort(key=lambda pop: (pop.epoch, pop.now_ms))

    def add_run(self, command: EntryCommand, run: Run, answer: Answer) -> None:
        """Add the outcome of neighbouring offsets of one entry, whose handle is of this lane."""
        entry = command.entries[run.entry]
        text = command.handles[entry.handle].handle
        handle = _read_handle(text)
        if handle is None:
            return
        now_ms = answer.now_ms
        deadline_ms = now_ms + entry.invisible_time_ms if isinstance(entry, ChangeEntry) else 0
        outcome = EntryOutcome(answer.op_id, handle.epoch, handle.revision, now_ms, run.reason, text, deadline_ms)
        if run.handle is not None and run.handle < len(answer.handles):
            self.handles.add(answer.handles[run.handle])
        if run.reason is Reason.BELOW_MIN:
            self.removed.append((0, run.last))
        for message in self._messages_within(run.first, run.last):
            if run.applied and isinstance(entry, ChangeEntry):
                message.changes += (outcome,)
            elif run.applied:
                message.finishes += (outcome,)
            elif run.reason is Reason.ALREADY_ACKED:
                message.reported_done += (outcome,)
            elif not isinstance(entry, ChangeEntry):
                message.refusals += (outcome,)

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
                if not isinstance(entry, ChangeEntry):
                    self.may_be_done.append((first, last))
                    continue
                for message in self._messages_within(first, last):
                    message.may_be_changed |= {handle.epoch}

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

    def known_offsets(self, first: int, last: int) -> Sequence[int]:
        """Return the offsets in a range that were delivered."""
        return self.offsets[bisect_left(self.offsets, first) : bisect_right(self.offsets, last)]

    def _messages_within(self, first: int, last: int) -> Iterator[MessageHistory]:
        for queue_offset in self.known_offsets(first, last):
            yield self.messages[queue_offset]
