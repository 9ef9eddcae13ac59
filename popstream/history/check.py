"""The check of client histories: judges what `ClientSettings.history_file` recorded (`popstream history check`).

The check knows nothing of the job but its answers. It needs the history of every client that used the groups judged,
administration included; queues and groups that no client recorded are not judged. It reports only what is certain
(`lane_rules` says how): each violation is real, and a history without violations proves nothing.

| kind | observation |
|---|---|
| TWO_LIVE_LEASES | a message was handed out again while its lease ran, and no operation may have ended it |
| DELIVERED_AFTER_DONE | a message was redelivered after it was done (concurrent), or below the commit offset (both) |
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
    Redrive,
    Reject,
    ResetOffset,
    ReturnClient,
    Tick,
    encode_command,
    group_of,
)
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Report", "Violation", "ViolationKind", "check_history"]


ONE_DECISION_NS = 8 * 60 * 1_000_000_000
"""The job knows an op_id for at least 9 minutes, and a record may be in flight for one: within this, one decision."""

UNDECIDED = frozenset((Reason.TOPIC_NOT_EXIST, Reason.MISROUTED))
"""The job stores nothing about these: the same bytes, sent again before the answer, may still be decided."""


_decode_command = msgspec.json.Decoder(Command).decode
_encode_answer = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


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
    written: Mapping[QueueName, Sequence[Span]] | None = None,
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
    counts: Counter[str] = Counter()
    violations: list[Violation] = []
    for key in calls.end():
        found, counted = _judge_queue(key, calls.take(key), [*(written or {}).get(key, ())] if drained else None)
        violations += found
        counts += counted
    return Report(
        violations=violations,
        event_count=calls.event_count,
        operation_count=counts["operation_count"],
        unknown_count=counts["unknown_count"],
        lane_count=counts["lane_count"],
        unjudged_lane_count=counts["unjudged_lane_count"],
        delivery_count=counts["delivery_count"],
    )


def _judge_queue(
    key: QueueName, operations: _Operations, written: list[Span] | None
) -> tuple[list[Violation], Counter[str]]:
    """Judge one queue, whose observations take memory until this returns."""
    queue = _QueueHistory(key, operations)
    return [*queue.violations(written)], queue.counts


class _Call(msgspec.Struct, gc=False):
    """One sending of an operation; `answer` is encoded, None: there is none."""

    at_ns: int
    ended_ns: int = 0
    answer: bytes | None = None


class _Operations:
    """The operations on one queue, encoded: most of a history waits here until its queue is judged."""

    def __init__(self) -> None:
        self._calls: dict[bytes, tuple[_Call, ...]] = {}
        """By command: the same bytes sent several times are one operation."""

    def add(self, command: Command, call: _Call) -> None:
        value = encode_command(command)
        self._calls[value] = (*self._calls.get(value, ()), call)

    def __iter__(self) -> Iterator[_Operation]:
        """Yield each operation once with each answer that it got, which should be one."""
        for value, calls in self._calls.items():
            command = _decode_command(value)
            answers: list[Answer] = []
            is_unknown = False
            for call in calls:
                answer = None if call.answer is None else _decode_answer(call.answer)
                if answer is None or answer.reason in UNDECIDED:
                    is_unknown = True
                elif answer not in answers:
                    answers.append(answer)
            decided = [answer for answer in answers if answer.reason is not Reason.OP_ID_REUSED]
            for answer in answers:
                yield _Operation(command, answer)
            if is_unknown and not (decided and _is_one_decision(calls)):
                yield _Operation(command, None)


def _is_one_decision(calls: Sequence[_Call]) -> bool:
    ends = [max(call.at_ns, call.ended_ns) for call in calls]
    return max(ends) - min(call.at_ns for call in calls) <= ONE_DECISION_NS


class _Calls:
    """Groups events by queue and operation."""

    def __init__(self) -> None:
        self.event_count = 0
        self._calls: dict[str, _Call] = {}
        self._queues: dict[QueueName, _Operations] = defaultdict(_Operations)

    def add(self, event: HistoryEvent) -> None:
        """Add the next event.

        Raises:
            Invalid: It ends a call that no invoke has begun.
        """
        self.event_count += 1
        if isinstance(event, Invoke):
            if event.call not in self._calls:  # otherwise the same file is read twice
                call = self._calls[event.call] = _Call(event.at_ns)
                self._queues[event.command.topic, event.command.queue_id].add(event.command, call)
            return
        begun = self._calls.get(event.call)
        if begun is None:
            message = f"the history ends the call {event.call} that it does not begin: a part of it is missing"
            raise Invalid(message, subject=event.op_id)
        begun.ended_ns = event.at_ns
        if isinstance(event, Ok):
            begun.answer = _encode_answer(event.answer)

    def end(self) -> list[QueueName]:
        """Return the queues, when all events are added."""
        self._calls.clear()
        return sorted(self._queues)

    def take(self, key: QueueName) -> _Operations:
        """Return the operations on a queue, and forget them."""
        return self._queues.pop(key)


class _QueueHistory:
    """Adds the operations on one queue to the lanes that they concern."""

    def __init__(self, key: QueueName, operations: _Operations) -> None:
        self._topic, self._queue_id = key
        self._lanes: dict[str, LaneHistory] = {}
        self._operation_counts: Counter[str] = Counter()
        self._group_of_pop: dict[str, str] = {}
        self._written: list[Span] = []
        self._commit_position = 0
        self._topic_ids: set[str] = set()
        self._open_lanes(operations)
        self._may_be_replaced = len(self._topic_ids) > 1
        for command, answer in operations:
            self._add(command, answer)

    @property
    def counts(self) -> Counter[str]:
        """The counts of the report that are of this queue."""
        lanes = self._lanes.values()
        return self._operation_counts + Counter(
            lane_count=sum(not lane.is_mixed for lane in lanes),
            unjudged_lane_count=sum(lane.is_mixed for lane in lanes),
            delivery_count=sum(lane.delivery_count for lane in lanes),
        )

    def violations(self, written: list[Span] | None) -> Iterator[Violation]:
        """Yield the violations of all lanes; with `written` the history is drained."""
        for group in sorted(self._lanes):
            lane = self._lanes[group]
            if lane.is_mixed:
                continue
            rules = LaneRules(lane)
            if written is None or self._may_be_replaced:
                yield from rules.violations()
            else:
                position = self._commit_position
                known = [(first, min(last, position - 1)) for first, last in self._written if first < position]
                yield from rules.violations(sorted([*known, *written]))

    def _open_lanes(self, operations: _Operations) -> None:
        """Create every lane, and add the pops: the other operations name pops, or concern all lanes."""
        for command, answer in operations:
            self._operation_counts["operation_count"] += 1
            self._operation_counts["unknown_count"] += answer is None
            for group in _groups_of(command):
                if group not in self._lanes:
                    self._lanes[group] = LaneHistory(self._topic, self._queue_id, group)
            if isinstance(command, Declare):
                self._topic_ids.add(command.topic_id)
            if isinstance(command, Pop):
                self._lanes[command.group].add_pop(command, answer)
                self._group_of_pop[command.op_id or ""] = command.group
        for lane in self._lanes.values():
            lane.end_pops()

    def _add(self, command: Command, answer: Answer | None) -> None:
        match command:
            case Pop() | Redrive() | Tick():
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
                for lane in self._lanes.values() if command.group is None else [self._lanes[command.group]]:
                    lane.limit_attempts(command.max_attempts)
            case _:
                assert_never(command)

    def _add_entries(self, command: EntryCommand, answer: Answer | None) -> None:
        if answer is None:
            for lane in self._lanes.values():
                lane.add_unanswered_entries(command)
            return
        for run in answer.runs:
            entry = command.entries[run.entry] if 0 <= run.entry < len(command.entries) else None
            if entry is not None and 0 <= entry.handle < len(command.handles):
                self._lanes[command.handles[entry.handle].group].add_run(command, run, answer)
        for group, commit_offset in answer.commit_offsets.items():
            if group in self._lanes:
                self._lanes[group].add_commit(answer, commit_offset)

    def _add_cancel(self, command: Cancel, answer: Answer | None) -> None:
        group = self._group_of_pop.get(command.target_op_id)
        # A pop that is not in the history may be one of any lane.
        for lane in self._lanes.values() if group is None else [self._lanes[group]]:
            if answer is None:
                lane.may_be_cancelled.add(command.target_op_id)
            else:
                lane.add_release(answer)

    def _add_return(self, command: ReturnClient, answer: Answer | None) -> None:
        if answer is None:
            self._lanes[command.group].may_be_returned.add(command.client_id)
        else:
            self._lanes[command.group].add_release(answer)

    def _add_reset(self, command: ResetOffset | ForgetLane, answer: Answer | None) -> None:
        lane = self._lanes[command.group]
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
            for lane in self._lanes.values():
                lane.add_reset(answer)

    def _add_dispatch(self, command: Dispatch, answer: Answer | None) -> None:
        if answer is not None:
            self._commit_position = max(self._commit_position, answer.commit_position or 0)
            for run in answer.runs:
                if run.reason is Reason.OK and run.entry < len(command.ranges):
                    self._written.append((run.first, run.last))
        for lane in self._lanes.values():
            lane.removed += command.skip


def _groups_of(command: Command) -> Iterator[str]:
    """Yield the groups that an operation names, itself or by its handles."""
    group = group_of(command)
    if group is not None:
        yield group
    if isinstance(command, Ack | ChangeInvisible | Reject):
        yield from (ref.group for ref in command.handles)
