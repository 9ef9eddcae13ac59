"""One record reads a bounded number of values, however large the state is (tests/fuzz/record_cost.py searches)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from broker_state.kernel import ack_change_reject, dispatch
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import load_queue
from broker_state.kernel.decide import decide
from broker_state.store.keys import NEVER_MS, queue_prefix
from broker_state.store.overlay import Overlay
from broker_state.store.segment import SEGMENT_BITS
from popstream.wire.answer import Answer
from popstream.wire.command import (
    Ack,
    AckEntry,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Pop,
    ResetOffset,
    Tick,
    WrittenRange,
)
from tests.fuzz.large_states import ALIKE_TAGS, DUE_MS, NOW_MS, QUEUE_ID, SHAPES, TOPIC, LargeState, group_of, handle_of
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab

if TYPE_CHECKING:
    from popstream.wire.command import Command

NAMED: dict[str, Any] = {"topic": TOPIC, "queue_id": QUEUE_ID, "v": 1, "reply_to": 0, "op_id": "op"}


def decided(shape: str, command: Command, *, at_ms: int = NOW_MS) -> tuple[int, Answer]:
    """How many values of a large state a record reads, and its answer."""
    state = LargeState(SHAPES[shape])
    decision = Decision()
    decide(Overlay(state), OpRecord(0, 0, at_ms, command, b"digest"), decision)
    answers = [msgspec.json.decode(encoded, type=Answer) for _, encoded in decision.answers]
    return state.reads, next(answer for answer in answers if answer.op_id == "op")


@pytest.mark.parametrize(
    "command",
    [
        ResetOffset(**NAMED, group=group_of(1), queue_offset=0),
        ForgetLane(**NAMED, group=group_of(1)),
        Declare(**NAMED, topic_id="another"),
    ],
)
def test_a_million_leases_end_without_a_look_at_them(command: Command) -> None:
    reads, answer = decided("a million leases one a page", command)
    assert answer.applied
    assert reads < 50


def test_of_a_million_pages_that_are_due_no_more_are_read_than_are_applied() -> None:
    reads, _ = decided("a million leases one a page", Tick(**NAMED), at_ms=DUE_MS)
    assert reads < 20_000


def test_of_a_thousand_batches_that_are_due_two_are_settled() -> None:
    reads, _ = decided("1,000 orderly batches of 10,000", Tick(**NAMED), at_ms=DUE_MS)
    assert reads < 2_000


_CROWD = "100,000 orderly lanes with a parked pop"


def test_a_skip_reads_the_batches_of_a_bounded_number_of_lanes() -> None:
    reads, answer = decided(_CROWD, Dispatch(**NAMED, skip=[(0, 2)]))
    assert answer.applied
    assert reads < 30 * 10_000 // 64 + 5_000, "the pages of some 26 batches of 10,000, and what is read of 585 lanes"


def test_entries_read_the_batches_of_a_bounded_number_of_lanes() -> None:
    shape = SHAPES[_CROWD]
    lanes = range(1, 101)
    handles = [HandleRef(group_of(number), handle_of(shape, number)) for number in lanes]
    entries = [AckEntry(at, [(0, 0)]) for at in range(len(lanes))]
    reads, answer = decided(_CROWD, Ack(**NAMED, handles=handles, entries=entries))
    assert [str(run.reason) for run in answer.runs] == ["OK"] * 7 + ["INVALID_PARAMETER"] * 93
    assert reads < 10 * 10_000 // 64 + 1_000


@pytest.mark.parametrize(
    "shape", ["100,000 lanes before a billion holes", "100,000 lanes before a billion that left the log"]
)
def test_entries_bring_a_bounded_number_of_lanes_up_to_date(shape: str) -> None:
    of_another_lane = handle_of(SHAPES[shape], 10_001)
    handles = [HandleRef(group_of(lane), of_another_lane) for lane in range(1, 10_001)]
    command = Ack(**NAMED, handles=handles, entries=[AckEntry(index, [(5, 5)]) for index in range(10_000)])
    overlay = Overlay(LargeState(SHAPES[shape]))
    decide(overlay, OpRecord(0, 0, NOW_MS, command, b"digest"), Decision())

    def where(number: int) -> tuple[int, bool]:
        queue = load_queue(overlay, TOPIC, QUEUE_ID)
        lane = queue.lane(group_of(number)) if queue is not None else None
        assert lane is not None
        return lane.record.next_offset, lane.record.paused_until_ms > 0

    end, is_paused = where(1)
    assert (end > 900_000_000, is_paused) == (True, False)
    end, is_paused = where(10_000)
    assert (end <= 2 * SEGMENT_BITS, is_paused) == (True, True), "it goes on in a later record"
    up_to_date = [number for number in range(1, 10_001) if where(number)[0] > 900_000_000]
    assert 64 < len(up_to_date) < 1_000


@pytest.mark.parametrize(
    ("shape", "segments_max"),
    [
        ("an orderly lane of a billion with a tagged page in each segment", 256),
        ("a billion with a tagged page in each segment", 8_192),
        ("a billion with a tagged page in 64 segments", 16_384),
    ],
)
def test_a_search_jumps_over_a_bounded_number_of_segments_with_holes(shape: str, segments_max: int) -> None:
    state = LargeState(SHAPES[shape])
    overlay = Overlay(state)
    pop = Pop(
        **NAMED,
        group=group_of(1),
        max_messages=10,
        invisible_time_ms=1_000,
        order=SHAPES[shape].orderly,
        tags=[ALIKE_TAGS[0]],
    )
    decide(overlay, OpRecord(0, 0, NOW_MS, pop, b"digest"), Decision())
    queue = load_queue(overlay, TOPIC, QUEUE_ID)
    lane = None if queue is None else queue.lane(group_of(1))
    assert lane is not None
    assert 16 < lane.acked.floor // SEGMENT_BITS <= segments_max
    assert lane.record.paused_until_ms > 0


def test_what_a_batch_costs_does_not_depend_on_what_is_in_memory() -> None:
    lab = LaneLab(200)
    lab.pop(150, order=True)
    info = lab.lane().order_info
    assert info.latest_visible_ms() > lab.now_ms, "its pages have been looked at"
    lab.overlay = Overlay(lab.kv)
    assert info.page_count == lab.lane().order_info.page_count == 3


def test_a_pop_takes_what_is_far_apart_from_a_bounded_number_of_pages() -> None:
    pop = Pop(**NAMED, group=group_of(1), max_messages=10_000, invisible_time_ms=1_000)
    reads, answer = decided("a million messages available one a page", pop)
    assert len(answer.messages) == 2_048
    assert reads < 2_200


def test_a_pop_for_tags_passes_a_part_of_a_backlog_over_while_a_message_before_it_is_leased() -> None:
    pop = Pop(**NAMED, group=group_of(1), max_messages=1, invisible_time_ms=1_000, tags=[9])
    reads, answer = decided("one lease before a billion fresh", pop)
    assert answer.reason == "NO_MESSAGE"
    assert reads < 17_000


@pytest.mark.parametrize("tags", [None, [9]])
@pytest.mark.parametrize("order", [False, True], ids=["concurrent", "orderly"])
def test_a_pop_looks_for_a_bounded_number_of_messages_between_holes(tags: list[int] | None, *, order: bool) -> None:
    shape = f"{'an orderly lane before ' if order else ''}a billion holes but one in 64 segments"
    pop = Pop(**NAMED, group=group_of(1), max_messages=10_000, invisible_time_ms=1_000, tags=tags, order=order)
    reads, answer = decided(shape, pop)
    assert [leased.first for leased in answer.messages][:2] == ([] if tags else [0, 64 * SEGMENT_BITS])
    assert len(answer.messages) < 300
    assert reads < 35_000


@pytest.mark.parametrize("how", ["skip", "tags"])
def test_a_dispatch_over_offsets_that_are_known_in_part_goes_on_when_it_is_sent_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_PIECES_MAX", 10)
    lab = LaneLab()
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(at, at) for at in range(2, 60, 2)]))
    span = (
        Dispatch(**QUEUE, skip=[(1, 59)]) if how == "skip" else Dispatch(**QUEUE, ranges=[WrittenRange(1, 59, tag=5)])
    )
    reasons: list[str] = []
    while not reasons or reasons[-1] != "OK":
        answer = lab.do(span)
        assert answer is not None
        (run,) = answer.runs
        assert run.applied
        reasons.append(str(run.reason))
    assert reasons == ["AHEAD_OF_WINDOW", "AHEAD_OF_WINDOW", "OK"]
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 0)]))
    queue = load_queue(lab.overlay, TOPIC, 0)
    assert queue is not None
    assert (queue.written.floor, queue.record.holes) == (60, 59 if how == "skip" else 0)


def test_a_skip_that_moves_the_min_offset_moves_it_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_PIECES_MAX", 10)
    lab = LaneLab()
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(at, at) for at in range(1, 60, 2)]))
    for min_offset in (20, 40, 60):
        lab.do(Dispatch(**QUEUE, skip=[(0, 59)]))
        queue = load_queue(lab.overlay, TOPIC, 0)
        assert queue is not None
        assert queue.record.min_offset == min_offset


def test_a_lane_without_deliveries_looks_at_no_late_skip() -> None:
    pop = Pop(**NAMED, group=group_of(1), max_messages=1, invisible_time_ms=1_000)
    reads, _ = decided("a million late skips of a fresh lane", pop)
    assert reads < 50


def test_an_op_id_is_used_again_before_a_million_older_ones_are_deleted() -> None:
    reads, answer = decided("a million old op_ids", Tick(**{**NAMED, "op_id": "op"}))
    assert answer.reason == "OK"
    state = LargeState(SHAPES["a million old op_ids"])
    decide(Overlay(state), OpRecord(0, 0, NOW_MS, Tick(**{**NAMED, "op_id": "old-999999"}), b"digest"), Decision())
    assert state.reads < reads + 5_000


def test_an_entry_may_name_everything_and_is_refused_beyond_what_one_record_may_name() -> None:
    entry = AckEntry(0, [(0, 9), (0, 2**63 - 1), (10, 19)])
    command = Ack(**NAMED, handles=[HandleRef(group_of(1), handle_of(SHAPES["a billion fresh"], 1))], entries=[entry])
    reads, answer = decided("a billion fresh", command)
    assert [str(run.reason) for run in answer.runs] == ["OUTSIDE_POP", "INVALID_PARAMETER", "INVALID_PARAMETER"]
    assert reads < 50


def test_ranges_that_make_too_many_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_change_reject, "_ROWS_MAX", 18)
    monkeypatch.setattr(ack_change_reject, "_CLAIMED_OFFSETS_MAX", 8)
    lab = LaneLab(100)
    popped = lab.pop(100)
    for offset in range(0, 100, 2):
        lab.ack(popped.handle, (offset, offset))
    runs = lab.ack(popped.handle, (0, 3), (4, 59), (60, 61))
    assert runs[:4] == [(0, 0, "ALREADY_ACKED"), (1, 1, "OK"), (2, 2, "ALREADY_ACKED"), (3, 3, "OK")]
    assert runs[-2:] == [(20, 59, "INVALID_PARAMETER"), (60, 61, "INVALID_PARAMETER")]
    assert [reason for first, _, reason in runs[4:-2] if first % 2] == ["OK"] * 8
    assert lab.ack(popped.handle, (20, 21)) == [(20, 20, "ALREADY_ACKED"), (21, 21, "OK")]


def test_a_dispatch_writes_as_many_pages_of_tags_as_a_record_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_COST_MAX", 320)
    ranges = [WrittenRange(at * 10_000, at * 10_000 + 9_999, tag=5) for at in range(4)]
    lab = LaneLab()
    answer = lab.do(Dispatch(**QUEUE, ranges=ranges))
    assert answer is not None
    assert [str(run.reason) for run in answer.runs] == ["OK", "OK", "AHEAD_OF_WINDOW", "AHEAD_OF_WINDOW"]
    again = lab.do(Dispatch(**QUEUE, ranges=ranges[2:]))
    assert again is not None
    assert [str(run.reason) for run in again.runs] == ["OK", "OK"]


def test_a_dispatch_skips_as_much_as_a_record_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "DISPATCH_COST_MAX", 13)
    far = [(at * SEGMENT_BITS, at * SEGMENT_BITS) for at in range(1, 7)]
    near = [(at, at) for at in range(1, 25, 2)]
    behind = [(1, SEGMENT_BITS), *((SEGMENT_BITS + at, SEGMENT_BITS + at) for at in range(2, 20, 2))]
    for skip, count in ((far, 3), (near, 10), (behind, 7)):
        lab = LaneLab()
        answer = lab.do(Dispatch(**QUEUE, skip=skip))
        assert answer is not None
        assert [str(run.reason) for run in answer.runs] == ["OK"] * count + ["AHEAD_OF_WINDOW"] * (len(skip) - count)


def test_messages_far_from_each_other_count_as_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_change_reject, "_RUNS_MET_MAX", 3 * (1 + 16))
    monkeypatch.setattr(ack_change_reject, "_RANGES_MAX", 1)
    lab = LaneLab(640)
    popped = lab.pop(640)
    reasons = [reason for _, _, reason in lab.ack(popped.handle, *[(at, at) for at in range(0, 640, 128)])]
    assert reasons == ["OK"] * 4 + ["INVALID_PARAMETER"], "one is claimed when the third page is met"


def test_deadlines_of_a_lane_that_was_reset_leave_the_index_when_they_are_due() -> None:
    lab = LaneLab(640)
    lab.pop(640, 10_000)
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=0))
    lab.pop(64, 20_000)
    assert len(lab.kv.deadlines(queue_prefix(TOPIC, 0), None, NEVER_MS, 100)) == 11
    lab.tick(10_000)
    assert lab.steps == []
    assert len(lab.kv.deadlines(queue_prefix(TOPIC, 0), None, NEVER_MS, 100)) == 1
    lab.tick(10_000)
    assert lab.steps == [("expired", 0, 63, 1)]
