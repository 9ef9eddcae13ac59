"""Rows of the audit tables: histories of random worlds that the kernel decided, and small ones by hand."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow, OrderInfoRow, RejectedRow
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import encode_rows
from connectors.delta.tables import AUDIT_TABLES
from popstream.wire.command import Command
from tests.model.generator import PARTITIONS, iterate
from tests.model.reference_model import partition_of, queue_key
from tests.support.delta_files import NO_SPARK, create_table

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NOW_MS", "Rows", "good", "of_worlds", "write"]

NOW_MS = 1_795_262_400_000
"""2026-11-21 12:00 UTC."""

WORLDS = 12
RECORDS_PER_WORLD = 250


class Rows:
    """Rows to write, by table, each with the apply_seq of its micro-batch."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.tables: dict[str, list[tuple[int, Any]]] = {table: [] for table in AUDIT_TABLES}
        self.wrong_date: list[tuple[str, Any]] = []

    def add(self, table: str, *rows: Any, seq: int = 1) -> None:
        self.tables[table] += [(seq, row) for row in rows]

    def replace(self, table: str, index: int, **changed: Any) -> None:
        seq, row = self.tables[table][index]
        self.tables[table][index] = (seq, row._replace(**changed))

    def operation(
        self, record: int, kind: str = "ack", first: int | None = 0, last: int | None = 4, **more: Any
    ) -> OperationRow:
        row = OperationRow(
            self.partition, record, 0, NOW_MS + record, kind, self.topic, 0, "g", f"op-{record}", None, 0, first, last,
            None, None, 0, "OK", True, False, None, None, 1, None,
        )  # fmt: skip
        return row._replace(**more)

    def lease(
        self, record: int, step: str, first: int, last: int, epoch: int = 1, attempt: int = 1, **more: Any
    ) -> DeliveryRow:
        now = NOW_MS + record
        row = DeliveryRow(
            self.partition, record, 0, now, self.topic, 0, "g", step, first, last, epoch, 0, attempt, now,
            NOW_MS + 100_000, "pop", None,
        )  # fmt: skip
        return row._replace(**more)

    def position(self, record: int, before: int, after: int, **more: Any) -> CommitPositionRow:
        row = CommitPositionRow(
            self.partition,
            record,
            0,
            NOW_MS + record,
            self.topic,
            0,
            "g",
            before,
            after,
            0,
            10,
            0,
            5,
            5,
            0,
            0,
            0,
            0,
            0,
            0,
        )
        return row._replace(**more)

    def rejection(self, record: int, **more: Any) -> RejectedRow:
        value = b"no json"
        row = RejectedRow(
            self.partition, record, 0, NOW_MS + record, "NOT_JSON", "no object", len(value),
            hashlib.sha256(value).hexdigest(), value, None, None,
        )  # fmt: skip
        return row._replace(**more)

    def batch(self, record: int, **more: Any) -> OrderInfoRow:
        now = NOW_MS + record
        row = OrderInfoRow(
            self.partition, record, 0, now, self.topic, 0, "g", 2, now, 10_000, None, 5, 9, 5, 0, 5, now + 10_000, 1
        )  # fmt: skip
        return row._replace(**more)

    @property
    def topic(self) -> str:
        return f"topic-{self.partition}"


def good(partition: int) -> Rows:
    """Leased 0..9; 0..4 acked; 5..9 changed, expired, and leased again. A record that could not be read."""
    rows = Rows(partition)
    rows.add(
        "operations",
        rows.operation(1, "pop", 0, 9, entry=None, deadline_after_ms=NOW_MS + 100_000),
        rows.operation(2),
        rows.operation(3, "change_invisible", 5, 9, deadline_after_ms=NOW_MS + 200),
        rows.operation(300, "pop", 5, 9, entry=None, deadline_after_ms=NOW_MS + 100_000),
    )
    rows.add(
        "deliveries",
        rows.lease(1, "leased", 0, 9),
        rows.lease(2, "acked", 0, 4, cause="ack"),
        rows.lease(3, "changed", 5, 9, revision=1, deadline_ms=NOW_MS + 200, cause="change_invisible"),
        rows.lease(300, "expired", 5, 9, revision=1, at_ms=NOW_MS + 200, deadline_ms=NOW_MS + 200, cause="deadline"),
        rows.lease(300, "leased", 5, 9, 2, 2, ordinal=1),
    )
    rows.add("commit_positions", rows.position(2, 0, 5))
    rows.add("rejected", rows.rejection(400))
    rows.add("order_info", rows.batch(300))
    return rows


def of_worlds() -> dict[str, list[tuple[int, Any]]]:
    """Histories that the kernel decided, each in partitions and topics of its own."""
    decode = msgspec.json.Decoder(Command).decode
    tables: dict[str, list[tuple[int, Any]]] = {
        "operations": [],
        "deliveries": [],
        "commit_positions": [],
        "rejected": [],
        "order_info": [],
    }
    for world in range(WORLDS):
        overlay, decision = Overlay(MemoryKv()), Decision()
        for record in iterate(4_000 + world, RECORDS_PER_WORLD):
            command = decode(record.value)
            key = queue_key(command.topic, command.queue_id)
            misrouted = "elsewhere" if record.key != key or record.partition != partition_of(key, PARTITIONS) else ""
            digest = hashlib.blake2b(record.value, digest_size=16).digest()
            op = OpRecord(record.partition, record.kafka_offset, record.timestamp_ms, command, digest, misrouted)
            fold(overlay, [op], decision)
        for table in ("operations", "deliveries", "commit_positions", "order_info"):
            tables[table] += [
                (
                    1,
                    row._replace(
                        partition=1_000 + world * PARTITIONS + row.partition, topic=f"world-{world}-{row.topic}"
                    ),
                )
                for row in getattr(decision, table)
            ]
    return tables


def write(root: Path, epoch: str, tables: dict[str, list[tuple[int, Any]]]) -> None:
    """Write rows as the job does, into tables that are made if they are missing."""
    for table in AUDIT_TABLES:
        if not (root / table).exists():
            create_table(root, table)
    flusher = AuditFlusher(NO_SPARK, root, "jobs", epoch, ops_topic_id="topic-1", durable=False)
    upto = max(seq for rows in tables.values() for seq, _ in rows)
    for table, rows in tables.items():
        flusher.flush(
            table,
            [
                (seq, data)
                for seq in sorted({seq for seq, _ in rows})
                for data in encode_rows(table, [row for each, row in rows if each == seq])
            ],
            upto,
        )
