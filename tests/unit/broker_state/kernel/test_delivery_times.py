"""Messages with a delivery time: no pop is given them before, what lies behind them is not held up, order waits."""

from __future__ import annotations

from typing import Any

import pytest

from broker_state.kernel.context import op_context
from broker_state.store.facts import UnitFacts
from broker_state.store.pages import UnitFactsPage
from popstream.wire.command import Declare, Dispatch, ResetOffset, WrittenRange
from popstream.wire.limits import DELAY_MS_MAX, INT64_MAX
from tests.support.in_process.lane_lab import QUEUE, LaneLab, ranges_of

HOUR_MS = 3_600_000


def dispatched(lab: LaneLab, *ranges: WrittenRange, skip: list[tuple[int, int]] | None = None) -> list[str]:
    """The reasons of the runs."""
    answer = lab.do(Dispatch(**QUEUE, ranges=list(ranges), skip=skip or []))
    assert answer is not None
    return [str(run.reason) for run in answer.runs]


def delayed(lab: LaneLab, first: int, last: int, delay_ms: int, **facts: Any) -> WrittenRange:
    return WrittenRange(first, last, deliver_at_ms=lab.now_ms + delay_ms, **facts)


def test_a_message_is_given_from_its_time_on_and_those_behind_it_before() -> None:
    lab = LaneLab()
    dispatched(lab, WrittenRange(0, 0), delayed(lab, 1, 2, 5_000), WrittenRange(3, 4))
    first = lab.pop(10)
    assert ranges_of(first) == [(0, 0, 1), (3, 4, 1)]
    lab.ack(first.handle, (0, 0), (3, 4))
    assert lab.commit_offset == 1, "the commit offset waits for what is to come"
    assert lab.pop(10, after_ms=4_999).reason == "NO_MESSAGE"
    second = lab.pop(10, after_ms=1)
    assert ranges_of(second) == [(1, 2, 1)], "the first delivery"
    lab.ack(second.handle, (1, 2))
    assert lab.commit_offset == 5


def test_the_first_pop_of_a_group_a_moment_before_the_time_gets_nothing() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 5_000))
    assert lab.pop(10, after_ms=4_999).reason == "NO_MESSAGE"
    assert ranges_of(lab.pop(10, after_ms=1)) == [(0, 0, 1)]


def test_what_is_due_comes_before_fresh_messages() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 1_000), WrittenRange(1, 9))
    assert ranges_of(lab.pop(1)) == [(1, 1, 1)]
    assert ranges_of(lab.pop(2, after_ms=1_000)) == [(0, 0, 1), (2, 2, 1)]


def test_a_parked_pop_is_served_when_the_time_comes() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 5_000))
    lab.pop(1, poll_time_ms=20_000, op_id="waits")
    lab.tick(4_999)
    assert "waits" not in lab.answers
    lab.tick(1)
    assert ranges_of(lab.answers["waits"]) == [(0, 0, 1)]


def test_each_group_gets_it_then_whenever_it_came() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 5_000), WrittenRange(1, 1))
    assert ranges_of(lab.pop(10)) == [(1, 1, 1)]
    lab.tick(5_000)
    assert ranges_of(lab.pop(10)) == [(0, 0, 1)]
    assert ranges_of(lab.pop(10, group="late")) == [(0, 1, 1)]


def test_a_time_that_has_come_is_none_and_one_too_far_ahead_is_cut() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 0), delayed(lab, 1, 1, -5_000), delayed(lab, 2, 2, 10 * DELAY_MS_MAX))
    assert ranges_of(lab.pop(10)) == [(0, 1, 1)]
    assert lab.pop(10, after_ms=DELAY_MS_MAX - 1).reason == "OK"  # 0 and 1 again
    assert ranges_of(lab.pop(10, after_ms=1)) == [(2, 2, 1)]


@pytest.mark.parametrize("deliver_at_ms", [-1, INT64_MAX + 1])
def test_a_time_out_of_range_is_refused(deliver_at_ms: int) -> None:
    lab = LaneLab()
    assert dispatched(lab, WrittenRange(0, 0, deliver_at_ms=deliver_at_ms), WrittenRange(1, 1)) == [
        "INVALID_PARAMETER",
        "OK",
    ]


def test_the_tags_of_the_pop_decide_that_comes_when_it_is_due() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 1_000, tag=5), delayed(lab, 1, 1, 1_000, tag=6), WrittenRange(2, 2, tag=6))
    assert ranges_of(lab.pop(10, tags=[6])) == [(2, 2, 1)]
    assert lab.lane().record.passed_over == 0
    assert ranges_of(lab.pop(10, tags=[6], after_ms=1_000)) == [(1, 1, 1)]
    assert lab.lane().record.passed_over == 1


def test_an_orderly_lane_waits_for_the_time() -> None:
    lab = LaneLab()
    dispatched(lab, WrittenRange(0, 1), delayed(lab, 2, 2, 5_000), WrittenRange(3, 3))
    first = lab.pop(10, order=True)
    assert ranges_of(first) == [(0, 1, 1)], "the batch ends before it"
    lab.ack(first.handle, (0, 1))
    assert lab.pop(10, order=True).reason == "NO_MESSAGE"
    lab.pop(10, order=True, poll_time_ms=20_000, op_id="waits")
    lab.tick(4_999)
    assert "waits" not in lab.answers
    lab.tick(1)
    assert ranges_of(lab.answers["waits"]) == [(2, 3, 1)]


def test_an_orderly_lane_does_not_wait_for_what_has_left_the_log() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, HOUR_MS), WrittenRange(1, 1))
    lab.pop(10, order=True, poll_time_ms=20_000, op_id="waits")
    dispatched(lab, skip=[(0, 0)])
    assert ranges_of(lab.answers["waits"]) == [(1, 1, 1)]


def test_what_leaves_the_log_before_its_time_has_no_delivery_to_report() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 9, HOUR_MS), WrittenRange(10, 10))
    assert ranges_of(lab.pop(10)) == [(10, 10, 1)]
    dispatched(lab, skip=[(0, 4)])
    assert lab.pop(10).reason == "NO_MESSAGE"
    record = lab.lane().record
    assert (record.expired_from_log, record.available, lab.steps) == (5, 5, [])


def test_a_reset_back_waits_for_the_time_again() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 5_000), WrittenRange(1, 1))
    lab.pop(10)
    lab.do(ResetOffset(**QUEUE, group="billing", queue_offset=0))
    assert ranges_of(lab.pop(10)) == [(1, 1, 1)]
    assert ranges_of(lab.pop(10, after_ms=5_000)) == [(0, 0, 1)]


def test_an_ack_cannot_name_what_was_only_put_off() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, 5_000), WrittenRange(1, 1))
    popped = lab.pop(10)
    assert lab.ack(popped.handle, (0, 1)) == [(0, 0, "OUTSIDE_POP"), (1, 1, "OK")]


def test_messages_that_wait_do_not_count_as_in_flight() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 199, 5_000), WrittenRange(200, 200))
    lab.pop(10)
    record = lab.lane().record
    assert (record.leased, record.available, lab.lane().is_poppable) == (1, 200, False)


def test_a_pop_puts_off_a_bounded_number_and_the_lane_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_context, "WORK_MAX", 40)
    lab = LaneLab()
    dispatched(lab, *(delayed(lab, at, at, HOUR_MS + at) for at in range(200)), WrittenRange(200, 200))
    lab.pop(1, poll_time_ms=20_000, op_id="waits")
    records = 0
    while "waits" not in lab.answers:
        lab.tick(op_context.PAUSE_MS)
        records += 1
    assert ranges_of(lab.answers["waits"]) == [(200, 200, 1)]
    assert 4 <= records <= 6


def test_a_queue_that_is_declared_anew_knows_no_times() -> None:
    lab = LaneLab()
    dispatched(lab, delayed(lab, 0, 0, HOUR_MS))
    lab.do(Declare(**QUEUE, topic_id="another"))
    dispatched(lab, WrittenRange(0, 0))
    assert ranges_of(lab.pop(10)) == [(0, 0, 1)]


def test_pages_of_tags_without_times_are_stored_as_before() -> None:
    plain = UnitFactsPage(3, [(192, 200, UnitFacts(7, 1)), (200, 201, UnitFacts(0, 4))])
    timed = UnitFactsPage(3, [*plain.runs, (201, 256, UnitFacts(0, 1, INT64_MAX))])
    assert (plain.encode()[:1], timed.encode()[:1]) == (b"\x01", b"\x02")
    assert UnitFactsPage.decode(plain.encode()).runs == plain.runs
    assert UnitFactsPage.decode(timed.encode()).runs == timed.runs
