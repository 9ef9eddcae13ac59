"""`dispatch`: ranges that are refused, repeated, early or late (docs/semantics.md)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker_state.kernel.context.queue_state import load_queue
from broker_state.store.overlay import STATE, Overlay
from pipelines.decide_ops.entries import entries_of
from popstream.wire.answer import Answer
from popstream.wire.command import Declare, Dispatch, Policy, WrittenRange
from popstream.wire.limits import OFFSET_MAX, RANGE_OFFSETS_MAX
from tests.support.in_process.lane_lab import QUEUE, TOPIC, LaneLab, ranges_of

WINDOW = 1_000_000
OTHER_QUEUE: dict[str, Any] = {**QUEUE, "queue_id": 1}


def dispatch(lab: LaneLab, *ranges: tuple[int, ...], skip: list[tuple[int, int]] | None = None) -> Answer:
    """Return the answer, after a check that the rows of the operation can be stored."""
    answer = lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(*written) for written in ranges], skip=skip or []))
    assert answer is not None
    assert entries_of(lab.decision, [], 1, results_partitions=1, signer=None)
    return answer


def reasons(answer: Answer) -> list[tuple[str, bool]]:
    return [(str(run.reason), run.applied) for run in answer.runs]


def position(lab: LaneLab) -> int:
    queue = load_queue(lab.overlay, TOPIC, 0)
    assert queue is not None
    return queue.written.floor


def segments(lab: LaneLab) -> dict[bytes, bytes]:
    """Return the stored segments of written offsets and holes."""
    queue = load_queue(lab.overlay, TOPIC, 0)
    assert queue is not None
    kinds = tuple(queue.prefix + kind for kind in (b"W", b"H"))
    return {key: value for key, value in lab.kv.families[STATE].items() if key.startswith(kinds)}


def starting_at(min_offset: int) -> LaneLab:
    """Declare a queue whose log starts at an offset."""
    lab = LaneLab()
    lab.do(Declare(**QUEUE, topic_id="another", min_offset=min_offset))
    return lab


def with_window(lab: LaneLab, window: int = WINDOW) -> LaneLab:
    lab.do(Policy(**QUEUE, window_max=window))
    return lab


# The example of RIP-52


@pytest.mark.parametrize("first", [0, 1, 4_094, 4_095, 1 << 40])
def test_m1_m2_m5_is_m2_and_then_m3_m4_is_m5(first: int) -> None:
    lab = starting_at(first)
    m1, m2, m3, m4, m5 = ((first + at, first + at) for at in range(5))
    assert [dispatch(lab, message).commit_position for message in (m1, m2, m5)] == [first + 1, first + 2, first + 2]
    assert ranges_of(lab.pop(10)) == [(first, first + 1, 1)], "no pop sees beyond the commit position"
    lab.overlay = Overlay(lab.kv)  # as after a kill
    assert position(lab) == first + 2
    assert dispatch(lab, m3, m4).commit_position == first + 5
    assert ranges_of(lab.pop(10)) == [(first + 2, first + 4, 1)]
    assert segments(lab) == {}


# Out of range


BAD_RANGES = {
    "negative": (-1, 3),
    "all negative": (-(2**63), -1),
    "backwards": (5, 4),
    "too long by one": (0, RANGE_OFFSETS_MAX),
    "as long as can be": (0, OFFSET_MAX),
    "to 2^63": (0, 2**63),
    "over 2^63": (OFFSET_MAX, 2**63),
    "at 2^63": (2**63, 2**63),
    "at 2^64": (2**64, 2**64),
}


@pytest.mark.parametrize("written", BAD_RANGES.values(), ids=BAD_RANGES.keys())
def test_a_range_out_of_range_is_refused_alone(written: tuple[int, int]) -> None:
    lab = LaneLab()
    answer = dispatch(lab, written, (0, 0), skip=[written, (2, 2)])
    refused, done = ("INVALID_PARAMETER", False), ("OK", True)
    assert reasons(answer) == [refused, done, refused, done]
    assert (answer.code, answer.reason, answer.applied) == (29, "INVALID_PARAMETER", True)
    assert [(run.first, run.last) for run in answer.runs] == [written, (0, 0), written, (2, 2)], "as they were sent"
    assert position(lab) == 1
    assert dispatch(lab, (1, 1)).commit_position == 3


@pytest.mark.parametrize("unit", [(-1, 1), (2**64, 1), (0, 0), (0, -1), (0, 2**31)])
def test_a_tag_or_count_out_of_range_is_refused(unit: tuple[int, int]) -> None:
    lab = LaneLab()
    answer = dispatch(lab, (0, 9, *unit), (0, 3, 2**64 - 1, 2**31 - 1))
    assert reasons(answer) == [("INVALID_PARAMETER", False), ("OK", True)]
    assert position(lab) == 4


def test_the_longest_range_is_taken() -> None:
    lab = LaneLab()
    assert reasons(dispatch(lab, (0, RANGE_OFFSETS_MAX - 1))) == [("OK", True)]
    assert position(lab) == RANGE_OFFSETS_MAX


@pytest.mark.parametrize("count", [0, 10_001])
def test_too_few_or_too_many_ranges_are_refused_as_a_whole(count: int) -> None:
    lab = LaneLab()
    answer = dispatch(lab, *((at, at) for at in range(count // 2)), skip=[(at, at) for at in range(count - count // 2)])
    assert (answer.reason, answer.applied, answer.runs) == ("INVALID_PARAMETER", False, [])
    assert answer.detail == "number of ranges takes 1..10000"
    assert position(lab) == 0


def test_ten_thousand_ranges_backwards_are_taken() -> None:
    lab = LaneLab()
    answer = dispatch(lab, *((at, at) for at in range(9_999, -1, -1)))
    assert {run.applied for run in answer.runs} == {True}
    assert answer.commit_position == 10_000
    assert segments(lab) == {}


# Of no queue


def test_a_dispatch_to_an_undeclared_queue_leaves_nothing() -> None:
    lab = LaneLab()
    before = dict(lab.kv.families[STATE])
    answer = lab.do(Dispatch(**OTHER_QUEUE, ranges=[WrittenRange(0, 9)]))
    assert answer is not None
    assert (answer.reason, answer.applied, answer.commit_position) == ("TOPIC_NOT_EXIST", False, None)
    assert lab.kv.families[STATE] == before
    lab.do(Declare(**OTHER_QUEUE, topic_id="id"))
    again = lab.do(Dispatch(**OTHER_QUEUE, ranges=[WrittenRange(0, 9)]))
    assert again is not None
    assert (again.applied, again.commit_position) == (True, 10), "declared, it is taken when sent again"


@pytest.mark.parametrize("queue", [{"queue_id": -1}, {"queue_id": 2**31}, {"topic": ""}, {"topic": "x" * 250}])
def test_a_dispatch_to_what_can_be_no_queue_is_refused(queue: dict[str, Any]) -> None:
    lab = LaneLab()
    before = dict(lab.kv.families[STATE])
    answer = lab.do(Dispatch(**{**QUEUE, **queue}, ranges=[WrittenRange(0, 9)]))
    assert answer is not None
    assert (answer.reason, answer.applied) == ("TOPIC_NOT_EXIST", False)
    assert lab.kv.families[STATE] == before


# Below the log's start


@pytest.mark.parametrize("written", [(0, 0), (99, 99), (0, 99), (99, 100), (50, 150)])
def test_below_the_start_of_the_log_nothing_is_written(written: tuple[int, int]) -> None:
    lab = starting_at(100)
    assert reasons(dispatch(lab, written)) == [("BELOW_MIN", False)]
    assert position(lab) == 100
    assert dispatch(lab, (100, 100)).commit_position == 101


def test_the_start_moves_with_retention_and_what_lay_below_is_refused_from_then_on() -> None:
    lab = LaneLab(written=10)
    assert dispatch(lab, skip=[(0, 4)]).applied
    assert reasons(dispatch(lab, (4, 4), (4, 12), (5, 12))) == [
        ("BELOW_MIN", False),
        ("BELOW_MIN", False),
        ("OK", True),
    ]
    assert position(lab) == 13


def test_a_skip_below_the_start_is_known_already() -> None:
    lab = starting_at(100)
    answer = dispatch(lab, skip=[(0, 99), (98, 99)])
    assert reasons(answer) == [("OK", False), ("OK", False)]
    assert (answer.reason, answer.applied, answer.commit_position) == ("OK", False, 100)


# Beyond the window


def test_the_window_begins_at_the_first_hole_and_not_at_what_is_written_beyond() -> None:
    lab = with_window(starting_at(1_000))
    last = 1_000 + WINDOW - 1
    assert reasons(dispatch(lab, (last, last), (last + 1, last + 1))) == [("OK", True), ("AHEAD_OF_WINDOW", False)]
    assert reasons(dispatch(lab, (last - 5, last + 1), skip=[(last + 1, last + 1)])) == [
        ("AHEAD_OF_WINDOW", False),
        ("AHEAD_OF_WINDOW", False),
    ]
    answer = dispatch(lab, (1_000, 1_000), (last + 1, last + 1))
    assert reasons(answer) == [("OK", True), ("OK", True)], "the range before made room in the same record"
    assert answer.commit_position == 1_001


def test_what_was_refused_for_the_window_is_taken_when_sent_again_and_nothing_is_lost() -> None:
    lab = with_window(LaneLab())
    chance = random.Random(5)
    size = 50_000
    waiting = [(first, first + size - 1) for first in range(0, 3_000_000, size)]
    chance.shuffle(waiting)
    refused = 0
    while waiting:
        written = waiting.pop()
        before = position(lab)
        answer = dispatch(lab, written)
        if answer.reason == "AHEAD_OF_WINDOW":
            assert answer.code == 2
            assert position(lab) == before
            assert written[1] >= before + WINDOW
            waiting.insert(0, written)
            refused += 1
        else:
            assert reasons(answer) == [("OK", True)]
    assert refused > 10
    assert position(lab) == 3_000_000
    assert segments(lab) == {}


def test_a_builder_at_the_first_hole_is_never_refused() -> None:
    lab = with_window(LaneLab())
    dispatch(lab, (WINDOW - 1, WINDOW - 1))
    assert reasons(dispatch(lab, (0, RANGE_OFFSETS_MAX - 1))) == [("OK", True)], "a range fits the narrowest window"
    assert position(lab) == WINDOW


def test_a_narrower_window_refuses_what_is_new_and_keeps_what_was_taken() -> None:
    lab = with_window(LaneLab(), 3 * WINDOW)
    dispatch(lab, (2 * WINDOW, 2 * WINDOW))
    with_window(lab)
    assert reasons(dispatch(lab, (2 * WINDOW + 1, 2 * WINDOW + 1))) == [("AHEAD_OF_WINDOW", False)]
    dispatch(lab, (0, WINDOW - 1), (WINDOW, 2 * WINDOW - 1))
    assert position(lab) == 2 * WINDOW + 1


# Again, and in any order


def test_a_number_counts_once_however_often_it_comes() -> None:
    lab = LaneLab()
    answer = dispatch(lab, (0, 3), (2, 5), (0, 5), (7, 7), (7, 7))
    assert reasons(answer) == [("OK", True), ("OK", True), ("OK", False), ("OK", True), ("OK", False)]
    again = dispatch(lab, (0, 3), (7, 7))
    assert (again.reason, again.applied, again.commit_position) == ("OK", False, 6)
    assert dispatch(lab, (6, 6)).commit_position == 8
    assert ranges_of(lab.pop(100)) == [(0, 7, 1)]


def test_what_is_known_of_a_unit_stays_as_it_was_told_first() -> None:
    lab = LaneLab()
    dispatch(lab, (0, 3, 7), (4, 7, 9))
    dispatch(lab, (0, 9, 9), (0, 7))
    assert ranges_of(lab.pop(100, tags=[7], group="sevens")) == [(0, 3, 1)]
    assert ranges_of(lab.pop(100, tags=[9], group="nines")) == [(4, 9, 1)]


def test_a_hole_is_not_written_later_and_a_written_offset_can_become_a_hole() -> None:
    lab = LaneLab()
    dispatch(lab, (0, 0), (3, 5), skip=[(1, 2)])
    assert reasons(dispatch(lab, (1, 2), skip=[(4, 4), (4, 4)])) == [("OK", False), ("OK", True), ("OK", False)]
    assert position(lab) == 6
    assert ranges_of(lab.pop(100)) == [(0, 0, 1), (3, 3, 1), (5, 5, 1)]


def test_a_gap_filled_late_by_a_hole_moves_the_position() -> None:
    lab = LaneLab()
    assert dispatch(lab, (0, 9), (11, 19)).commit_position == 10
    lab.overlay = Overlay(lab.kv)
    assert dispatch(lab, skip=[(10, 10), (20, 20)]).commit_position == 21


@pytest.mark.parametrize("seed", range(3))
def test_builders_in_any_order_with_repeats_and_kills_leave_what_one_in_order_leaves(seed: int) -> None:
    """In segments and in pops; each hundred is cut into ranges of another size, and a quarter of them are repeated."""
    chance = random.Random(seed)
    in_order, lab = LaneLab(), LaneLab()
    dispatch(in_order, *((first, first + 99, first % 3) for first in range(0, 20_000, 100)))
    parts: list[tuple[int, int, int]] = []
    for first in range(0, 20_000, 100):
        size = chance.choice([1, 7, 32, 100])
        parts += [(at, min(at + size, first + 100) - 1, first % 3) for at in range(first, first + 100, size)]
    parts += chance.sample(parts, len(parts) // 4)
    chance.shuffle(parts)
    positions = [0]
    while parts:
        taken, parts = parts[:40], parts[40:]
        positions.append(dispatch(lab, *taken).commit_position or 0)
        if chance.random() < 0.2:
            lab.overlay = Overlay(lab.kv)
    assert positions == sorted(positions)
    assert positions[-1] == position(in_order) == 20_000
    assert segments(lab) == segments(in_order) == {}
    for tag in (1, 2):
        wanted = ranges_of(in_order.pop(10_000, tags=[tag], group=f"group-{tag}"))
        assert ranges_of(lab.pop(10_000, tags=[tag], group=f"group-{tag}")) == wanted != []


def test_the_same_operation_again_tells_the_position_of_then() -> None:
    lab = LaneLab()
    first = Dispatch(**QUEUE, ranges=[WrittenRange(0, 4)], op_id="one")
    answer = lab.do(first, digest=b"one")
    dispatch(lab, (5, 9))
    assert lab.do(first, digest=b"one") == answer
    assert answer is not None
    assert answer.commit_position == 5
    assert position(lab) == 10


# At the greatest offset


def test_the_last_offset_there_is_can_be_written_leased_and_acked() -> None:
    lab = starting_at(OFFSET_MAX)
    answer = dispatch(lab, (OFFSET_MAX, OFFSET_MAX))
    assert (answer.applied, answer.commit_position) == (True, 2**63)
    lab.overlay = Overlay(lab.kv)
    popped = lab.pop(5)
    assert ranges_of(popped) == [(OFFSET_MAX, OFFSET_MAX, 1)]
    assert lab.ack(popped.handle, (OFFSET_MAX, OFFSET_MAX)) == [(OFFSET_MAX, OFFSET_MAX, "OK")]
    assert lab.commit_offset == 2**63
    assert entries_of(lab.decision, [], 1, results_partitions=1, signer=None)


def test_far_below_the_end_of_all_numbers_an_offset_near_it_is_ahead_of_the_window() -> None:
    lab = LaneLab()
    assert reasons(dispatch(lab, (OFFSET_MAX, OFFSET_MAX), skip=[(OFFSET_MAX, OFFSET_MAX)])) == [
        ("AHEAD_OF_WINDOW", False),
        ("AHEAD_OF_WINDOW", False),
    ]
    assert segments(lab) == {}
