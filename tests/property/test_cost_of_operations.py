"""What an operation costs, in counts that no busy machine changes: calls, values and bytes stored, bytes sent.

A bound is a tenth above what was counted when it was last changed. A change that exceeds one either costs too much, or
is worth it: then it moves the bound, and says why.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops.entries import entries_of
from popstream.wire.command import encode_command
from tests.benchmarks.measured_operations import declare_queue, single_entry_ops, whole_pop_ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from popstream.wire.command import Command

MESSAGES = 2_000


class Cost(NamedTuple):
    """Of one operation, on average."""

    calls: float
    """Python functions called by the kernel."""
    puts: float
    """Changes of the WriteBatch, but for those of the outbox."""
    stored_bytes: float
    """Keys and values of these."""
    outbox_bytes: float
    """Answers and audit rows, as they are stored until they are delivered."""
    sent_bytes: float
    """The operation itself."""


def cost_of(commands: list[Command]) -> Cost:
    kv = MemoryKv()
    overlay = Overlay(kv)
    fold(overlay, _records(declare_queue("orders", 0, MESSAGES)), Decision())
    kv.write(overlay)
    records, decision = list(_records(commands)), Decision()
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        fold(overlay, records, decision)
    finally:
        sys.setprofile(None)
    assert not [row for row in decision.operations if row.code], "every operation is good"
    changes = list(overlay.changes())
    entries = entries_of(decision, [], 1, results_partitions=1, signer=None)
    totals = (
        calls,
        len(changes),
        sum(len(key) + len(value or b"") for _, key, value in changes),
        sum(len(entry.value) for entry in entries),
        sum(len(encode_command(command)) for command in commands),
    )
    return Cost(*(round(total / len(commands), 2) for total in totals))


def _records(commands: Iterator[Command] | list[Command]) -> Iterator[OpRecord]:
    for number, command in enumerate(commands):
        yield OpRecord(0, number, 1_000_000 + number // 20, command, number.to_bytes(8, "big"))


@pytest.mark.pure
@pytest.mark.parametrize(
    ("commands", "bound"),
    [
        pytest.param(
            list(single_entry_ops("orders", 0, "billing", MESSAGES, reply_to=0)),
            Cost(calls=106, puts=1.2, stored_bytes=380, outbox_bytes=327, sent_bytes=232),
            id="a pop and an ack for each message",
        ),
        pytest.param(
            list(whole_pop_ops("orders", 0, "billing", 2, MESSAGES // 2, entry_offsets=1)),
            Cost(calls=6_290, puts=23.7, stored_bytes=42_600, outbox_bytes=9_010, sent_bytes=19_940),
            id="pops of 1,000 messages, acked one entry each by one operation",
        ),
    ],
)
def test_no_operation_costs_more_than_before(commands: list[Command], bound: Cost) -> None:
    found = cost_of(commands)
    assert all(cost <= most for cost, most in zip(found, bound, strict=True)), f"{found} exceeds {bound}"
