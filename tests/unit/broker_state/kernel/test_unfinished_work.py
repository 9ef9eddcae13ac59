"""What is too much for one record is done by later ones: nothing is lost, and the end is as if one had done it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_state.kernel import ack_change_reject
from broker_state.kernel.context import op_context
from broker_state.store.keys import NEVER_MS, queue_prefix
from broker_state.store.pages import PAGE_OFFSETS
from broker_state.store.segment import SEGMENT_BITS
from popstream.lease.entries import REQUEST_MESSAGES_MAX
from popstream.wire.command import (
    Ack,
    AckEntry,
    Declare,
    Dispatch,
    HandleRef,
    Policy,
    Pop,
    ResetOffset,
    ReturnClient,
    Tick,
    WrittenRange,
)
from tests.support.in_process.lane_lab import GROUP, QUEUE, TOPIC, LaneLab

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.wire.answer import Answer
    from popstream.wire.command import Command

PAUSE_MS = 200
STEP = 40
"""What a record may spend here: a few pages or lanes."""

Steps = list[tuple[str, int, int, int]]


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_context, "WORK_MAX", STEP)


def pop(
    group: str = GROUP, count: int = 10, *, order: bool = False, client_id: str | None = None, wait: bool = False
) -> Pop:
    return Pop(
        **QUEUE,
        group=group,
        max_messages=count,
        invisible_time_ms=60_000,
        order=order,
        client_id=client_id,
        poll_time_ms=50_000 if wait else 0,
        op_id=f"{group}-waits" if wait else None,
    )


def answered(lab: LaneLab, command: Command) -> Answer:
    answer = lab.do(command)
    assert answer is not None
    return answer


def ticks(lab: LaneLab, is_done: Callable[[], bool]) -> tuple[int, Steps]:
    """Send ticks, as the job does when a pause is over, until it is done; their number, and the steps of deliveries."""
    steps: Steps = []
    for count in range(1, 2_000):
        lab.do(Tick(**QUEUE), after_ms=PAUSE_MS)
        steps += lab.steps
        if is_done():
            return count, steps
    pytest.fail("it does not end")


def joined(steps: Steps) -> Steps:
    found: Steps = []
    for step, first, last, attempt in steps:
        is_next = found and (found[-1][0], found[-1][2] + 1, found[-1][3]) == (step, first, attempt)
        found.append((step, found.pop()[1] if is_next else first, last, attempt))
    return found


def deadlines(lab: LaneLab) -> int:
    return len(lab.kv.deadlines(queue_prefix(TOPIC, 0), None, NEVER_MS, 1_000))


def paused(lab: LaneLab, group: str = GROUP) -> bool:
    return lab.lane(group).record.paused_until_ms > 0


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("skip", [(0, 29_999), (64, 29_999)], ids=["the start of the log", "a late skip"])
def test_a_lane_accounts_for_what_left_the_log_in_steps(skip: tuple[int, int]) -> None:
    lab = LaneLab(41_000)
    popped = [lab.pop(10_000) for _ in range(4)][-1]
    lab.do(Dispatch(**QUEUE, skip=[skip]))
    assert answered(lab, pop()).reason == "NO_MESSAGE", "no pop is served before all is accounted for"
    first = list(lab.steps)
    assert 0 < len(first) < 300
    assert paused(lab)
    assert lab.ack(popped.handle, (39_000, 39_009)) == [(39_000, 39_009, "OK")], "entries are judged as ever"
    first += [step for step in lab.steps if step[0] != "acked"]
    count, rest = ticks(lab, lambda: not paused(lab))
    assert count > 1
    assert joined(first + rest) == [("expired_from_log", *skip, 1)]
    record = lab.lane().record
    assert record.expired_from_log == skip[1] - skip[0] + 1
    assert record.leased == 40_000 - 10 - record.expired_from_log
    assert answered(lab, pop()).reason == "OK"


@pytest.mark.usefixtures("short_steps")
def test_leases_do_not_expire_before_all_is_accounted_for() -> None:
    lab = LaneLab(20_000)
    lab.pop(10_000, 10_000)
    lab.do(Dispatch(**QUEUE, skip=[(0, 8_999)]))
    lab.do(Tick(**QUEUE), after_ms=10_000)
    steps = list(lab.steps)
    _, rest = ticks(lab, lambda: lab.lane().record.leased == 0 and not paused(lab))
    assert joined(steps + rest) == [("expired_from_log", 0, 8_999, 1), ("expired", 9_000, 9_999, 1)]


@pytest.mark.usefixtures("short_steps")
def test_an_orderly_lane_accounts_for_late_skips_in_steps() -> None:
    lab = LaneLab(200)
    lab.do(pop(count=100, order=True))
    lab.do(Dispatch(**QUEUE, skip=[(at, at) for at in range(1, 100, 2)]))
    steps = list(lab.steps)
    assert paused(lab)
    assert answered(lab, pop(order=True)).reason == "NO_MESSAGE"
    steps += lab.steps
    assert answered(lab, pop("other", order=True)).reason == "OK", "other lanes are served"
    _, rest = ticks(lab, lambda: not paused(lab))
    assert sorted(first for step, first, _, _ in steps + rest if step == "expired_from_log") == list(range(1, 100, 2))
    assert lab.lane().record.leased == 50


@pytest.mark.usefixtures("short_steps")
def test_the_messages_of_a_client_are_released_in_steps() -> None:
    lab = LaneLab(4_000)
    for number in range(60):
        lab.do(pop(count=64, client_id=("gone", "stays")[number % 2]))
    answer = answered(lab, ReturnClient(**QUEUE, group=GROUP, client_id="gone"))
    assert 0 < len(answer.released) < 30
    steps = list(lab.steps)
    lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="gone"))
    steps += lab.steps
    assert answered(lab, pop(client_id="gone")).reason == "NO_MESSAGE"
    steps += lab.steps
    _, rest = ticks(lab, lambda: not paused(lab))
    assert steps + rest == [("released", at * 64, at * 64 + 63, 1) for at in range(0, 60, 2)]
    assert lab.lane().record.leased == 30 * 64
    assert lab.lane().returning == []


@pytest.mark.usefixtures("short_steps")
def test_a_reset_ends_what_a_lane_has_still_to_do() -> None:
    lab = LaneLab(4_000)
    for _ in range(60):
        lab.do(pop(count=64, client_id="gone"))
    lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="gone"))
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=0))
    assert not paused(lab)
    lab.do(pop(count=64, client_id="gone"))
    lab.do(Tick(**QUEUE), after_ms=PAUSE_MS)
    assert lab.lane().record.leased == 64


@pytest.mark.usefixtures("short_steps")
def test_waiting_lanes_are_served_in_steps_and_once_more_when_there_is_more() -> None:
    lab = LaneLab()
    groups = [f"g{number:02}" for number in range(30)]
    for group in groups:
        assert lab.do(pop(group, wait=True)) is None
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 0)]))
    assert 0 < sum(f"{group}-waits" in lab.answers for group in groups) < 10
    count, _ = ticks(lab, lambda: all(f"{group}-waits" in lab.answers for group in groups))
    assert count > 3
    assert all(lab.answers[f"{group}-waits"].reason == "OK" for group in groups)

    for group in groups:
        for name in ("second", "third"):
            lab.do(msgspec.structs.replace(pop(group, 1, wait=True), op_id=f"{group}-{name}"))
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(1, 1)]))
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(2, 2)]))
    ticks(lab, lambda: not lab.lane("g00").queue.record.serving_next)
    for name in ("second", "third"):
        assert {group: str(lab.answers[f"{group}-{name}"].reason) for group in groups} == dict.fromkeys(groups, "OK")
    assert deadlines(lab) == 30, "a page of each lane, and nothing of the queue"


@pytest.mark.usefixtures("short_steps")
def test_long_pops_of_many_lanes_are_served_in_steps() -> None:
    """One ack that names messages of each lane makes all of them poppable."""
    lab = LaneLab(2_000)
    groups = [f"g{number:02}" for number in range(20)]
    for group in groups:
        lab.do(Policy(**QUEUE, group=group, in_flight_max=1_000))
    handles = [HandleRef(group, answered(lab, pop(group, 1_000)).handle or "") for group in groups]
    for group in groups:
        assert lab.do(pop(group, 1_000, wait=True)) is None
    entries = [AckEntry(number, [(0, 999)]) for number in range(len(groups))]
    lab.do(Ack(**QUEUE, handles=handles, entries=entries))
    served = sum(f"{group}-waits" in lab.answers for group in groups)
    assert 0 < served < 10
    count, _ = ticks(lab, lambda: all(f"{group}-waits" in lab.answers for group in groups))
    assert count > 2
    for group in groups:
        answer = lab.answers[f"{group}-waits"]
        assert [(leased.first, leased.last) for leased in answer.messages] == [(1_000, 1_999)]


@pytest.mark.usefixtures("short_steps")
def test_holes_behind_a_message_that_is_not_acked_are_passed_in_steps() -> None:
    lab = LaneLab(1)
    popped = lab.pop(1)
    end = 200 * SEGMENT_BITS
    lab.do(Dispatch(**QUEUE, skip=[(1, end - 1)], ranges=[WrittenRange(end, end)]))
    assert paused(lab)
    _, _ = ticks(lab, lambda: not paused(lab))
    second = lab.pop(1)
    assert [leased.first for leased in second.messages] == [end]
    lab.ack(popped.handle, (0, 0))
    assert lab.commit_offset == end


@pytest.mark.usefixtures("short_steps")
def test_the_lanes_of_a_topic_that_was_deleted_are_closed_in_steps() -> None:
    lab = LaneLab(10)
    groups = [f"g{number:02}" for number in range(20)]
    for group in groups:
        lab.do(pop(group))
        assert lab.do(pop(group, wait=True)) is None
    declare = Declare(**QUEUE, topic_id="another", op_id="declares")
    first = answered(lab, declare)
    assert (str(first.reason), first.applied) == ("TOPIC_NOT_EXIST", False)
    assert answered(lab, pop("g19")).reason == "TOPIC_NOT_EXIST"
    assert answered(lab, Dispatch(**QUEUE, topic_id="another", ranges=[WrittenRange(0, 0)])).reason == "TOPIC_NOT_EXIST"
    ticks(lab, lambda: all(f"{group}-waits" in lab.answers for group in groups))
    assert {str(lab.answers[f"{group}-waits"].reason) for group in groups} == {"TOPIC_NOT_EXIST"}
    again = answered(lab, declare)
    assert (str(again.reason), again.applied) == ("OK", True), "the same op_id is decided when it can be"
    lab.do(Dispatch(**QUEUE, topic_id="another", ranges=[WrittenRange(0, 3)]))
    assert [(leased.first, leased.last) for leased in answered(lab, pop("g19")).messages] == [(0, 3)]


def test_entries_in_pages_with_too_many_deliveries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_change_reject, "_RUNS_MET_MAX", 100)
    monkeypatch.setattr(ack_change_reject, "_RANGES_MAX", 1)
    lab = LaneLab(640)
    handles = [lab.pop(1).handle for _ in range(640)]
    runs = lab.ack(handles[0], (0, 0), (64, 64), (128, 128), (192, 192))
    assert [reason for _, _, reason in runs] == ["OK", "STALE_HANDLE", "STALE_HANDLE", "INVALID_PARAMETER"]


def test_the_largest_request_of_a_client_is_decided_wherever_its_messages_lie() -> None:
    assert REQUEST_MESSAGES_MAX * (PAGE_OFFSETS + op_context._PAGE_RUNS) <= ack_change_reject._RUNS_MET_MAX
