"""The context of one operation: its record and its time, the queue it acts on, the lanes it touches, its answer."""

from typing import Final

import msgspec

from broker_state.audit import TEXT_CHARACTERS_MAX, Origin, shortened
from broker_state.kernel.context.audit_trail import AuditTrail
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.facts import Delivery
from broker_state.store.pages import DeliveryPage
from broker_state.store.segment import SEGMENT_SHIFT
from broker_state.store.state_records import ParkedPop
from popstream.wire.answer import Answer, LeasedRange, Run, encode_answer
from popstream.wire.command import OffsetRange, kind_of
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.reason import Reason, code_of

__all__ = ["PAUSE_MS", "TAG_SEARCH_COST_MAX", "WORK_MAX", "OpContext", "refuse_without_queue"]

TAG_SEARCH_COST_MAX = 32_768
"""What one record may spend on the search for tags: 1 for a page of 64 offsets, and 1 for each run of tags in it.

2 million offsets without a tag or 1 million with one tag, about 100 ms. The search goes on in a later record."""

WORK_MAX = 16_384
"""What one record may spend on what lanes have to make up for: each piece of it says what it costs.

About 100 ms. What is left is done by later records, while its lane pauses (`OpContext.pause`)."""

PAUSE_MS: Final = 200
"""Time after which a lane goes on with what was too much for one record, by the queue's clock: others are served
meanwhile."""

_GAP_SEGMENTS_MAX: Final = 128
"""Segments that are looked at between two messages: those of the block in which the holes begin, and of the last."""
_PAGE_RUNS: Final = 16
"""How many runs a page counts as besides its own: to read and write it and its segment of acked offsets."""

_NO_MESSAGES: Final[list[LeasedRange]] = []
_NO_RUNS: Final[list[Run]] = []
_NO_HANDLES: Final[list[str]] = []
_NO_RANGES: Final[list[OffsetRange]] = []
_NO_OFFSETS: Final[dict[str, int]] = {}


class OpContext:
    """The input and the output of deciding one record; functions of the kernel take it as `op`."""

    __slots__ = (
        "_lanes",
        "_pages_met",
        "answer",
        "audit",
        "client_id",
        "command",
        "commit_position_before",
        "decision",
        "grants_left",
        "is_undecided",
        "kind",
        "now_ms",
        "op_id",
        "op_key",
        "queue",
        "record",
        "runs_met",
        "serve_watching",
        "tag_search_left",
        "work_left",
    )

    def __init__(self, record: OpRecord, decision: Decision, queue: QueueState, now_ms: int) -> None:
        command = record.command
        self.record = record
        self.command = command
        self.kind = kind_of(command)
        self.op_id = command.op_id
        self.client_id: str | None = getattr(command, "client_id", None)
        self.decision = decision
        self.now_ms = now_ms
        self.audit = AuditTrail(
            decision,
            partition=record.partition,
            kafka_offset=record.kafka_offset,
            now_ms=now_ms,
            topic=command.topic,
            queue_id=command.queue_id,
            kind=self.kind,
            op_id=self.op_id,
            client_id=self.client_id,
            admin_key=record.admin_key,
        )
        self.is_undecided = False
        """Whether the command could not be decided yet: it is not known when it comes again."""
        self.serve_watching = False
        """Whether the lanes that wait for messages are served although the commit position has not moved."""
        self.tag_search_left = TAG_SEARCH_COST_MAX
        """What the record may still spend on the search for tags."""
        self.work_left = WORK_MAX
        """What the record may still spend on what lanes have to make up for."""
        self.grants_left = WORK_MAX
        """What the messages of the parked pops that the record serves may still cost."""
        self.runs_met = 0
        """Runs of deliveries in the pages in which entries of the record named offsets, and 16 a page; see `meet`."""
        self._pages_met: set[DeliveryPage] = set()
        self.op_key = b""
        """Key of the op_id in the window, once it is known to be one."""
        self.answer: bytes | None = None
        """Answer to the record's own command, once it is known."""
        self._lanes: dict[str, tuple[LaneState, int]] = {}
        self.bind(queue)

    def bind(self, queue: QueueState) -> None:
        """Set the queue that the record acts on."""
        self.queue = queue
        self.commit_position_before = queue.written.floor

    def touch(self, lane: LaneState) -> None:
        """Note that the record changed the lane, or may have made it poppable."""
        group = lane.record.group
        if group not in self._lanes:
            self._lanes[group] = (lane, lane.acked.floor)
            lane.touch()

    def meet(self, page: DeliveryPage) -> None:
        """Count the runs of a page in which the record names offsets; a quarter of them when it comes back to it."""
        count = len(page.runs)
        self.runs_met += count >> 2 if page in self._pages_met else count + _PAGE_RUNS
        self._pages_met.add(page)

    def spend_on_segments(self, lane: LaneState, first: int, end: int) -> int:
        """Return up to where of [first, end) the record may mark the lane's next offsets, and count that as spent.

        All of them where nothing before is left to be acked: then no segment is kept. Otherwise at least to the end of
        the first segment, so that each record does a part.
        """
        if lane.acked.floor == first:
            return end
        segment_no = first >> SEGMENT_SHIFT
        stop = min(end, (segment_no + max(self.work_left, 1)) << SEGMENT_SHIFT)
        self.work_left -= ((stop - 1) >> SEGMENT_SHIFT) - segment_no + 1
        return stop

    def spend_on_gap(self, first: int, end: int) -> None:
        """Count what it takes to look for the end of the holes [first, end): segments, but for blocks that are full."""
        self.work_left -= min(end - first >> SEGMENT_SHIFT, _GAP_SEGMENTS_MAX)

    def pause(self, lane: LaneState) -> None:
        """Let the lane go on later with what was too much for this record; it serves no pop before."""
        lane.pause(self.now_ms + PAUSE_MS)

    def touched(self) -> list[tuple[LaneState, int]]:
        """Return the lanes touched so far with their commit offsets before, in the order of their groups."""
        if len(self._lanes) == 1:
            return list(self._lanes.values())
        return [self._lanes[group] for group in sorted(self._lanes, key=str.encode)]

    def forget(self, lane: LaneState) -> None:
        """Note that the lane is deleted."""
        self._lanes.pop(lane.record.group, None)

    def respond(
        self,
        reason: Reason,
        *,
        applied: bool = False,
        parked: ParkedPop | None = None,
        handle: str | None = None,
        messages: list[LeasedRange] = _NO_MESSAGES,
        pop_time_ms: int | None = None,
        invisible_time_ms: int | None = None,
        revive_queue_id: int | None = None,
        runs: list[Run] = _NO_RUNS,
        handles: list[str] = _NO_HANDLES,
        released: list[OffsetRange] = _NO_RANGES,
        commit_offsets: dict[str, int] = _NO_OFFSETS,
        commit_offset: int | None = None,
        commit_position: int | None = None,
        detail: str | None = None,
    ) -> bytes | None:
        """Answer the record's own command, or a parked pop; what can be answered is described at `Answer`.

        Returns:
            The encoded answer, which is sent if its operation has a `reply_to`. None: that has no op_id, by which its
            sender would know the answer.
        """
        if parked is None:
            kind, op_id, reply_to = self.kind, self.op_id, self.command.reply_to
        else:
            kind, op_id, reply_to = "pop", parked.op_id, parked.reply_to
        if op_id is None:
            return None
        # Each field by its name: to collect them in a dictionary first takes longer than to encode them.
        answer = Answer(
            op_id=op_id[:TEXT_CHARACTERS_MAX],
            type=kind,
            code=code_of(reason),
            reason=reason,
            applied=applied,
            topic=self.command.topic,
            queue_id=self.command.queue_id,
            now_ms=self.now_ms,
            handle=handle,
            messages=messages,
            pop_time_ms=pop_time_ms,
            invisible_time_ms=invisible_time_ms,
            revive_queue_id=revive_queue_id,
            runs=runs,
            handles=handles,
            released=released,
            commit_offsets=commit_offsets,
            commit_offset=commit_offset,
            commit_position=commit_position,
            detail=detail,
        )
        encoded = encode_answer(answer)
        if reply_to is not None:
            self.decision.answers.append((reply_to, encoded))
        if parked is None:
            self.answer = encoded
        return encoded

    def refuse(self, reason: Reason, detail: str | None = None, group: str | None = None) -> None:
        """Refuse the whole command: one row, one answer."""
        origin = Origin(self.kind, shortened(self.op_id), shortened(self.client_id))
        self.audit.operation(reason, group=shortened(group), detail=detail, origin=origin)
        self.respond(reason, detail=detail)

    def dead_letter(
        self,
        lane: LaneState,
        first: int,
        end: int,
        delivery: Delivery,
        *,
        reason: str,
        at_ms: int,
        cause: str | None = None,
    ) -> None:
        """Send the messages in [first, end) to the dead-letter topic; adjacent equal ranges become one record."""
        letter = DeadLetter(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            group=lane.record.group,
            first=first,
            last=end - 1,
            reason=reason,
            attempts=delivery.attempt,
            epoch=delivery.epoch,
            pop_time_ms=delivery.pop_time_ms,
            at_ms=at_ms,
            partition=self.record.partition,
            kafka_offset=self.record.kafka_offset,
            cause=cause,
        )
        letters = self.decision.dead_letters
        if letters and letters[-1].last == first - 1:
            merged = msgspec.structs.replace(letter, first=letters[-1].first)
            if merged == msgspec.structs.replace(letters[-1], last=end - 1):
                letters[-1] = merged
                return
        letters.append(letter)


def refuse_without_queue(
    record: OpRecord, decision: Decision, reason: Reason, detail: str | None = None, group: str | None = None
) -> None:
    """Refuse a record whose queue is not declared, or that nobody may send so: one row, one answer."""
    command = record.command
    audit = AuditTrail(
        decision,
        partition=record.partition,
        kafka_offset=record.kafka_offset,
        now_ms=record.timestamp_ms,
        topic=command.topic[:TEXT_CHARACTERS_MAX],
        queue_id=command.queue_id,
        kind=kind_of(command),
        op_id=shortened(command.op_id),
        client_id=shortened(getattr(command, "client_id", None)),
        admin_key=record.admin_key,
    )
    # The row of a misrouted record says where it was, and must be equal in a replay of records decided long ago.
    audit.operation(reason, group=group, detail=None if record.misrouted else detail)
    if audit.op_id is None or command.reply_to is None:
        return
    answer = Answer(
        op_id=audit.op_id,
        type=audit.kind,
        code=code_of(reason),
        reason=reason,
        applied=False,
        topic=audit.topic,
        queue_id=command.queue_id,
        now_ms=record.timestamp_ms,
        detail=detail,
    )
    decision.answers.append((command.reply_to, encode_answer(answer)))
