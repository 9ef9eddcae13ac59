"""What clients saw, judged: the histories that `ClientSettings.history_file` records (`popstream history check`).

The checker knows nothing of the job but its answers. It needs the history of every client that touched the groups
judged, administration included; queues and groups that nobody recorded are not judged. It tells only what is certain
(`lane_history` says how), so a violation is one, and silence is no proof.

| kind | what was seen |
|---|---|
| TWO_LIVE_LEASES | a message was handed out again while its lease ran, and nobody may have ended it |
| DELIVERED_AFTER_DONE | a message came again after it was done (concurrent), or below the commit offset (both) |
| OUT_OF_ORDER | an orderly pop left out what came later, or was served while a member of the batch was held |
| STALE_HANDLE_ACCEPTED | an ack or change came into effect by a handle older than a delivery, a revision or a reset |
| VALID_ACK_REFUSED | an ack by the handle of the last delivery was refused as stale, unknown, or of another pop |
| POSITION_GAP | the commit offset passed a message that was handed out and not done |
| POSITION_MOVED_BACK | the commit offset went back without a reset |
| LOST_MESSAGE | in a drained history: a message was written, and never handed out to a group that popped |

Not judged: a lane whose mode was changed; payloads; attempts; whether a lease that ended is offered again in time.
What leaves the log while it is handed out must be in the history as a `skip`, or it looks like a gap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec

from popstream.history.lane import LaneHistory, Span, Violation, ViolationKind
from popstream.history.recorder import HistoryEvent, Invoke, Ok
from popstream.wire.answer import Answer
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
)
from popstream.wire.failures import Invalid
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["QueueKey", "Report", "Violation", "ViolationKind", "check_history"]

QueueKey = tuple[str, int]
"""(topic, queue_id)"""

ONE_DECISION_NS = 8 * 60 * 1_000_000_000
"""The job knows an op_id for 9 minutes at least, and a record may be under way for one: within this, one decision."""

UNDECIDED = frozenset((Reason.TOPIC_NOT_EXIST, Reason.MISROUTED))
"""Nothing is stored of these: the same bytes, sent again before the answer came, may still be decided."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a history says.

    Args:
        violations: By lane and kind; none is a history without fault.
        event_count: Events that were read.
        operation_count: Operations; the same bytes sent several times are one.
        unknown_count: Operations of unknown outcome.
        lane_count: Lanes that were judged.
        unjudged_lane_count: Lanes that were not, as their mode changed.
        delivery_count: Messages handed out, each as often as it was.
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
        """How many violations there are of each kind that there is."""
        return dict(Counter(violation.kind for violation in self.violations))


class _Operation(NamedTuple):
    """An operation and its answer; None: nobody knows whether it was decided."""

    command: Command
    answer: Answer | None


def check_history(
    events: Iterable[HistoryEvent],
    *,
    drained: bool = False,
    written: Mapping[QueueKey, Sequence[Span]] | None = None,
) -> Report:
    """Judge the events of all clients, each client's in its order.

    Args:
        events: As `read_history` gives them.
        drained: At the end every group had popped and done all there was: then a message that never came is lost.
        written: Ranges of queue offsets, first and last, that are messages and could be popped, besides those that the
            dispatches of the history tell.

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
        violations += queue.judge([*(written or {}).get(key, ())] if drained else None)
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
    """The events, sorted into operations."""

    def __init__(self) -> None:
        self.event_count = 0
        self._invokes: dict[str, Invoke] = {}
        self._answers: dict[str, Answer] = {}
        self._ended_ns: dict[str, int] = {}

    def add(self, event: HistoryEvent) -> None:
        """The next event.

        Raises:
            Invalid: It ends a call that was never begun.
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
        """Each operation once with each answer that it got, which should be one."""
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
    """The operations on one queue, told to the lanes that they concern."""

    def __init__(self, key: QueueKey, operations: list[_Operation]) -> None:
        self._topic, self._queue_id = key
        self._operations = operations
        self.lanes: dict[str, LaneHistory] = {}
        self._group_of_pop: dict[str, str] = {}
        self._written: list[Span] = []
        self._commit_position = 0
        self._may_be_replaced = len({c.topic_id for c, _ in operations if isinstance(c, Declare)}) > 1
        self._find_lanes()
        for command, answer in operations:
            if answer is None:
                self._doubt(command)
            else:
                self._tell(command, answer)

    def judge(self, written: list[Span] | None) -> Iterator[Violation]:
        """The violations of all lanes; with `written` the history is drained."""
        for group in sorted(self.lanes):
            lane = self.lanes[group]
            if lane.is_mixed:
                continue
            yield from lane.judge()
            if written is not None and not self._may_be_replaced:
                position = self._commit_position
                known = [(first, min(last, position - 1)) for first, last in self._written if first < position]
                yield from lane.judge_lost(sorted([*known, *written]))

    def _find_lanes(self) -> None:
        """Pops come first: what the others name are messages of pops."""
        for command, answer in self._operations:
            match command:
                case Pop():
                    self._lane(command.group).add_pop(command, answer)
                    self._group_of_pop[command.op_id or ""] = command.group
                case Ack() | ChangeInvisible() | Reject():
                    for ref in command.handles:
                        self._lane(ref.group)
                case ResetOffset() | ForgetLane() | ReturnClient():
                    self._lane(command.group)
                case Declare() | Dispatch() | Policy() | Cancel() | Tick():
                    pass
                case _:
                    assert_never(command)
        for lane in self.lanes.values():
            lane.end_pops()

    def _lane(self, group: str) -> LaneHistory:
        return self.lanes.setdefault(group, LaneHistory(self._topic, self._queue_id, group))

    def _lanes_of_pop(self, op_id: str) -> Iterable[LaneHistory]:
        """The lane of a pop; every one, when the pop is not in the history."""
        group = self._group_of_pop.get(op_id)
        return self.lanes.values() if group is None else (self.lanes[group],)

    def _tell(self, command: Command, answer: Answer) -> None:
        match command:
            case Ack() | ChangeInvisible() | Reject():
                self._tell_entries(command, answer)
            case Cancel():
                for lane in self._lanes_of_pop(command.target_op_id):
                    lane.add_release(answer)
            case ReturnClient():
                self._lane(command.group).add_release(answer)
            case ResetOffset():
                if answer.applied:
                    lane = self._lane(command.group)
                    lane.add_reset(answer.now_ms)
                    lane.reset_target = max(lane.reset_target, command.queue_offset)
            case ForgetLane():
                if answer.applied:
                    lane = self._lane(command.group)
                    lane.add_reset(answer.now_ms)
                    lane.was_forgotten = True
            case Declare():
                self._commit_position = max(self._commit_position, answer.commit_position or 0)
                for lane in self.lanes.values() if answer.applied else ():
                    lane.add_reset(answer.now_ms)
            case Dispatch():
                self._tell_dispatch(command, answer)
            case Policy():
                self._limit_attempts(command)
            case Pop() | Tick():
                pass
            case _:
                assert_never(command)

    def _tell_entries(self, command: EntryCommand, answer: Answer) -> None:
        for run in answer.runs:
            entry = command.entries[run.entry] if 0 <= run.entry < len(command.entries) else None
            if entry is not None and 0 <= entry.handle < len(command.handles):
                self._lane(command.handles[entry.handle].group).add_run(command, run, answer)
        for group, commit_offset in answer.commit_offsets.items():
            self._lane(group).add_commit(answer, commit_offset)

    def _tell_dispatch(self, command: Dispatch, answer: Answer) -> None:
        self._commit_position = max(self._commit_position, answer.commit_position or 0)
        for run in answer.runs:
            if run.reason is Reason.OK and run.entry < len(command.ranges):
                self._written.append((run.first, run.last))
        self._skip(command)

    def _skip(self, command: Dispatch) -> None:
        for lane in self.lanes.values() if command.skip else ():
            lane.add_gone(command.skip)

    def _limit_attempts(self, command: Policy) -> None:
        """Answered or not, of the lane or of its queue: the least of all limits is the careful one."""
        limit = command.max_attempts
        if limit <= 0:
            return
        for lane in self.lanes.values() if command.group is None else [self._lane(command.group)]:
            lane.attempts_max = min(limit, lane.attempts_max or limit)

    def _doubt(self, command: Command) -> None:
        match command:
            case Ack() | ChangeInvisible() | Reject():
                for lane in self.lanes.values():
                    lane.add_unanswered(command)
            case Cancel():
                for lane in self._lanes_of_pop(command.target_op_id):
                    lane.add_doubt(cancelled=command.target_op_id)
            case ReturnClient():
                self._lane(command.group).add_doubt(returned=command.client_id)
            case ResetOffset() | ForgetLane():
                self._lane(command.group).add_reset(None)
            case Declare():
                for lane in self.lanes.values() if self._may_be_replaced else ():
                    lane.add_reset(None)
            case Dispatch():
                self._skip(command)
            case Policy():
                self._limit_attempts(command)
            case Pop() | Tick():
                pass
            case _:
                assert_never(command)
