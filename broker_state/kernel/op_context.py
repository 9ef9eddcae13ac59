"""One record being decided: what goes in, and what has come out of it so far."""

import hashlib
from functools import lru_cache
from typing import NamedTuple

import msgspec

from broker_state.audit import CommitPositionRow, DeliveryRow, DeliveryStep, OperationRow, OrderInfoRow
from broker_state.kernel.claim import Told
from broker_state.kernel.queue_state import LaneState, QueueState
from broker_state.store.pages import Delivery
from popstream.wire.answer import Answer, encode_answer
from popstream.wire.command import Command, cause_of
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.handle import Handle, decode_handle, encode_handle
from popstream.wire.notification import Notification
from popstream.wire.reason import Reason, code_of

__all__ = [
    "Decision",
    "OpContext",
    "OpRecord",
    "client_hash",
    "handle_text",
    "read_handle",
    "shortened",
]


_I64_MAX = (1 << 63) - 1
_U32_MAX = (1 << 32) - 1
_new = tuple.__new__  # half the time of a NamedTuple's own constructor, and there are several rows an operation
_TEXT_MAX = 512


class OpRecord(NamedTuple):
    """One readable record of the ops topic.

    `digest` identifies the value's bytes; `misrouted`: the record lies on another partition than its queue's, or its
    key names another queue; `forged`: indexes of handles whose signature is missing or not ours.
    """

    partition: int
    kafka_offset: int
    timestamp_ms: int
    command: Command
    digest: bytes
    misrouted: bool = False
    forged: frozenset[int] = frozenset()


class Decision:
    """Everything that came of the records of a micro-batch, in their order."""

    __slots__ = (
        "answers",
        "commit_positions",
        "dead_letters",
        "deliveries",
        "notifications",
        "operations",
        "order_info",
    )

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.operations: list[OperationRow] = []
        self.deliveries: list[DeliveryRow] = []
        self.commit_positions: list[CommitPositionRow] = []
        self.order_info: list[OrderInfoRow] = []
        self.notifications: list[Notification] = []
        self.dead_letters: list[DeadLetter] = []


class OpContext:
    """One record at its `now`: collects rows and answers, and which lanes it touched."""

    __slots__ = (
        "_deliveries",
        "_lanes",
        "_last_step",
        "_operations",
        "_order_infos",
        "_positions",
        "answer",
        "client_id",
        "command",
        "commit_position_before",
        "decision",
        "kind",
        "now_ms",
        "op_id",
        "queue",
        "record",
        "serve_watching",
    )

    def __init__(self, record: OpRecord, kind: str, decision: Decision, queue: QueueState | None, now_ms: int) -> None:
        command = record.command
        self.record = record
        self.command = command
        self.kind = kind
        self.op_id = command.op_id
        self.client_id: str | None = getattr(command, "client_id", None)
        self.decision = decision
        self.now_ms = now_ms
        self.serve_watching = False
        self.answer: bytes | None = None
        """Answer of the command itself, once it is known."""
        self._operations = self._deliveries = self._positions = self._order_infos = 0
        self._lanes: dict[str, tuple[LaneState, int]] = {}
        self._last_step: tuple[tuple[object, ...], int] | None = None
        if queue is not None:
            self.bind(queue)

    def bind(self, queue: QueueState) -> None:
        """The queue that the record acts on."""
        self.queue = queue
        self.commit_position_before = queue.written.floor

    def touch(self, lane: LaneState) -> None:
        """The record changed the lane, or may have made it poppable."""
        group = lane.record.group
        if group not in self._lanes:
            self._lanes[group] = (lane, lane.acked.floor)
            lane.touch()

    def touched(self) -> list[LaneState]:
        """The lanes touched so far, in the order of their groups."""
        if len(self._lanes) == 1:
            return [lane for lane, _ in self._lanes.values()]
        ordered = sorted(self._lanes, key=str.encode)
        return [self._lanes[group][0] for group in ordered]

    def forget(self, lane: LaneState) -> None:
        """The lane is gone."""
        self._lanes.pop(lane.record.group, None)

    def reply(self, answer: Answer, reply_to: int | None) -> bytes:
        """Encode an answer and, when somebody waits for it, put it out."""
        encoded = encode_answer(answer)
        if reply_to is not None:
            self.decision.answers.append((reply_to, encoded))
        return encoded

    def respond(self, reason: Reason, *, applied: bool = False, **fields: object) -> None:
        """Answer the record's own command; without an op_id nobody could tell what was answered."""
        command = self.command
        if self.op_id is None:
            return
        self.answer = self.reply(
            Answer(
                op_id=self.op_id[:_TEXT_MAX],
                type=self.kind,
                code=code_of(reason),
                reason=reason,
                applied=applied,
                topic=command.topic[:_TEXT_MAX],
                queue_id=command.queue_id,
                now_ms=self.now_ms,
                **fields,  # type: ignore[arg-type]
            ),
            command.reply_to,
        )

    def refuse(self, reason: Reason, detail: str | None = None, group: str | None = None) -> None:
        """The whole command is refused: one row, one answer."""
        origin = (self.kind, shortened(self.op_id), shortened(self.client_id))
        self.row(reason, group=shortened(group), detail=detail, origin=origin)
        self.respond(reason, detail=detail)

    def row(
        self,
        reason: Reason,
        *,
        applied: bool = False,
        group: str | None = None,
        entry: int | None = None,
        first: int | None = None,
        end: int | None = None,
        handle_before: str | None = None,
        handle_after: str | None = None,
        code: int | None = None,
        repeated: bool = False,
        deadline_before_ms: int | None = None,
        deadline_after_ms: int | None = None,
        attempt: int | None = None,
        detail: str | None = None,
        origin: "tuple[str, str | None, str | None] | None" = None,
    ) -> None:
        """A row of `operations`; `origin` is the (kind, op_id, client_id) when it is not the record's own."""
        record = self.record
        kind, op_id, client_id = origin or (self.kind, self.op_id, self.client_id)
        command = self.command
        if first is not None and not (0 <= first <= _I64_MAX and end is not None and 0 < end <= _I64_MAX + 1):
            first = end = None  # the answer has the offsets as they were sent; a column cannot
        self.decision.operations.append(
            _new(
                OperationRow,
                (
                    record.partition,
                    record.kafka_offset,
                    self._operations,
                    self.now_ms,
                    kind,
                    command.topic[:_TEXT_MAX],
                    command.queue_id,
                    group,
                    op_id,
                    client_id,
                    entry,
                    first,
                    None if end is None else end - 1,
                    handle_before,
                    handle_after,
                    code_of(reason) if code is None else code,
                    reason,
                    applied,
                    repeated,
                    deadline_before_ms,
                    deadline_after_ms,
                    attempt,
                    detail,
                ),
            )
        )
        self._operations += 1

    def run_rows(self, group: str, told: list[Told]) -> None:
        """A row of `operations` for each run of the answer; a record may have ten thousand of them."""
        record, command = self.record, self.command
        place = (record.partition, record.kafka_offset)
        operation = (self.now_ms, self.kind, command.topic, command.queue_id, group, self.op_id, self.client_id)
        self.decision.operations += [
            _new(
                OperationRow,
                (
                    *place,
                    ordinal,
                    *operation,
                    claim.index,
                    first,
                    last,
                    claim.text,
                    outcome.handle_after,
                    outcome.code,
                    outcome.reason,
                    outcome.applied,
                    False,
                    outcome.deadline_before_ms,
                    outcome.deadline_after_ms,
                    outcome.attempt,
                    cause_of(claim.entry),
                ),
            )
            for ordinal, (claim, first, last, outcome) in enumerate(told, self._operations)
        ]
        self._operations += len(told)

    def step(
        self,
        lane: LaneState,
        step: DeliveryStep,
        first: int,
        end: int,
        delivery: Delivery,
        *,
        cause: str,
        at_ms: int | None = None,
        client_id: str | None = None,
    ) -> None:
        """A row of `deliveries`; the same step of the neighbouring page lengthens the row before."""
        record = self.record
        deliveries = self.decision.deliveries
        at = self.now_ms if at_ms is None else at_ms
        same = (lane, step, delivery.epoch, delivery.revision, delivery.attempt, at, delivery.deadline_ms, cause)
        if self._last_step == (same, first):
            deliveries[-1] = deliveries[-1]._replace(last_offset=end - 1)
            self._last_step = (same, end)
            return
        self._last_step = (same, end)
        deliveries.append(
            _new(
                DeliveryRow,
                (
                    record.partition,
                    record.kafka_offset,
                    self._deliveries,
                    self.now_ms,
                    self.queue.topic,
                    self.queue.queue_id,
                    lane.record.group,
                    step,
                    first,
                    end - 1,
                    delivery.epoch,
                    delivery.revision,
                    delivery.attempt,
                    at,
                    delivery.deadline_ms or None,
                    cause,
                    client_id,
                ),
            )
        )
        self._deliveries += 1

    def dead_letter(
        self, lane: LaneState, first: int, end: int, delivery: Delivery, *, reason: str, at_ms: int
    ) -> None:
        """Messages for the dead-letter topic."""
        letters = self.decision.dead_letters
        if letters and letters[-1].last == first - 1:
            merged = msgspec.structs.replace(letters[-1], last=end - 1)
            if merged == self._dead_letter(lane, letters[-1].first, end, delivery, reason, at_ms):
                letters[-1] = merged
                return
        letters.append(self._dead_letter(lane, first, end, delivery, reason, at_ms))

    def _dead_letter(
        self, lane: LaneState, first: int, end: int, delivery: Delivery, reason: str, at_ms: int
    ) -> DeadLetter:
        return DeadLetter(
            self.queue.topic,
            self.queue.queue_id,
            lane.record.group,
            first,
            end - 1,
            reason,
            delivery.attempt,
            delivery.epoch,
            delivery.pop_time_ms,
            at_ms,
            self.record.partition,
            self.record.kafka_offset,
        )

    def position_row(self, lane: LaneState | None, before: int, after: int) -> None:
        """A row of `commit_positions`, of a lane or (None) of the queue."""
        record = self.record
        queue = self.queue
        if lane is None:
            group = None
            q = queue.record
            account = (q.min_offset, queue.written.floor, q.holes, 0, 0, 0, 0, 0, 0, 0, 0)
        else:
            r = lane.record
            group = r.group
            account = (
                r.start_offset,
                r.next_offset,
                r.holes,
                r.acked,
                r.leased,
                r.available,
                r.parked,
                r.dead_lettered,
                r.expired_from_log,
                r.passed_over,
                r.skipped_by_reset,
            )
        self.decision.commit_positions.append(
            _new(
                CommitPositionRow,
                (
                    record.partition,
                    record.kafka_offset,
                    self._positions,
                    self.now_ms,
                    queue.topic,
                    queue.queue_id,
                    group,
                    before,
                    after,
                    *account,
                ),
            )
        )
        self._positions += 1

    def _order_info_row(self, lane: LaneState) -> None:
        """A row of `order_info`, when the record changed the lane's batch."""
        info = lane.order_info
        if not info.is_changed:
            return
        info.is_changed = False
        record = self.record
        self.decision.order_info.append(
            OrderInfoRow(
                record.partition,
                record.kafka_offset,
                self._order_infos,
                self.now_ms,
                self.queue.topic,
                self.queue.queue_id,
                lane.record.group,
                info.epoch,
                info.pop_time_ms,
                info.invisible_time_ms,
                info.attempt_id,
                info.first,
                info.end - 1,
                info.member_count,
                info.acked_count,
                lane.acked.floor,
                info.due_ms or None,
                info.least_count,
            )
        )
        self._order_infos += 1

    def close(self) -> None:
        """The record is decided: positions that moved become rows, lanes that became poppable notifications."""
        queue = self.queue
        queue.touch()
        after = queue.written.floor
        if after != self.commit_position_before:
            self.position_row(None, self.commit_position_before, after)
        for lane in self.touched():
            record = lane.record
            before = self._lanes[record.group][1]
            if lane.acked.floor != before:
                self.position_row(lane, before, lane.acked.floor)
            if record.orderly:
                self._order_info_row(lane)
            poppable = lane.is_poppable
            if record.empty and poppable:
                self.decision.notifications.append(Notification(queue.topic, queue.queue_id, record.group, self.now_ms))
            record.empty = not poppable
            watching = record.empty or record.parked > 0
            if watching != record.watching:
                record.watching = watching
                (queue.watching.add if watching else queue.watching.discard)(record.lane_no)


def shortened(text: str | None) -> str | None:
    """What a row keeps of a text that nothing bounds."""
    return text if text is None else text[:_TEXT_MAX]


@lru_cache(maxsize=4096)
def client_hash(client_id: str) -> int:
    """64 bits that stand for a client id in the pages; never 0, which means none."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


read_handle = lru_cache(maxsize=65_536)(decode_handle)
"""`decode_handle`; the acks of one pop bring the same text again and again."""


def handle_text(lane: LaneState, delivery: Delivery, start_offset: int) -> str:
    """The handle of a delivery, as a pop or a change gives it out."""
    queue = lane.queue
    return encode_handle(
        Handle(
            start_offset,
            delivery.pop_time_ms,
            min(delivery.invisible_time_ms, _U32_MAX),  # of an orderly delivery that is changed for ever and ever
            lane.revive_queue_id,
            queue.queue_id,
            delivery.epoch,
            delivery.revision,
            lane.check,
        )
    )
