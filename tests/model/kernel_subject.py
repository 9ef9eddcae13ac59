"""The kernel in the shape in which `tests.model.comparison` asks it: record by record, with its state read back.

State is read from the store under the keys of `broker_state.store.keys`, so what is compared is what was written.
The log is cut into micro-batches of changing length, and now and then all decoded values are dropped. State is
compared at the end of each micro-batch.
"""

import copy
import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import msgspec

from broker_state.kernel import ack_change_reject, dispatch, expiry
from broker_state.kernel.context import op_context
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.order_info import OrderInfo
from broker_state.kernel.fold import fold
from broker_state.kernel.lanes import concurrent_grant
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.keys import LaneTag, QueueTag, lane_prefix, queue_prefix
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.pages import DeliveryPage
from broker_state.store.state_records import LaneRecord, ParkedPop, QueueRecord
from popstream.wire.answer import Answer
from popstream.wire.command import Command
from popstream.wire.dead_letter import DeadLetter
from tests.model.comparison import Decided, Subject
from tests.model.generator import GROUPS, PARTITIONS, POLICY_GROUPS
from tests.model.reference_model import WORK_LIMITS, Record, WorkLimits, partition_of, queue_key

__all__ = ["KernelSubject", "kernel_subject"]

_decode_command = msgspec.json.Decoder(Command).decode
_decode_answer = msgspec.json.Decoder(Answer).decode

_PAGE_SHIFT = 6
_NOT_BY_MESSAGE = ("reset_offset", "declare", "forget_lane")
_STATES = {
    DeliveryState.LEASED: "leased",
    DeliveryState.BACKING_OFF: "backing_off",
    DeliveryState.AVAILABLE: "available",
}


def kernel_subject(seed: int | None = None) -> Callable[[WorkLimits], Subject]:
    """Makes fresh kernels, with limits of what a record may do, that all cut the log in the same way.

    Without a seed it is cut after each record.
    """
    return lambda limits: KernelSubject(seed, limits=limits)


class KernelSubject:
    """One kernel over a store in memory; `groups` are those whose lanes are read back, `decision` the latest one."""

    def __init__(
        self,
        seed: int | None,
        groups: Iterable[str] = (*GROUPS, *POLICY_GROUPS, "nobody"),
        *,
        limits: WorkLimits = WORK_LIMITS,
    ) -> None:
        self.decision = Decision()
        self._limits = limits
        self._groups = groups
        self._kv = MemoryKv()
        self._overlay = Overlay(self._kv)
        self._random = random.Random(seed)
        self._cut = 1.0 if seed is None else self._random.choice([0.02, 0.2, 1])
        self._cold = 1.0 if seed is None else self._random.choice([0.1, 0.5])

    def __deepcopy__(self, memo: dict[int, Any]) -> "KernelSubject":
        assert self._cut == 1, "what is decided is in the store"  # a compiled overlay cannot be copied
        subject = KernelSubject(None, self._groups, limits=self._limits)
        subject.decision = self.decision
        subject._kv = copy.deepcopy(self._kv, memo)
        subject._overlay = Overlay(subject._kv)
        return subject

    def __call__(self, record: Record) -> Decided:
        """Decide one record."""
        command = _decode_command(record.value)
        key = queue_key(command.topic, command.queue_id)
        misrouted = "elsewhere" if record.key != key or record.partition != partition_of(key, PARTITIONS) else ""
        digest = hashlib.blake2b(record.value, digest_size=16).digest()
        decision = self.decision = Decision()
        op = OpRecord(record.partition, record.kafka_offset, record.timestamp_ms, command, digest, misrouted)
        with (
            patch.object(op_context, "TAG_SEARCH_COST_MAX", self._limits.search_cost),
            patch.object(expiry, "DUE_COST_MAX", self._limits.due_cost),
            patch.object(concurrent_grant, "AVAILABLE_PAGES_MAX", self._limits.available_pages),
            patch.object(dispatch, "DISPATCH_COST_MAX", self._limits.dispatch_cost),
            patch.object(dispatch, "DISPATCH_PIECES_MAX", self._limits.dispatch_pieces),
            patch.object(ack_change_reject, "NAMED_OFFSETS_MAX", self._limits.entry_offsets),
        ):
            fold(self._overlay, [op], decision)
        state = None
        if self._random.random() < self._cut:
            self._kv.write(self._overlay)
            state = self._state(command.topic, command.queue_id)
            if self._random.random() < self._cold:
                self._overlay = Overlay(self._kv)
        for row in decision.commit_positions:
            if row.group is not None:
                assert row.next_offset - row.start_offset == row.holes + row.acked + row.leased + row.available, row
        return Decided(
            answers=[_decode_answer(answer) for _, answer in decision.answers],
            dead_letters=[dead for letter in decision.dead_letters for dead in _dead_letters(letter)],
            state=state,
            steps=[
                (row.group, offset, str(row.step), row.epoch, row.revision, row.attempt, row.at_ms, row.client_id)
                for row in decision.deliveries
                if row.cause not in _NOT_BY_MESSAGE and row.step != "expired_from_log"
                for offset in range(row.first_offset, row.last_offset + 1)
            ],
            runs=[
                (row.kind, row.entry, row.first_offset, row.last_offset, row.code, str(row.reason), row.applied)
                for row in decision.operations
                if row.entry is not None and not row.repeated
            ],
        )

    def _state(self, topic: str, queue_id: int) -> dict[str, Any] | None:
        if queue_id < 0:
            return None  # no queue can have this name, nor a key
        prefix = queue_prefix(topic, queue_id)
        overlay = Overlay(self._kv)
        read = overlay.get
        queue = read(prefix + QueueTag.RECORD, QueueRecord.decode)
        if queue is None:
            return None
        lanes = {}
        for group in self._groups:
            lane = read(prefix + QueueTag.LANE + group.encode(), LaneRecord.decode)
            if lane is not None:
                lanes[group] = _lane_state(read, prefix, lane)
                own = lane_prefix(prefix, lane.era_no or lane.lane_no)
                stored = self._kv.get(STATE, own + LaneTag.BATCH)
                lanes[group]["batch"] = _batch(OrderInfo(overlay, own, stored))
        return {
            "now": queue.now_ms,
            "min_offset": queue.min_offset,
            "commit_position": queue.commit_position,
            "lanes": lanes,
        }


def _lane_state(read: Callable[..., Any], queue: bytes, lane: LaneRecord) -> dict[str, Any]:
    prefix = lane_prefix(queue, lane.era_no or lane.lane_no)
    own = lane_prefix(queue, lane.lane_no)
    messages = {}
    for page_no in range(lane.commit_offset >> _PAGE_SHIFT, (lane.next_offset + 63) >> _PAGE_SHIFT):
        page = read(prefix + LaneTag.DELIVERIES + page_no.to_bytes(8, "big"), DeliveryPage.decode)
        for first, end, delivery in page.runs if page is not None else ():
            for offset in range(max(first, lane.commit_offset), min(end, lane.next_offset)):
                messages[offset] = _message(delivery)
    parked = []
    number = lane.parked_first
    while number:
        pop = read(own + LaneTag.PARKED + number.to_bytes(8, "big"), ParkedPop.decode)
        assert pop is not None
        parked.append(pop.op_id)
        number = pop.after
    assert len(parked) == lane.parked
    return {
        "start": lane.start_offset,
        "commit_offset": lane.commit_offset,
        "next_offset": lane.next_offset,
        "epoch": lane.epoch,
        "orderly": lane.orderly,
        "messages": messages,
        "leased": lane.leased,
        "available": lane.available,
        "acked": lane.acked,
        "holes": lane.holes,
        "dead_lettered": lane.dead_lettered,
        "expired_from_log": lane.expired_from_log,
        "passed_over": lane.passed_over,
        "skipped_by_reset": lane.skipped_by_reset,
        "parked": parked,
    }


def _batch(info: OrderInfo) -> dict[str, Any] | None:
    if not info.head.epoch:  # no pop of this lane yet, or a reset since
        return None
    return {
        "epoch": info.head.epoch,
        "pop_time_ms": info.head.pop_time_ms,
        "invisible_time_ms": info.head.invisible_time_ms,
        "attempt_id": info.head.attempt_id,
        "members": {
            offset: (member.acked, info.next_visible_ms(member), member.count, member.suspended)
            for first, end, member in info.runs()
            if member.is_member
            for offset in range(first, end)
        },
    }


def _message(delivery: Delivery) -> tuple[str, int, int, int | None, int]:
    state = _STATES[delivery.state]
    return (state, delivery.epoch, delivery.revision, delivery.deadline_ms or None, delivery.attempt)


def _dead_letters(letter: DeadLetter) -> list[tuple[str, int, str]]:
    return [(letter.group, offset, letter.reason) for offset in range(letter.first, letter.last + 1)]
