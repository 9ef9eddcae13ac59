"""What the operator that builds queues sends (queue_processor.py), over a state in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from pipelines.build_units.accepted_ids import DedupRule
from pipelines.cluster.queues import queue_processor
from pipelines.cluster.queues.kept_ids import KeptIds
from pipelines.cluster.queues.queue_log import Began, Scanned, encode_log_record
from pipelines.cluster.queues.queue_processor import QueueProcessor, UnitSettings, signed_at_ms
from popstream.wire.signing import SIGNED_BEFORE_MS_MAX, AdminKey
from tests.support.in_process.memory_maps import MemoryMap
from tests.support.module_time import replace_time

PLANNED_MS = 1_700_000_000_000


class LogRow(NamedTuple):
    log_offset: int
    value: bytes
    planned_ms: int


class Value:
    """In place of a value in Spark's state store."""

    value: bytes | None = None

    def get(self) -> bytes | None:
        return self.value

    def put(self, value: bytes) -> None:
        self.value = value


def processor() -> QueueProcessor:
    settings = UnitSettings("run", "epoch", 4, 4, DedupRule(1000, 10), AdminKey("k1", "a secret of the tests"))
    made = QueueProcessor(settings, "p")
    made._meta, made._units = Value(), MemoryMap()  # type: ignore[assignment]
    return made


def sent(now_ms: int, monkeypatch: pytest.MonkeyPatch, planned_ms: int = PLANNED_MS) -> list[Any]:
    replace_time(monkeypatch, "pipelines.cluster.queues.queue_processor", time=lambda: now_ms / 1000)
    monkeypatch.setattr(queue_processor, "_kept_ids", KeptIds())
    records = [Began("T", "simple", 0), Scanned("T", 0, 60)]
    rows = [LogRow(at, encode_log_record(each), planned_ms) for at, each in enumerate(records, 7)]
    return list(processor().handleInputRows(("orders\0" + "0",), reversed(rows), None))


def test_a_repeated_task_sends_the_same_bytes_by_whatever_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sent(PLANNED_MS + 500, monkeypatch)
    assert first == sent(PLANNED_MS + 9_000, monkeypatch) == sent(PLANNED_MS - 90_000, monkeypatch)
    operations = [msgspec.json.decode(row.value) for row in first if row.topic == "p.ops"]
    assert [each["op_id"] for each in operations] == ["build-epoch-7-0", "build-epoch-8-0"]
    assert all(each["signature"] for each in operations)


def test_a_micro_batch_that_was_planned_before_an_outage_is_signed_anew() -> None:
    late_ms = PLANNED_MS + SIGNED_BEFORE_MS_MAX
    assert signed_at_ms(PLANNED_MS, late_ms) == late_ms
    assert signed_at_ms(PLANNED_MS, PLANNED_MS + 60_000) == PLANNED_MS
