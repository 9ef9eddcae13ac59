"""The check of client histories: judges what `ClientSettings.history_file` recorded (`popstream history check`).

The check knows nothing of the job but its answers. It needs the history of every client that used the groups judged,
administration included; queues and groups that no client recorded are not judged. It reports only what is certain
(`lane_rules` says how): each violation is real, and a history without violations proves nothing.

| kind | observation |
|---|---|
| TWO_LIVE_LEASES | a message was handed out again while its lease ran, and no operation may have ended it |
| DELIVERED_AFTER_DONE | a message came again after it was done (concurrent), or below the commit offset (both modes) |
| OUT_OF_ORDER | an orderly pop left out what came later, or was served while a member of the batch was held |
| STALE_HANDLE_ACCEPTED | an ack or change was applied by a handle older than a delivery, revision, ack or reset |
| VALID_ACK_REFUSED | an ack by the handle of the last delivery was refused as stale, unknown, or of another pop |
| POSITION_GAP | the commit offset passed a message that was handed out and not done |
| POSITION_MOVED_BACK | the commit offset went back without a reset |
| LOST_MESSAGE | in a drained history: a message was never handed out, or its lease ended and it never came back |

Not judged: a lane whose mode was changed; payloads; attempts; whether an expired lease is offered again in time.
A message that leaves the log while it is handed out must be in the history as a `skip`, or it looks like a gap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from popstream.history.lane import LaneHistory
from popstream.history.lane_rules import LaneRules
from popstream.history.recorder import HistoryEvent, Invoke, Ok
from popstream.history.spans import Span
from popstream.history.violation import Violation, ViolationKind
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import (
    Ack,
    Cancel,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    EntryCommand,
    ForgetLane,
    Policy,
    Pop,
    Reject,
    ResetOffset,
    ReturnClient,
    Tick,
    encode_command,
    group_of,
)
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["QueueKey", "Report", "Violation", "ViolationKind", "check_history"]

QueueKey = tuple[str, int]
"""(topic, queue_id)"""

ONE_DECISION_NS = 8 * 60 * 1_000_000_000
"""The job knows an op_id for at least 9 minutes, and a record may be in flight for one: within this, one decision."""

UNDECIDED = frozenset((Reason.TOPIC_NOT_EXIST, Reason.MISROUTED))
"""The job stores nothing about these: the same bytes, sent again before the answer, may still be decided."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check.

    Attributes:
        violations: By lane and kind.
        event_count: Events that were read.
        operation_count: Operations; the same bytes sent several times are one.
        unknown_count: Operations of unknown outcome.
        lane_count: Lanes that were judged.
        unjudged_lane_count: Lanes that were not judged, because their mode changed.
        delivery_count: Deliveries of all messages.
    """

    violations: list[Violation]
    event_count: int
    operation_count: int
    unknown_count: int
    lane_count: int
    unjudged_lane_count: int
    delivery_count: int

    @property
    def counts(self) -> dict[ViolationKind, int]:
        """The number of violations of each kind that occurs."""
        return dict(Counter(violation.kind for violation in self.violations))


class _Operation(NamedTuple):
    """An operation and its answer; None: it is unknown whether it was decided."""

    command: Command
    answer: Answer | None


def check_history(
    events: Iterable[HistoryEvent],
    *,
    drained: bool = False,
    written: Mapping[QueueKey, Sequence[Span]] | None = None,
) -> Report:
    """Judge the events of all clients; those of one client are in its order.

    Args:
        events: As `read_history` yields them.
        drained: At the end every group had popped and done every message: then one that never came, or never came back
            after its lease, is lost.
        written: Ranges of queue offsets, first and last, that could be popped, in addition to those that the
            dispatches of the history report.

    Raises:
        Invalid: An end has no invoke: a part of the history is missing.
    """
    calls = _Calls()
    for event in events:
        calls.add(event)
    queues: dict[QueueKey, list[_Operation]] = defaultdict(list)
    unknown_count = operation_count = 0
    for operation in calls.operations():
        operation_count += 1
        unknown_count += operation.answer is None
        queues[operation.command.topic, operation.command.queue_id].append(operation)
    violations: list[Violation] = []
    lanes: list[LaneHistory] = []
    for key in sorted(queues):
        queue = _QueueHistory(key, queues[key])
        lanes += queue.lanes.values()
        violations += queue.violations([*(written or {}).get(key, ())] if drained else None)
    return Report(
        violations=violations,
        event_count=calls.event_count,
        operation_count=operation_count,
        unknown_count=unknown_count,
        lane_count=sum(not lane.is_mixed for lane in lanes),
        unjudged_lane_count=sum(lane.is_mixed for lane in lanes),
        delivery_count=sum(lane.delivery_count for lane in lanes),
    )


class _Calls:
    """Groups events by operation."""

    def __init__(self) -> None:
        self.event_count = 0
        self._invokes: dict[str, Invoke] = {}
        self._answers: dict[str, Answer] = {}
        self._ended_ns: dict[str, int] = {}

    def add(self, event: HistoryEvent) -> None:
        """Add the next event.

        Raises:
            Invalid: It ends a call that no invoke has begun.
        """
        self.event_count += 1
        if isinstance(event, Invoke):
            self._invokes[event.call] = event
            return
        if event.call not in self._invokes:
            message = f"the history ends the call {event.call} that it does not begin: a part of it is missing"
            raise Invalid(message, subject=event.op_id)
        self._ended_ns[event.call] = event.at_ns
        if isinstance(event, Ok):
            self._answers[event.call] = event.answer

    def operations(self) -> Iterator[_Operation]:
        """Yield each operation once with each answer that it got, which should be one."""
        same: dict[tuple[str, bytes], list[Invoke]] = defaultdict(list)
        for invoke in self._invokes.values():
            same[invoke.op_id, encode_command(invoke.command)].append(invoke)
        for invokes in same.values():
            command = invokes[0].command
            answers: list[Answer] = []
            is_unknown = False
            for invoke in invokes:
                answer = self._answers.get(invoke.call)
                if answer is None or answer.reason in UNDECIDED:
                    is_unknown = True
                elif answer not in answers:
                    answers.append(answer)
            decided = [answer for answer in answers if answer.reason is not Reason.OP_ID_REUSED]
            for answer in answers:
                yield _Operation(command, answer)
            if is_unknown and not (decided and self._is_one_decision(invokes)):
                yield _Operation(command, None)

    def _is_one_decision(self, invokes: list[Invoke]) -> bool:
        ends = [max(invoke.at_ns, self._ended_ns.get(invoke.call, 0)) for invoke in invokes]
        return max(ends) - min(invoke.at_ns for invoke in invokes) <= ONE_DECISION_NS


class _QueueHistory:
    """Adds the operations on one queue to the lanes that they concern."""

    def __init__(self, key: QueueKey, operations: list[_Operation]) -> None:
        self._topic, self._queue_id = key
        self.lanes: dict[str, LaneHistory] = {}
        self._group_of_pop: dict[str, str] = {}
        self._written: list[Span] = []
        self._commit_position = 0
        self._may_be_replaced = len({c.topic_id for c, _ in operations if isinstance(c, Declare)}) > 1
        self._open_lanes(operations)
        for command, answer in operations:
            self._add(command, answer)

    def violations(self, written: list[Span] | None) -> Iterator[Violation]:
        """Yield the violations of all lanes; with `written` the history is drained."""
        for group in sorted(self.lanes):
            lane = self.lanes[group]
            if lane.is_mixed:
                continue
            rules = LaneRules(lane)
            yield from rules.violations()
            if written is not None and not self._may_be_replaced:
                position = self._commit_position
                known = [(first, min(last, position - 1)) for first, last in self._written if first < position]
                yield from rules.lost(sorted([*known, *written]))

    def _open_lanes(self, operations: list[_Operation]) -> None:
        """Create every lane, and add the pops: the other operations name messages of pops, or concern all lanes."""
        for command, answer in operations:
            for group in _groups_of(command):
                self.lanes.setdefault(group, LaneHistory(self._topic, self._queue_id, group))
            if isinstance(command, Pop):
                self.lanes[command.group].add_pop(command, answer)
                self._group_of_pop[command.op_id or ""] = command.group
        for lane in self.lanes.values():
            lane.end_pops()

    def _add(self, command: Command, answer: Answer | None) -> None:
        match command:
            case Pop() | Tick():
                pass
            case Ack() | ChangeInvisible() | Reject():
                self._add_entries(command, answer)
            case Cancel():
                self._add_cancel(command, answer)
            case ReturnClient():
                self._add_return(command, answer)
            case ResetOffset() | ForgetLane():
                self._add_reset(command, answer)
            case Declare():
                self._add_declare(answer)
            case Dispatch():
                self._add_dispatch(command, answer)
            case Policy():
                for lane in self.lanes.values() if command.group is None else [self.lanes[command.group]]:
                    lane.limit_attempts(command.max_attempts)
            case _:
                assert_never(command)

    def _add_entries(self, command: EntryCommand, answer: Answer | None) -> None:
        if answer is None:
            for lane in self.lanes.values():
                lane.add_unanswered_entries(command)
            return
        for run in answer.runs:
            entry = command.entries[run.entry] if 0 <= run.entry < len(command.entries) else None
            if entry is not None and 0 <= entry.handle < len(command.handles):
                self.lanes[command.handles[entry.handle].group].add_run(command, run, answer)
        for group, commit_offset in answer.commit_offsets.items():
            if group in self.lanes:
                self.lanes[group].add_commit(answer, commit_offset)

    def _add_cancel(self, command: Cancel, answer: Answer | None) -> None:
        group = self._group_of_pop.get(command.target_op_id)
        # A pop that is not in the history may be one of any lane.
        for lane in self.lanes.values() if group is None else [self.lanes[group]]:
            if answer is None:
                lane.may_be_cancelled.add(command.target_op_id)
            else:
                lane.add_release(answer)

    def _add_return(self, command: ReturnClient, answer: Answer | None) -> None:
        if answer is None:
            self.lanes[command.group].may_be_returned.add(command.client_id)
        else:
            self.lanes[command.group].add_release(answer)

    def _add_reset(self, command: ResetOffset | ForgetLane, answer: Answer | None) -> None:
        lane = self.lanes[command.group]
        lane.add_reset(answer)
        if answer is not None and answer.applied:
            if isinstance(command, ResetOffset):
                lane.reset_target = max(lane.reset_target, command.queue_offset)
            else:
                lane.was_forgotten = True

    def _add_declare(self, answer: Answer | None) -> None:
        """A declare resets all lanes when it is applied to a queue that existed: when it replaces the queue."""
        if answer is not None:
            self._commit_position = max(self._commit_position, answer.commit_position or 0)
        if answer is not None or self._may_be_replaced:
            for lane in self.lanes.values():
                lane.add_reset(answer)

    def _add_dispatch(self, command: Dispatch, answer: Answer | None) -> None:
        if answer is not None:
            self._commit_position = max(self._commit_position, answer.commit_position or 0)
            for run in answer.runs:
                if run.reason is Reason.OK and run.entry < len(command.ranges):
                    self._written.append((run.first, run.last))
        for lane in self.lanes.values():
            lane.removed += command.skip


def _groups_of(command: Command) -> Iterator[str]:
    """Yield the groups that an operation names, itself or by its handles."""
    group = group_of(command)
    if group is not None:
        yield group
    if isinstance(command, Ack | ChangeInvisible | Reject):
        yield from (ref.group for ref in command.handles)
