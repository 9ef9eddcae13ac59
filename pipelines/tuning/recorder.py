"""A range of the log, taken apart: what clients sent by themselves, and how they handled what was leased to them.

What they sent by themselves (pops, dispatches, policies, ticks ...) comes at its time, whatever the settings. Acks,
changes and rejects are kept with the delivery that they are about (`handlings`). Those about leases from before the
range come at their time as well, with their own handles.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import load_queue
from broker_state.kernel.validation import is_op_id
from broker_state.store.overlay import Overlay
from pipelines.tuning.handlings import Action, Handling
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.policies import lanes_of, policy_of
from pipelines.tuning.recorded import Carried, Event, Item, RecordedQueue
from popstream.wire.command import (
    Ack,
    Cancel,
    ChangeInvisible,
    Command,
    Declare,
    Entry,
    EntryCommand,
    ForgetLane,
    Policy,
    Pop,
    Reject,
    ResetOffset,
    Tick,
    encode_command,
    group_of,
    kind_of,
)
from popstream.wire.limits import OFFSET_MAX
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

__all__ = ["Recorder"]

_VOID = frozenset((Reason.INVALID_PARAMETER, Reason.MISROUTED, Reason.SUPERSEDED))
"""Reasons for which a part of an entry is refused whatever the settings: it changes nothing."""


_FIRST = attrgetter("first")
_encode = msgspec.msgpack.Encoder().encode


_Row = TypeVar("_Row", bound=OperationRow | DeliveryRow | CommitPositionRow)


class _Cursor(Generic[_Row]):
    """Takes the rows of one record after the other from those of a micro-batch."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = list(rows)
        self._at = 0

    def of(self, kafka_offset: int) -> Sequence[_Row]:
        rows, first = self._rows, self._at
        end = first
        while end < len(rows) and rows[end].kafka_offset == kafka_offset:
            end += 1
        self._at = end
        return rows[first:end]


class Recorder:
    """Takes the records of one partition with their decisions apart.

    Args:
        overlay: The state; read before and after the kernel has changed it.
        settings: What will be different.

    Attributes:
        queues: The queues of the range.
    """

    def __init__(self, overlay: Overlay, settings: OtherSettings) -> None:
        self._overlay = overlay
        self._settings = settings
        self._policies: dict[tuple[str, int, str], Policy] = {}
        """By lane, the policy that it would have since the last time that its own was looked at."""
        self._declared: dict[tuple[str, int, str], tuple[int | None, tuple[int, ...]]] = {}
        self._pops: dict[bytes, Pop] = {}
        self._entries: dict[bytes, Entry] = {}
        self.queues: dict[QueueName, RecordedQueue] = {}

    def begin(self, records: Iterable[OpRecord]) -> None:
        """Look at the queues of these records, before the kernel decides the first one of the range."""
        for record in records:
            command = record.command
            place = (command.topic, command.queue_id)
            if record.misrouted or place in self.queues:
                continue
            queue = load_queue(self._overlay, *place)
            lanes = [] if queue is None else list(lanes_of(queue))
            commit_offsets = {lane.record.group: lane.acked.floor for lane in lanes}
            self.queues[place] = recorded = RecordedQueue(*place, commit_offsets)
            if queue is not None:
                recorded.now_ms = queue.record.now_ms
                for lane in lanes:
                    self._change_mode(recorded, lane)
                self._change_policies(recorded, lanes, -1)

    def changes_policies(self, record: OpRecord) -> bool:
        """Return whether policies may be others after a record: then `note_policies` is to be called behind it."""
        if not self._settings.of_policy or record.misrouted:
            return False
        command = record.command
        if isinstance(command, Pop):
            lane = (command.topic, command.queue_id, command.group)
            declared = (command.max_attempts, tuple(command.back_off_ms or ()))
            is_new = self._declared.get(lane) != declared
            self._declared[lane] = declared
            return is_new
        return isinstance(command, Policy | Declare | ResetOffset | ForgetLane)

    def note_policies(self, record: OpRecord) -> None:
        """Let the lanes that a record may have changed have their policies, with what is different, from here on."""
        command = record.command
        queue = load_queue(self._overlay, command.topic, command.queue_id)
        recorded = self.queues.get((command.topic, command.queue_id))
        if queue is None or recorded is None:
            return
        group = group_of(command)
        if isinstance(command, Declare | ForgetLane):  # what they delete has no policy any more
            self._forget_policies((command.topic, command.queue_id), group)
        lane = None if group is None else queue.lane(group)
        # Of a pop only its own lane: a queue may have a hundred thousand.
        lanes = lanes_of(queue) if group is None else [] if lane is None else [lane]
        self._change_policies(recorded, lanes, 2 * record.kafka_offset + 1)

    def _forget_policies(self, queue: QueueName, group: str | None) -> None:
        for known in (self._policies, self._declared):
            for lane in [lane for lane in known if lane[:2] == queue and group in (None, lane[2])]:
                del known[lane]

    def add(self, records: Sequence[OpRecord], decision: Decision) -> None:
        """Add records of the range, which the kernel has just decided."""
        operations, deliveries = _Cursor(decision.operations), _Cursor(decision.deliveries)
        positions = _Cursor(decision.commit_positions)
        for record in records:
            offset = record.kafka_offset
            rows = operations.of(offset)
            if record.misrouted:  # it changes nothing, and has a row of `operations` alone
                continue
            queue = self.queues[record.command.topic, record.command.queue_id]
            queue.records += 1
            queue.now_ms = max(queue.now_ms, record.timestamp_ms)
            self._add_leases(queue, rows)
            queue.tally.add(rows, deliveries.of(offset), positions.of(offset), queue.now_ms)
            self._add_event(queue, record, rows)

    def _change_mode(self, recorded: RecordedQueue, lane: LaneState) -> None:
        """Let a lane of the other mode begin anew at its commit offset: a mode changes only where nothing is leased."""
        group, order = lane.record.group, self._settings.order
        if order is None or not self._settings.are_of(group) or lane.record.orderly in (None, order):
            return
        place: dict[str, Any] = {"v": 1, "topic": recorded.topic, "queue_id": recorded.queue_id, "group": group}
        for command in (ForgetLane(**place), ResetOffset(**place, queue_offset=lane.acked.floor)):
            recorded.events.append(Event(recorded.now_ms, -1, command))

    def _change_policies(self, recorded: RecordedQueue, lanes: Iterable[LaneState], seq: int) -> None:
        if not self._settings.of_policy:
            return
        for lane in lanes:
            group = lane.record.group
            if not self._settings.are_of(group):
                continue
            policy = msgspec.structs.replace(policy_of(lane), **self._settings.of_policy)
            place = (recorded.topic, recorded.queue_id, group)
            if self._policies.get(place) != policy:
                self._policies[place] = policy
                recorded.events.append(Event(recorded.now_ms, seq, policy))

    def _add_leases(self, queue: RecordedQueue, rows: Sequence[OperationRow]) -> None:
        for row in rows:
            text, group = row.handle_after, row.group
            if text is None or group is None or row.first_offset is None or row.last_offset is None:
                continue
            lane, tally = queue.lane(group), queue.tally.lane(group)
            if row.kind != "pop":
                if row.applied and row.handle_before in lane.of_handle:
                    lane.of_handle[text] = lane.of_handle[row.handle_before]
                continue
            lease_ms = (row.deadline_after_ms or row.now_ms) - row.now_ms
            handlings = lane.of_handle.setdefault(text, [])
            for first, last, number in tally.leased(row.first_offset, row.last_offset, row.attempt):
                handling = Handling(first, last, row.now_ms, lease_ms)
                lane.add(number, handling)
                handlings.append(handling)

    def _add_event(self, queue: RecordedQueue, record: OpRecord, rows: Sequence[OperationRow]) -> None:
        command, kind = record.command, kind_of(record.command)
        what: Command | Carried = command
        is_void = bool(record.forbidden) or (command.op_id is not None and not is_op_id(command.op_id))
        is_void |= any(row.kind == kind and (row.repeated or row.reason == Reason.OP_ID_REUSED) for row in rows)
        if isinstance(command, EntryCommand):
            is_void = is_void or any(row.kind == kind and row.entry is None for row in rows)
            items = [] if is_void else self._keep(queue, record, command, rows)
            if items is None:
                return
            is_void = not items
            what = Carried(items)
        elif isinstance(command, Pop):
            what = self._shared_pop(command)
        elif isinstance(command, Cancel):
            queue.cancelled.add(command.target_op_id)
        elif isinstance(command, Policy) and command.group is not None and self._settings.are_of(command.group):
            what = self._changed_policy(command)
        if is_void:  # it changes nothing but the queue's clock
            what = Tick(v=1, topic=queue.topic, queue_id=queue.queue_id)
        op_id = command.op_id if isinstance(what, Pop) else None
        queue.events.append(Event(queue.now_ms, 2 * record.kafka_offset, what, op_id))

    def _shared_pop(self, recorded: Pop) -> Pop:
        """Return a pop as it would be sent, without what tells it from the others of its client."""
        key = encode_command(msgspec.structs.replace(recorded, op_id=None, reply_to=None))
        pop = self._pops.get(key)
        if pop is None:
            pop = self._pops[key] = self._settings.pop(msgspec.structs.replace(recorded, op_id=None, reply_to=None))
        return pop

    def _shared_entry(self, recorded: Entry) -> Entry:
        """Return what an entry asks for, of no message in particular."""
        entry = msgspec.structs.replace(recorded, handle=0, offsets=[])
        return self._entries.setdefault(type(entry).__name__.encode() + _encode(entry), entry)

    def _changed_policy(self, recorded: Policy) -> Policy:
        order = recorded.orderly if self._settings.order is None else self._settings.order
        changed = msgspec.structs.replace(recorded, op_id=None, reply_to=None, **self._settings.of_policy)
        return msgspec.structs.replace(changed, orderly=None if recorded.orderly is None else order)

    def _keep(
        self,
        queue: RecordedQueue,
        record: OpRecord,
        command: Ack | ChangeInvisible | Reject,
        rows: Sequence[OperationRow],
    ) -> list[Item] | None:
        """Keep the entries of a record with the deliveries that they are about.

        Returns what is about no delivery of the range; None: all is kept.
        """
        items: list[Item] = []
        is_kept = False
        void = sorted((row for row in rows if row.reason in _VOID), key=lambda row: row.first_offset or 0)
        seq, now_ms = 2 * record.kafka_offset, queue.now_ms
        entries: Sequence[Entry] = command.entries
        for number, entry in enumerate(entries):
            if not 0 <= entry.handle < len(command.handles) or entry.handle in record.forged:
                continue
            if not all(0 <= first <= last <= OFFSET_MAX for first, last in entry.offsets):
                continue
            ref = command.handles[entry.handle]
            shared = self._shared_entry(entry)
            lane = queue.handlings.get(ref.group)
            found = [] if lane is None else lane.of_handle.get(ref.handle, [])
            offsets = (
                entry.offsets
                if not void
                else [part for first, last in entry.offsets for part in _good(first, last, ref.group, number, void)]
            )
            for first, last in offsets:
                at = first
                for handling in sorted(found, key=_FIRST) if len(found) > 1 else found:
                    low, high = max(at, handling.first), min(last, handling.last)
                    if low > high:
                        continue
                    if at < low:
                        items.append(Item(number, at, low - 1, ref.group, ref.handle, shared))
                    action = Action(now_ms - handling.started_ms, seq, number, low, high, shared)
                    assert lane is not None, "it has the handle"
                    lane.act(handling, action)
                    is_kept = True
                    at = high + 1
                if at <= last:
                    items.append(Item(number, at, last, ref.group, ref.handle, shared))
        return None if is_kept and not items else items


def _good(first: int, last: int, group: str, number: int, void: Sequence[OperationRow]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of an entry that are void in none of the rows.

    What a superseded handle named is void for the entries behind it, too, which name it again.
    """
    for row in void:
        if row.entry is None or row.first_offset is None or row.last_offset is None or row.group != group:
            continue
        is_about_it = row.entry <= number if row.reason == Reason.SUPERSEDED else row.entry == number
        low, high = max(first, row.first_offset), min(last, row.last_offset)
        if not is_about_it or low > high:
            continue
        if first < low:
            yield first, low - 1
        first = high + 1
    if first <= last:
        yield first, last
