"""Claim: segments say of every message what was observed of it, and a history takes memory by its operations alone.

Method: random observations of a lane, against a list for each message; a history of a million messages.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from popstream.history.check import check_history
from popstream.history.lane import LaneHistory
from popstream.history.recorder import HistoryEvent, Invoke, Ok
from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.command import Ack, AckEntry, ChangeEntry, ChangeInvisible, Command, HandleRef, Pop
from popstream.wire.handle import Handle, encode_handle, lane_check
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, GROUP = "orders", "billing"
START_MS = 1_700_000_000_000


def handle_of(epoch: int) -> str:
    return encode_handle(Handle(0, START_MS, 60_000, 0, 0, epoch, 0, lane_check(TOPIC, 0, GROUP)))


def pop_of(epoch: int, first: int, last: int) -> tuple[Pop, Answer]:
    op_id, count = f"pop {epoch}", last - first + 1
    command = Pop(v=1, topic=TOPIC, queue_id=0, op_id=op_id, group=GROUP, max_messages=count, invisible_time_ms=60_000)
    messages = [LeasedRange(first, last, 1)]
    return command, answer_to(command, START_MS + epoch, handle=handle_of(epoch), messages=messages)


def ack_of(epoch: int, number: int, first: int, last: int) -> tuple[Ack, Answer]:
    handles = [HandleRef(GROUP, handle_of(epoch))]
    entries = [AckEntry(0, [(first, last)])]
    command = Ack(v=1, topic=TOPIC, queue_id=0, op_id=f"ack {epoch}.{number}", handles=handles, entries=entries)
    run = Run(entry=0, first=first, last=last, code=0, reason=Reason.OK, applied=True)
    now_ms = START_MS + 1_000_000 + epoch
    return command, answer_to(command, now_ms, runs=[run], commit_offsets={GROUP: last + 1})


def answer_to(command: Command, now_ms: int, **fields: object) -> Answer:
    return Answer(
        op_id=command.op_id or "",
        type="",
        code=0,
        reason=Reason.OK,
        applied=True,
        topic=TOPIC,
        queue_id=0,
        now_ms=now_ms,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_has_the_observations_of_each_of_its_messages(seed: int) -> None:
    chance = random.Random(seed)
    lane = LaneHistory(TOPIC, 0, GROUP)
    deliveries: list[list[str]] = [[] for _ in range(60)]
    finishes: list[list[str]] = [[] for _ in range(60)]
    may_be_changed: list[set[int]] = [set() for _ in range(60)]
    bounds: set[int] = set()
    for epoch in range(1, 8):
        first = chance.randrange(40)
        last = first + chance.randrange(15)
        lane.add_pop(*pop_of(epoch, first, last))
        for queue_offset in range(first, last + 1):
            deliveries[queue_offset].append(f"pop {epoch}")
    lane.end_pops()
    for number in range(12):
        epoch, first = chance.randrange(1, 8), chance.randrange(45)
        last = first + chance.randrange(15)
        if chance.random() < 0.7:
            command, answer = ack_of(epoch, number, first, last)
            lane.add_run(command, answer.runs[0], answer)
            lane.add_commit(answer, last + 1)
            bounds.add(last + 1)
            for queue_offset in range(first, last + 1):
                finishes[queue_offset].append(answer.op_id)
        else:
            entries = [ChangeEntry(0, [(first, last)], 5_000)]
            handles = [HandleRef(GROUP, handle_of(epoch))]
            lane.add_unanswered_entries(ChangeInvisible(v=1, topic=TOPIC, queue_id=0, handles=handles, entries=entries))
            for queue_offset in range(first, last + 1):
                may_be_changed[queue_offset].add(epoch)
    seen: list[int] = []
    for segment in lane.segments():
        assert not bounds & set(range(segment.first + 1, segment.last + 1))
        for queue_offset in range(segment.first, segment.last + 1):
            seen.append(queue_offset)
            assert [pop.op_id for pop in segment.deliveries] == deliveries[queue_offset]
            assert [outcome.op_id for outcome in segment.finishes] == finishes[queue_offset]
            assert segment.may_be_changed == may_be_changed[queue_offset]
    assert seen == [queue_offset for queue_offset, pops in enumerate(deliveries) if pops]
    assert seen == [at for first, last in lane.delivered() for at in range(first, last + 1)]


def large_history(pop_count: int, messages: int) -> Iterator[HistoryEvent]:
    """Pops of as many messages, each acked by two operations."""
    for epoch in range(pop_count):
        first, middle, last = epoch * messages, epoch * messages + messages // 2, (epoch + 1) * messages - 1
        pairs = [pop_of(epoch, first, last), ack_of(epoch, 1, first, middle), ack_of(epoch, 2, middle + 1, last)]
        for command, answer in pairs:
            fields = {"client_id": "c", "op_id": answer.op_id, "at_ns": 0, "monotonic_ns": 0}
            yield Invoke(call=answer.op_id, command=command, **fields)  # type: ignore[arg-type]
            yield Ok(call=answer.op_id, answer=answer, **fields)  # type: ignore[arg-type]


def test_a_million_messages_take_the_memory_of_their_operations() -> None:
    check_history(large_history(2, 2))
    tracemalloc.start()
    try:
        report = check_history(large_history(100, 10_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.violations == []
    assert (report.delivery_count, report.operation_count) == (1_000_000, 300)
    assert peak_bytes < 300 * 4_000
