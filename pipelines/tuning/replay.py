"""A queue of the range once more, with other settings.

What clients sent by themselves comes at its time, and their acks, changes and rejects come as long after the leases as
in fact (`handlings`). All is decided by the kernel.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from broker_state.audit import OperationRow
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState, load_queue
from broker_state.kernel.decide import decide
from broker_state.store.keys import NEVER_MS
from broker_state.store.overlay import Overlay
from pipelines.tuning.handlings import Evidence, Handling, LaneHandlings, is_renewal
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.recorded import Carried, Item, RecordedQueue
from pipelines.tuning.tally import QueueTally
from popstream.lease.renewal import RenewalPolicy
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Entry,
    HandleRef,
    OffsetRange,
    Reject,
    RejectEntry,
    Tick,
)
from popstream.wire.queue_name import QueueName

__all__ = ["TICK_AFTER_MS", "QueueReplay"]

TICK_AFTER_MS = 100
"""A tick comes this long after a deadline, unless another record of the queue does: the job sends it within that."""

_WRITTEN_EVERY = 10_000
_OWN_SEQ = 1 << 62
"""What nobody sent in fact comes after all that was sent at the same time."""
_RENEWED = RenewalPolicy()
_RENEWED_AFTER_MS_MIN = 10
"""A client looks after its leases no more often."""
_ACKED = AckEntry(0, [])
_PLACE = attrgetter("number", "first")


class _Due(NamedTuple):
    """What a client asks for at a time. Sorts by time and place in the log."""

    at_ms: int
    seq: int
    number: int
    order: int
    group: str
    handle: str
    first: int
    last: int
    entry: Entry
    until_ms: int
    """Of a renewal: how long the client goes on with it; else 0."""

    @property
    def item(self) -> Item:
        """The part of an entry."""
        return Item(self.number, self.first, self.last, self.group, self.handle, self.entry, follows=True)


class QueueReplay:
    """Decides one queue again.

    Args:
        overlay: The state at the start of the range.
        recorded: The queue as recorded.
        settings: What is different.
        end_ms: The end of the range, by the clock of the log.
        tick_after_ms: When a tick comes after a deadline.

    Attributes:
        tally: What became of the messages.
        evidence: Messages of deliveries, by where their handling was taken from.
        decided: Number of records that were decided.
    """

    def __init__(
        self,
        overlay: Overlay,
        recorded: RecordedQueue,
        settings: OtherSettings,
        end_ms: int,
        tick_after_ms: int = TICK_AFTER_MS,
    ) -> None:
        self._overlay = overlay
        self._recorded = recorded
        self._settings = settings
        self._end_ms = end_ms
        self._tick_after_ms = tick_after_ms
        self._due: list[_Due] = []
        self._order = itertools.count()
        self._handles: dict[QueueName, str] = {}
        """The handles of leases that were changed, by the handle of the pop and the queue offset."""
        self._of_pop: dict[str, str] = {}
        """The handle of the pop, by that of a changed lease."""
        self._queue: QueueState | None = load_queue(overlay, recorded.topic, recorded.queue_id)
        self._now_ms = 0
        self.tally = QueueTally(recorded.commit_offsets)
        self.evidence: dict[str, dict[Evidence, int]] = {}
        self.decided = 0

    def run(self) -> Iterator[None]:
        """Decide all that comes until the end of the range; yield now and then, for the overlay to be written."""
        events = self._recorded.events
        due, at, written = self._due, 0, 0
        while True:
            if self.decided - written >= _WRITTEN_EVERY:
                written = self.decided
                yield from self._settled()
            event = events[at] if at < len(events) else None
            next_ms, seq = NEVER_MS, 0
            if event is not None:
                next_ms, seq = event.now_ms, event.seq
            if due and due[0][:2] < (next_ms, seq):
                next_ms, seq = due[0][:2]
                event = None
            if self._tick_before(next_ms):
                continue
            if next_ms > self._end_ms:
                yield from self._settled()
                return
            items: list[Item] = []
            if event is not None:
                at += 1
                if not isinstance(event.what, Carried):
                    self._decide(self._sent(event.what, event.op_id), next_ms, seq)
                    continue
                items = list(event.what.items)
            renewed = []
            while due and due[0][:2] == (next_ms, seq):
                one = heapq.heappop(due)
                items.append(one.item)
                if one.until_ms:
                    renewed.append(one)
            self._decide(self._command(items), next_ms, seq)
            for one in renewed:
                self._renew(one)

    def _tick_before(self, next_ms: int) -> bool:
        """Decide a tick if a deadline is due long before the next record; return whether there was one."""
        if self._queue is None:
            return False
        tick_ms = max(self._queue.deadlines.earliest_ms + self._tick_after_ms, self._now_ms)
        if tick_ms >= next_ms or tick_ms > self._end_ms:
            return False
        self._decide(Tick(v=1, topic=self._recorded.topic, queue_id=self._recorded.queue_id), tick_ms, _OWN_SEQ)
        return True

    def _sent(self, command: Command, op_id: str | None) -> Command:
        """Return a command as it would be sent. Only a pop that is cancelled is known by its id."""
        if op_id is not None:
            return msgspec.structs.replace(command, op_id=op_id) if op_id in self._recorded.cancelled else command
        return command if command.op_id is None else msgspec.structs.replace(command, op_id=None, reply_to=None)

    def _decide(self, command: Command, now_ms: int, seq: int) -> None:
        decision = Decision()
        self._now_ms = now_ms
        digest = seq.to_bytes(8, "big", signed=True)  # of an op_id that was sent again there is the first record alone
        queue = decide(self._overlay, OpRecord(0, seq, now_ms, command, digest), decision)
        if queue is not None:
            self._queue = queue
        for row in decision.operations:
            if row.handle_after is not None and row.applied:
                self._handed_out(row)
        if decision.operations or decision.deliveries or decision.commit_positions:
            self.tally.add(decision.operations, decision.deliveries, decision.commit_positions, now_ms)
        self.decided += 1

    def _settled(self) -> Iterator[None]:
        if self._queue is not None:
            self._queue.settle()
        yield
        self._queue = load_queue(self._overlay, self._recorded.topic, self._recorded.queue_id)

    def _handed_out(self, row: OperationRow) -> None:
        """Let the client of a lease handle it, or note the new handle of a changed one."""
        group, text, first, last = row.group, row.handle_after, row.first_offset, row.last_offset
        assert group is not None, "a lease is of a group"
        assert text is not None, "it has a handle"
        assert first is not None, "and messages"
        assert last is not None, "and messages"
        if row.kind != "pop":
            before = row.handle_before or ""
            self._of_pop[text] = of_pop = self._of_pop.get(before, before)
            self._handles.update(dict.fromkeys(((of_pop, offset) for offset in range(first, last + 1)), text))
            return
        runs = self.tally.lane(group).leased(first, last, row.attempt)
        lane = self._recorded.lane(group)
        lease_ms = (row.deadline_after_ms or row.now_ms) - row.now_ms
        counted = self.evidence.setdefault(group, dict.fromkeys(Evidence, 0))
        for low, high, number in runs:
            for at, stop, handling, evidence in lane.of(low, high, number):
                if handling is not None and self._is_open(handling):
                    evidence = Evidence.OPEN  # noqa: PLW2901 - it is known here only
                counted[evidence] += stop - at + 1
                self._handle(lane, handling, at, stop, group, text, lease_ms)

    def _is_open(self, handling: Handling) -> bool:
        return not handling.actions and handling.started_ms + handling.lease_ms > self._end_ms

    def _handle(
        self,
        lane: LaneHandlings,
        handling: Handling | None,
        first: int,
        last: int,
        group: str,
        text: str,
        lease_ms: int,
    ) -> None:
        """Plan what the client of a lease asks for."""
        now_ms = self._now_ms
        renews = lane.renews and self._settings.invisible_time_ms is not None and self._settings.are_of(group)
        if handling is None:
            delay_ms = lane.median_ack_ms
            if delay_ms is not None:
                self._plan(now_ms + delay_ms, _OWN_SEQ, 0, group, text, first, last, _ACKED)
                if renews:
                    self._plan_renewal(now_ms, group, text, first, last, lease_ms, now_ms + delay_ms)
            return
        for action in handling.actions:
            low, high = max(first, action.first), min(last, action.last)
            if low <= high and not (renews and is_renewal(action.entry, handling)):
                at_ms = now_ms + action.delay_ms
                self._plan(at_ms, action.seq, action.number, group, text, low, high, action.entry)
        if renews:
            for low, high, known_ms in handling.ends(first, last):
                self._plan_renewal(now_ms, group, text, low, high, lease_ms, now_ms + known_ms)

    def _plan(
        self,
        at_ms: int,
        seq: int,
        number: int,
        group: str,
        text: str,
        first: int,
        last: int,
        entry: Entry,
        until_ms: int = 0,
    ) -> None:
        due = _Due(at_ms, seq, number, next(self._order), group, text, first, last, entry, until_ms)
        heapq.heappush(self._due, due)

    def _plan_renewal(
        self, now_ms: int, group: str, text: str, first: int, last: int, lease_ms: int, until_ms: int
    ) -> None:
        """Plan the next renewal of a lease that began or was renewed now, if the client still has the messages then."""
        at_ms = now_ms + max(_RENEWED_AFTER_MS_MIN, lease_ms - _RENEWED.left_ms_when_due(lease_ms))
        if at_ms < until_ms:
            entry = ChangeEntry(0, [], lease_ms)
            seq = _OWN_SEQ + 1 + next(self._order)
            self._plan(at_ms, seq, 0, group, text, first, last, entry, until_ms)

    def _renew(self, one: _Due) -> None:
        assert isinstance(one.entry, ChangeEntry), "a renewal is a change"
        lease_ms = one.entry.invisible_time_ms
        self._plan_renewal(one.at_ms, one.group, one.handle, one.first, one.last, lease_ms, one.until_ms)

    def _command(self, items: Sequence[Item]) -> Command:
        """Return one operation with what is asked for, in the order of the entries."""
        handles: dict[tuple[str, str], int] = {}
        parts: list[tuple[int, Entry, list[OffsetRange]]] = []
        for item in sorted(items, key=_PLACE):
            for first, last, text in self._with_handles(item):
                index = handles.setdefault((item.group, text), len(handles))
                if parts and parts[-1][0] == index and parts[-1][1] is item.entry:
                    parts[-1][2].append((first, last))
                else:
                    parts.append((index, item.entry, [(first, last)]))
        place: dict[str, Any] = {
            "v": 1,
            "topic": self._recorded.topic,
            "queue_id": self._recorded.queue_id,
            "handles": [HandleRef(group, text) for group, text in handles],
            "entries": [msgspec.structs.replace(entry, handle=index, offsets=ranges) for index, entry, ranges in parts],
        }
        match items[0].entry:
            case AckEntry():
                return Ack(**place)
            case ChangeEntry():
                return ChangeInvisible(**place)
            case RejectEntry():
                return Reject(**place)

    def _with_handles(self, item: Item) -> list[tuple[int, int, str]]:
        """Return (first, last, handle) of an item: after a change, messages have the new handle."""
        if not self._handles or not item.follows or not isinstance(item.entry, ChangeEntry):
            return [(item.first, item.last, item.handle)]
        found: list[tuple[int, int, str]] = []
        for offset in range(item.first, item.last + 1):
            text = self._handles.get((item.handle, offset), item.handle)
            if found and found[-1][2] == text:
                found[-1] = (found[-1][0], offset, text)
            else:
                found.append((offset, offset, text))
        return found
