"""A queue to play with: operations in, outcomes out, a clock that moves when told."""

from typing import Any

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import load_queue
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from popstream.wire.answer import Answer
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Pop,
    Reject,
    RejectEntry,
    Tick,
    WrittenRange,
)

__all__ = ["GROUP", "QUEUE", "TOPIC", "LaneLab", "ranges_of"]

TOPIC = "orders"
GROUP = "billing"
QUEUE: dict[str, Any] = {"topic": TOPIC, "queue_id": 0, "v": 1, "reply_to": 0}


class LaneLab:
    """One declared queue with `written` offsets; each operation is a micro-batch of its own."""

    def __init__(self, written: int = 0) -> None:
        self.kv = MemoryKv()
        self.overlay = Overlay(self.kv)
        self.now_ms = 1_000_000
        self.decision = Decision()
        self.answers: dict[str, Answer] = {}
        self.records: list[OpRecord] = []
        self._number = 0
        self.do(Declare(**QUEUE, topic_id="id"))
        if written:
            self.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, written - 1)]))

    def do(self, command: Command, *, after_ms: int = 0, digest: bytes | None = None) -> Answer | None:
        """Decide one operation `after_ms` later; its answer, or None while it waits."""
        self.now_ms += after_ms
        self._number += 1
        if command.op_id is None:
            command = msgspec.structs.replace(command, op_id=f"op-{self._number}")
        self.decision = Decision()
        record = OpRecord(0, self._number, self.now_ms, command, digest or str(self._number).encode())
        self.records.append(record)
        fold(self.overlay, [record], self.decision)
        self.kv.write(self.overlay)
        for _, encoded in self.decision.answers:
            answer = msgspec.json.decode(encoded, type=Answer)
            self.answers[answer.op_id] = answer
        return self.answers.get(command.op_id or "")

    def pop(self, count: int = 1, invisible_ms: int = 10_000, **fields: Any) -> Answer:
        """Pop; fields are those of the command."""
        after_ms = fields.pop("after_ms", 0)
        command = Pop(**{**QUEUE, "group": GROUP, "max_messages": count, "invisible_time_ms": invisible_ms, **fields})
        answer = self.do(command, after_ms=after_ms)
        assert answer is not None or command.poll_time_ms
        return answer  # type: ignore[return-value]

    def ack(self, handle: str | None, *ranges: tuple[int, int], group: str = GROUP) -> list[tuple[int, int, str]]:
        """Ack ranges of one handle; (first, last, reason) of each run."""
        assert handle is not None
        return self._runs(Ack(**QUEUE, handles=[HandleRef(group, handle)], entries=[AckEntry(0, list(ranges))]))

    def reject(self, handle: str | None, *ranges: tuple[int, int]) -> list[tuple[int, int, str]]:
        """Reject ranges of one handle."""
        assert handle is not None
        return self._runs(Reject(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=[RejectEntry(0, list(ranges))]))

    def change(
        self, handle: str | None, invisible_ms: int, *ranges: tuple[int, int], suspend: bool = False
    ) -> list[tuple[int, int, str]]:
        """Change ranges of one handle; the answer is in `last`."""
        assert handle is not None
        entry = ChangeEntry(0, list(ranges), invisible_ms, suspend)
        return self._runs(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=[entry]))

    def tick(self, after_ms: int) -> None:
        """Let time pass."""
        self.do(Tick(**QUEUE), after_ms=after_ms)

    def lane(self, group: str = GROUP) -> LaneState:
        """The lane as it is now."""
        queue = load_queue(self.overlay, TOPIC, 0)
        assert queue is not None
        lane = queue.lane(group)
        assert lane is not None
        return lane

    @property
    def commit_offset(self) -> int:
        """Of the lane of GROUP."""
        return self.lane().acked.floor

    @property
    def steps(self) -> list[tuple[str, int, int, int]]:
        """(step, first, last, attempt) of the deliveries of the last operation."""
        return [(str(row.step), row.first_offset, row.last_offset, row.attempt) for row in self.decision.deliveries]

    def _runs(self, command: Command) -> list[tuple[int, int, str]]:
        answer = self.do(command)
        assert answer is not None
        self.last = answer
        return [(run.first, run.last, str(run.reason)) for run in answer.runs]


def ranges_of(answer: Answer) -> list[tuple[int, int, int]]:
    """(first, last, attempt) of what a pop gave."""
    return [(m.first, m.last, m.attempt) for m in answer.messages]
