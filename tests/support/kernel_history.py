"""Histories that the kernel decides, at the times that a test chooses, with their rows of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.explain.message_events import MessageRows, UnitRow
from popstream.exchange.partitioner import ops_key
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
    encode_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NamedTuple

    from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow

__all__ = ["NOON_MS", "KernelHistory"]

NOON_MS = 1_795_262_400_000
"""2026-11-21 12:00 UTC, when each history begins."""


class KernelHistory:
    """The queue `orders/0` with ten messages, and its groups. Times are in seconds after noon.

    Attributes:
        group: The group of what names none.
        overlay: The state, of which nothing is written yet.
        records: The records of the ops topic.
        operations: Rows of the table `operations`.
        deliveries: Rows of the table `deliveries`.
        commit_positions: Rows of the table `commit_positions`.
    """

    def __init__(self, messages: int = 10, group: str = "g") -> None:
        self.group = group
        self.overlay = Overlay(MemoryKv())
        self._number = 0
        self.records: list[KafkaRecord] = []
        self.operations: list[OperationRow] = []
        self.deliveries: list[DeliveryRow] = []
        self.commit_positions: list[CommitPositionRow] = []
        self.do(0, Declare(v=1, topic="orders", queue_id=0, topic_id="t"))
        self.do(0, Dispatch(v=1, topic="orders", queue_id=0, ranges=[WrittenRange(0, messages - 1)]))

    def do(self, at_s: float, command: Command) -> Decision:
        """Decide a command, and keep its rows."""
        self._number += 1
        command = msgspec.structs.replace(command, op_id=command.op_id or f"op-{self._number}")
        decision = Decision()
        now_ms, value = NOON_MS + round(at_s * 1000), encode_command(command)
        record = OpRecord(0, self._number, now_ms, command, self._number.to_bytes(8, "big"))
        key = ops_key(command.topic, command.queue_id)
        self.records.append(KafkaRecord(0, self._number, now_ms, key, value, len(value)))
        fold(self.overlay, [record], decision)
        self.operations += decision.operations
        self.deliveries += decision.deliveries
        self.commit_positions += decision.commit_positions
        return decision

    def pop(
        self, at_s: float, client: str, count: int = 1, invisible_s: float = 30, group: str | None = None, **more: Any
    ) -> str:
        """Pop, and return the handle; empty if there was no message."""
        fields = {**_QUEUE, "group": group or self.group, "client_id": client, "max_messages": count, **more}
        pop = Pop(**fields, invisible_time_ms=round(invisible_s * 1000))
        found = [row.handle_after for row in self.do(at_s, pop).operations if row.kind == "pop"]
        return found[-1] or ""

    def ack(self, at_s: float, client: str, handle: str, offset: int = 0) -> None:
        """Ack one message."""
        entries = [AckEntry(0, [(offset, offset)])]
        self.do(at_s, Ack(**_QUEUE, client_id=client, handles=[HandleRef(self.group, handle)], entries=entries))

    def change(self, at_s: float, client: str, handle: str, invisible_s: float, offset: int = 0, **more: Any) -> None:
        """Change the invisible time of one message; 0 gives it back."""
        entries = [ChangeEntry(0, [(offset, offset)], invisible_time_ms=round(invisible_s * 1000), **more)]
        self.do(
            at_s, ChangeInvisible(**_QUEUE, client_id=client, handles=[HandleRef(self.group, handle)], entries=entries)
        )

    def reject(self, at_s: float, client: str, handle: str, offset: int = 0, cause: str | None = None) -> None:
        """Make one message a dead letter."""
        entries = [RejectEntry(0, [(offset, offset)], cause)]
        self.do(at_s, Reject(**_QUEUE, client_id=client, handles=[HandleRef(self.group, handle)], entries=entries))

    def tick(self, at_s: float) -> None:
        """Let deadlines take effect."""
        self.do(at_s, Tick(v=1, topic="orders", queue_id=0))

    def tables(self) -> dict[str, Sequence[NamedTuple]]:
        """Return all rows by table."""
        return {
            "operations": self.operations,
            "deliveries": self.deliveries,
            "commit_positions": self.commit_positions,
        }

    def rows(self, offset: int = 0, unit: UnitRow | None = None) -> MessageRows:
        """Return what a look-up of a message finds in the tables."""
        return MessageRows(
            topic="orders",
            queue_id=0,
            queue_offset=offset,
            unit=unit,
            operations=[row for row in self.operations if _has(row, offset)],
            deliveries=[row for row in self.deliveries if _has(row, offset)],
            positions=[
                row
                for row in self.commit_positions
                if min(row.from_offset, row.to_offset) <= offset < max(row.from_offset, row.to_offset)
            ],
        )


_QUEUE: dict[str, Any] = {"v": 1, "topic": "orders", "queue_id": 0}


def _has(row: OperationRow | DeliveryRow, offset: int) -> bool:
    return (
        row.first_offset is not None and row.last_offset is not None and row.first_offset <= offset <= row.last_offset
    )
