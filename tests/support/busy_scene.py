"""Half an hour of a small shop, decided by the kernel: consumers that are slow, fail and die, and their tables."""

from __future__ import annotations

import heapq
import itertools
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE, TABLES
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Policy,
    Pop,
    Reject,
    RejectEntry,
    WrittenRange,
)
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["BusyScene"]

Queue = dict[str, Any]

FAILURES = ("KeyError: 'price'", "TimeoutError: payments did not answer", "ValueError: <b>no</b> & never")


class BusyScene:
    """The queues of two topics and the consumers of two groups.

    Args:
        minutes: How long it goes.
        seed: Of its chance.
    """

    def __init__(self, minutes: float = 30, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self.history = KernelHistory(messages=1, group="billing")
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._end_s = minutes * 60
        self._units: list[dict[str, Any]] = []
        queues = [("payments", 0), ("payments", 1), ("shipments", 0)]
        for topic, queue_id in queues:
            queue: Queue = {"v": 1, "topic": topic, "queue_id": queue_id}
            self.history.do(1, Declare(**queue, topic_id=f"id-{topic}"))
            for group in ("billing", "search"):
                self.history.do(1, Policy(**queue, group=group, max_attempts=3, back_off_ms=[2_000, 20_000]))
                for number in range(2):
                    self._at(2 + number, self._pop(queue, group, f"{group}-worker-{number + 1}"))
            self._at(1.5, self._write(queue, itertools.count()))
        while self._events:
            at_s, _, event = heapq.heappop(self._events)
            if at_s < self._end_s:
                event(at_s)

    def save(self, root: Path) -> None:
        """Write the tables, with the results of two checks."""
        for name, rows in self.history.tables().items():
            create_table(root, name)
            append_audit_rows(root, name, rows)
        create_table(root, "consume_queue")
        append_rows(root, "consume_queue", pa.Table.from_pylist(self._units, schema=arrow_schema(CONSUME_QUEUE)))
        create_table(root, "quality_results")
        append_rows(
            root, "quality_results", pa.Table.from_pylist(_RESULTS, schema=arrow_schema(TABLES["quality_results"]))
        )

    def _do(self, at_s: float, command: Command) -> None:
        self.history.do(at_s, command)

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _write(self, queue: Queue, offsets: itertools.count[int]) -> Callable[[float], None]:
        def write(now_s: float) -> None:
            is_rush = 0.4 < now_s / self._end_s < 0.55
            count = self._random.randint(1, 8 if is_rush else 4)
            written = [next(offsets) for _ in range(count)]
            self.history.do(now_s, Dispatch(**queue, ranges=[WrittenRange(written[0], written[-1])]))
            place = {"queue_id": queue["queue_id"], "topic_id": f"id-{queue['topic']}"}
            stored_ms = NOON_MS + round(now_s * 1000) - self._random.randint(80, 400)
            self._units += [unit_row(queue["topic"], each, store_time_ms=stored_ms, **place) for each in written]
            self._at(now_s + self._random.expovariate(0.6), write)

        return write

    def _pop(self, queue: Queue, group: str, client: str) -> Callable[[float], None]:
        def pop(now_s: float) -> None:
            fields = {**queue, "group": group, "client_id": client}
            decision = self.history.do(now_s, Pop(**fields, max_messages=8, invisible_time_ms=30_000))
            leased = [row for row in decision.deliveries if row.step == "leased" and row.client_id == client]
            handles = [row.handle_after for row in decision.operations if row.kind == "pop" and row.handle_after]
            at_s = now_s
            if leased and handles:
                offsets = [n for row in leased for n in range(row.first_offset, row.last_offset + 1)]
                ref = [HandleRef(group, handles[-1] or "")]
                if self._random.random() < 0.012:  # the client is killed, and started again later
                    self._at(now_s + 45, pop)
                    return
                for each in offsets:
                    at_s += self._random.lognormvariate(-1.2 if group == "search" else -0.4, 0.7)
                    self._at(at_s, self._settle({**queue, "client_id": client, "handles": ref}, each))
            self._at(at_s + self._random.uniform(0.3, 1.5), pop)

        return pop

    def _settle(self, fields: dict[str, Any], offset: int) -> Callable[[float], None]:
        offsets, luck = [(offset, offset)], self._random.random()
        failure = FAILURES[int(luck * 1_000) % len(FAILURES)]

        def settle(now_s: float) -> None:
            if luck < 0.03:
                entry = ChangeEntry(0, offsets, invisible_time_ms=0, release="back_off", cause=failure)
                self.history.do(now_s, ChangeInvisible(**fields, entries=[entry]))
            elif luck < 0.034:
                self.history.do(now_s, Reject(**fields, entries=[RejectEntry(0, offsets, "no such customer")]))
            elif luck < 0.04:
                self.history.do(
                    now_s, ChangeInvisible(**fields, entries=[ChangeEntry(0, offsets, invisible_time_ms=0)])
                )
            else:
                slow_s = 40 if luck > 0.995 else 0
                ack = Ack(**fields, entries=[AckEntry(0, offsets)])
                self._at(now_s + slow_s, lambda at_s: self._do(at_s, ack))

        return settle


def _result(
    suite: str, expectation: str, *, success: bool = True, observed: str = "[]", rows: int = 0
) -> dict[str, Any]:
    return {
        "suite": suite,
        "expectation": expectation,
        "table": suite,
        "table_version": 1,
        "pinned_versions": "deliveries=1,operations=1",
        "success": success,
        "observed": observed,
        "unexpected_count": rows,
        "run_at": datetime(2026, 11, 21, 12, 30, tzinfo=UTC),
    }


_RESULTS = [
    _result("operations", "expect_applied_operations_to_have_a_reason"),
    _result("operations", "expect_column_values_to_not_be_null"),
    _result("deliveries", "expect_no_two_live_leases"),
    _result("deliveries", "expect_attempts_by_one"),
    _result(
        "commit_positions",
        "expect_conservation",
        success=False,
        observed='[{"topic": "payments", "queue_id": 1, "group": "billing", "missing": 2}]',
        rows=1,
    ),
]
