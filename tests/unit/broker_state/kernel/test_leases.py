"""Leases of a concurrent lane: each test is one sentence of docs/semantics.md."""

import pytest

from broker_state.store.facts import client_hash
from broker_state.store.overlay import Overlay
from popstream.wire.command import (
    Ack,
    AckEntry,
    Cancel,
    ChangeEntry,
    ChangeInvisible,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Policy,
    Pop,
    ResetOffset,
    ReturnClient,
    Tick,
    WrittenRange,
)
from popstream.wire.reason import Reason
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab, ranges_of


def test_a_pop_takes_the_lowest_offsets_and_the_next_one_what_follows() -> None:
    lab = LaneLab(written=10)
    assert ranges_of(lab.pop(4)) == [(0, 3, 1)]
    assert ranges_of(lab.pop(4)) == [(4, 7, 1)]
    assert ranges_of(lab.pop(4)) == [(8, 9, 1)]
    assert lab.pop(4).reason == "NO_MESSAGE"


def test_the_commit_offset_is_the_end_of_the_contiguous_acked_prefix() -> None:
    lab = LaneLab(written=5)
    handle = lab.pop(5).handle
    lab.ack(handle, (1, 1), (3, 3))
    assert lab.commit_offset == 0
    lab.ack(handle, (0, 0))
    assert lab.commit_offset == 2
    lab.ack(handle, (2, 2))
    assert lab.commit_offset == 4


def test_a_lease_ends_at_exactly_its_deadline_and_the_message_comes_back_with_the_next_attempt() -> None:
    lab = LaneLab(written=1)
    lab.pop(1, 10_000)
    lab.tick(9_999)
    assert lab.steps == []
    assert lab.pop(1).reason == "NO_MESSAGE"
    lab.tick(1)
    assert lab.steps == [("expired", 0, 0, 1)]
    assert ranges_of(lab.pop(1)) == [(0, 0, 2)]


def test_an_outage_costs_one_attempt_however_many_deadlines_it_could_have_held() -> None:
    lab = LaneLab(written=3)
    lab.pop(3, 1_000)
    assert ranges_of(lab.pop(3, 1_000, after_ms=600_000)) == [(0, 2, 2)]


def test_a_late_ack_is_good_until_the_message_is_leased_again() -> None:
    lab = LaneLab(written=2)
    first = lab.pop(2, 1_000).handle
    lab.tick(5_000)
    assert lab.ack(first, (0, 0)) == [(0, 0, "OK")]
    lab.pop(1)
    assert lab.ack(first, (1, 1)) == [(1, 1, "STALE_HANDLE")]


def test_a_late_ack_that_arrives_first_beats_the_redelivery_to_a_parked_pop() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1, 1_000).handle
    lab.do(Pop(**QUEUE, group=GROUP, max_messages=1, invisible_time_ms=1000, poll_time_ms=60_000, op_id="waiting"))
    lab.now_ms += 5_000
    assert lab.ack(handle, (0, 0)) == [(0, 0, "OK")]
    assert "waiting" not in lab.answers


def test_a_change_needs_the_current_revision_and_an_ack_does_not() -> None:
    lab = LaneLab(written=2)
    first = lab.pop(2).handle
    assert lab.change(first, 20_000, (0, 0)) == [(0, 0, "OK")]
    current = lab.last.handles[0]
    assert lab.change(first, 30_000, (0, 1)) == [(0, 0, "SUPERSEDED"), (1, 1, "OK")]
    superseded = lab.last.runs[0].handle
    assert superseded is not None
    assert lab.last.handles[superseded] == current
    assert lab.ack(first, (0, 0)) == [(0, 0, "OK")]


def test_a_change_to_an_equal_deadline_keeps_the_message() -> None:
    lab = LaneLab(written=1)
    answer = lab.pop(1, 10_000)
    lab.now_ms += 4_000
    assert lab.change(answer.handle, 6_000, (0, 0)) == [(0, 0, "OK")]
    lab.tick(6_000)
    assert lab.steps == [("expired", 0, 0, 1)]
    assert ranges_of(lab.pop(1)) == [(0, 0, 2)]


def test_a_change_to_zero_releases_and_suspend_keeps_the_attempt() -> None:
    lab = LaneLab(written=2)
    handle = lab.pop(2).handle
    lab.change(handle, 0, (0, 0))
    lab.change(handle, 0, (1, 1), suspend=True)
    assert ranges_of(lab.pop(2)) == [(0, 0, 2), (1, 1, 1)]


def test_a_change_brings_an_expired_message_back_under_its_lease() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1, 1_000).handle
    lab.tick(2_000)
    assert lab.change(handle, 10_000, (0, 0)) == [(0, 0, "OK")]
    assert lab.pop(1).reason == "NO_MESSAGE"


@pytest.mark.parametrize(
    ("ranges", "runs"),
    [
        ([(0, 9)], [(0, 4, "OK"), (5, 9, "OUTSIDE_POP")]),
        ([(0, 1), (1, 2)], [(0, 1, "OK"), (1, 1, "DUPLICATE_ENTRY"), (2, 2, "OK")]),
        ([(8, 12)], [(8, 9, "OUTSIDE_POP"), (10, 12, "ABOVE_MAX")]),
        ([(3, 2)], [(3, 2, "INVALID_PARAMETER")]),
        ([(0, 1 << 63)], [(0, 1 << 63, "INVALID_PARAMETER")]),
        ([(-1, 0)], [(-1, 0, "INVALID_PARAMETER")]),
    ],
)
def test_every_offset_is_judged_and_neighbours_with_one_outcome_are_one_run(
    ranges: list[tuple[int, int]], runs: list[tuple[int, int, str]]
) -> None:
    lab = LaneLab(written=10)
    assert lab.ack(lab.pop(5).handle, *ranges) == runs


def test_an_acked_message_is_acked_for_acks_and_refused_to_changes() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1).handle
    lab.ack(handle, (0, 0))
    lab.ack(handle, (0, 0))
    assert [(run.code, run.reason, run.applied) for run in lab.last.runs] == [(0, "ALREADY_ACKED", False)]
    lab.change(handle, 1_000, (0, 0))
    assert [(run.code, run.reason) for run in lab.last.runs] == [(13, "ALREADY_ACKED")]


@pytest.mark.parametrize("text", ["", "1", "1.", "1.AAAA", "2.AAAA", "x" * 5000, "1.é"])
def test_a_handle_that_cannot_be_read_is_unknown(text: str) -> None:
    lab = LaneLab(written=1)
    lab.pop(1)
    assert lab.ack(text, (0, 0)) == [(0, 0, "UNKNOWN_HANDLE")]


def test_a_handle_of_another_lane_is_unknown() -> None:
    lab = LaneLab(written=2)
    handle = lab.pop(1, group="other").handle
    lab.pop(1)
    assert lab.ack(handle, (0, 0)) == [(0, 0, "UNKNOWN_HANDLE")]


def test_at_the_attempt_limit_a_message_goes_to_the_dead_letters() -> None:
    lab = LaneLab(written=1)
    lab.do(Policy(**QUEUE, group=GROUP, max_attempts=2))
    lab.pop(1, 1_000)
    lab.tick(1_000)
    lab.pop(1, 1_000)
    lab.tick(1_000)
    assert lab.steps == [("expired", 0, 0, 2), ("dead_lettered", 0, 0, 2)]
    letter = lab.decision.dead_letters[0]
    assert (letter.first, letter.last, letter.reason, letter.attempts) == (0, 0, "attempt_limit", 2)
    assert lab.commit_offset == 1


def test_reject_is_a_dead_letter_at_once() -> None:
    lab = LaneLab(written=1)
    assert lab.reject(lab.pop(1).handle, (0, 0)) == [(0, 0, "OK")]
    assert [(letter.first, letter.reason) for letter in lab.decision.dead_letters] == [(0, "rejected")]


def test_back_off_counts_from_the_end_of_the_lease_and_the_last_value_repeats() -> None:
    lab = LaneLab(written=1)
    lab.do(Policy(**QUEUE, group=GROUP, back_off_ms=[1_000, 5_000]))
    for attempt, back_off in ((1, 1_000), (2, 5_000), (3, 5_000)):
        assert ranges_of(lab.pop(1, 100)) == [(0, 0, attempt)]
        lab.tick(100 + back_off - 1)
        assert lab.pop(1).reason == "NO_MESSAGE"
        lab.tick(1)


def test_parked_pops_are_served_in_the_order_they_came() -> None:
    lab = LaneLab()
    for name in ("first", "second", "third"):
        lab.do(Pop(**QUEUE, group=GROUP, max_messages=2, invisible_time_ms=1000, poll_time_ms=9_000, op_id=name))
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 2)]))
    assert ranges_of(lab.answers["first"]) == [(0, 1, 1)]
    assert ranges_of(lab.answers["second"]) == [(2, 2, 1)]
    lab.tick(9_000)
    assert lab.answers["third"].reason == "POLLING_TIMEOUT"


def test_no_more_pops_wait_than_the_policy_allows() -> None:
    lab = LaneLab()
    lab.do(Policy(**QUEUE, group=GROUP, parked_max=1))
    lab.pop(1, poll_time_ms=1000)
    assert lab.pop(1, poll_time_ms=1000).code == 209


def test_cancel_takes_a_parked_pop_back_and_releases_an_answered_one_without_counting() -> None:
    lab = LaneLab()
    lab.pop(1, poll_time_ms=60_000, op_id="waiting")
    lab.do(Cancel(**QUEUE, target_op_id="waiting"))
    assert lab.answers["waiting"].reason == "CANCELLED"
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 2)]))
    lab.pop(3, op_id="answered")
    cancelled = lab.do(Cancel(**QUEUE, target_op_id="answered"))
    assert cancelled is not None
    assert cancelled.released == [(0, 2)]
    assert ranges_of(lab.pop(3)) == [(0, 2, 1)]
    unknown = lab.do(Cancel(**QUEUE, target_op_id="never"))
    assert unknown is not None
    assert unknown.reason == "UNKNOWN_HANDLE"


def test_a_step_names_the_client_that_took_it_or_else_the_client_that_held_the_lease() -> None:
    lab = LaneLab(written=4)
    lab.do(Policy(**QUEUE, group=GROUP, max_attempts=1))
    handle = lab.pop(4, client_id="holder").handle or ""
    steps = {("leased", row.epoch): row.client_id for row in lab.decision.deliveries}
    assert list(steps.values()) == ["holder"]
    named = {**QUEUE, "handles": [HandleRef(GROUP, handle)], "client_id": "sender"}
    for command in (
        Ack(**named, entries=[AckEntry(0, [(0, 0)])]),
        ChangeInvisible(**named, entries=[ChangeEntry(0, [(1, 1)], 5_000)]),
        ChangeInvisible(**named, entries=[ChangeEntry(0, [(2, 2)], 0)]),
        Tick(**QUEUE),
    ):
        lab.do(command, after_ms=1_000)
        for row in lab.decision.deliveries:
            assert ("leased", row.epoch) in steps
            steps[row.step, row.first_offset] = row.client_id
    lab.tick(10_000)
    steps |= {(row.step, row.first_offset): row.client_id for row in lab.decision.deliveries}
    assert (steps["acked", 0], steps["changed", 1]) == ("sender", "sender")
    assert steps["released", 2] == "sender"
    assert {steps[step] for step in (("dead_lettered", 2), ("expired", 1), ("dead_lettered", 3))} == {"holder"}


def test_neighbours_of_which_one_was_leased_have_rows_of_their_own() -> None:
    lab = LaneLab(written=2)
    handle = lab.pop(2, client_id="holder").handle or ""
    entries = [ChangeEntry(0, [(0, 0)], 1_000), ChangeEntry(0, [(1, 1)], 1_000, release="back_off")]
    lab.do(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=entries))
    lab.ack(handle, (0, 1))
    rows = [(row.step, row.first_offset, row.last_offset, row.client_id) for row in lab.decision.deliveries]
    assert rows == [("acked", 0, 0, "holder"), ("acked", 1, 1, None)]


@pytest.mark.parametrize("order", [False, True], ids=["concurrent", "orderly"])
def test_the_ids_of_clients_are_kept_as_long_as_they_may_hold_leases(*, order: bool) -> None:
    lab = LaneLab(written=300)
    first = lab.pop(100, client_id="first", order=order)
    assert lab.lane().client_id(client_hash("first")) == "first"
    lab.ack(first.handle, (0, 99))
    lab.pop(100, client_id="second", order=order)
    assert lab.lane().client_id(client_hash("first")) is None
    lab.tick(10_000)
    assert {(row.step, row.client_id) for row in lab.decision.deliveries} == {("expired", "second")}
    lab.pop(200, order=order)
    lab.tick(10_000)
    assert {(row.step, row.client_id) for row in lab.decision.deliveries} == {("expired", None)}
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=300))
    assert lab.lane().client_id(client_hash("second")) is None


@pytest.mark.parametrize(("sender", "holder"), [("back", "back"), ("another", None), (None, None)])
def test_a_client_that_changes_a_lease_after_its_return_is_known_again(sender: str | None, holder: str | None) -> None:
    lab = LaneLab(written=10)
    handle = lab.pop(4, client_id="back").handle or ""
    lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="back"))
    assert lab.lane().client_id(client_hash("back")) is None
    entries = [ChangeEntry(0, [(1, 2)], 5_000)]
    lab.do(ChangeInvisible(**QUEUE, client_id=sender, handles=[HandleRef(GROUP, handle)], entries=entries))
    lab.tick(5_000)
    assert [(row.step, row.client_id) for row in lab.decision.deliveries] == [("expired", holder)]


def test_return_client_releases_what_that_client_holds_and_nothing_else() -> None:
    lab = LaneLab(written=200)
    lab.pop(100, client_id="dead")
    lab.pop(50, client_id="alive")
    lab.pop(10, client_id="dead")
    answer = lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="dead"))
    assert answer is not None
    assert answer.released == [(0, 99), (150, 159)]
    assert lab.lane().record.leased == 50


def test_what_a_client_leases_again_by_a_change_after_its_return_is_returned_again() -> None:
    lab = LaneLab(written=10)
    handle = lab.pop(4, client_id="back").handle or ""
    lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="back"))
    lab.do(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=[ChangeEntry(0, [(1, 2)], 60_000)]))
    assert lab.lane().record.leased == 2
    answer = lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="back"))
    assert answer is not None
    assert answer.released == [(1, 2)]
    assert lab.lane().record.leased == 0


def test_the_same_operation_again_gets_the_first_answer_and_changes_nothing() -> None:
    lab = LaneLab(written=10)
    command = Pop(**QUEUE, group=GROUP, max_messages=2, invisible_time_ms=1000, op_id="again")
    first = lab.do(command, digest=b"same")
    assert lab.do(command, digest=b"same") == first
    assert [row.repeated for row in lab.decision.operations] == [True]
    reused = lab.do(command, digest=b"other")
    assert reused is not None
    assert (reused.code, reused.reason) == (29, "OP_ID_REUSED")
    assert lab.lane().record.next_offset == 2


def test_an_op_id_is_forgotten_after_ten_minutes_of_the_queues_clock() -> None:
    lab = LaneLab(written=10)
    command = Pop(**QUEUE, group=GROUP, max_messages=1, invisible_time_ms=43_200_000, op_id="again")
    lab.do(command, digest=b"same")
    lab.do(command, digest=b"same", after_ms=11 * 60_000)
    assert lab.lane().record.next_offset == 2


def test_holes_are_skipped_and_never_hold_a_position_back() -> None:
    lab = LaneLab()
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 1), WrittenRange(3, 4)], skip=[(2, 2), (5, 6)]))
    answer = lab.pop(10)
    assert ranges_of(answer) == [(0, 1, 1), (3, 4, 1)]
    lab.ack(answer.handle, (0, 4))
    assert lab.commit_offset == 7


def test_the_commit_position_is_the_largest_contiguous_written_offset() -> None:
    lab = LaneLab()
    positions = []
    for offsets in ((0, 0), (1, 1), (4, 4), (2, 2), (3, 3)):
        answer = lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(*offsets)]))
        assert answer is not None
        positions.append(answer.commit_position)
    assert positions == [1, 2, 2, 3, 5]


def test_a_dispatch_too_far_ahead_is_told_to_wait() -> None:
    lab = LaneLab()
    answer = lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(5_000_000, 5_000_000), WrittenRange(0, 0)]))
    assert answer is not None
    assert [(run.code, run.reason) for run in answer.runs] == [(2, "AHEAD_OF_WINDOW"), (0, "OK")]


def test_retention_accounts_for_what_was_leased_and_what_was_never_read() -> None:
    lab = LaneLab(written=10)
    lab.pop(4)
    lab.do(Dispatch(**QUEUE, skip=[(0, 5)]))
    assert ranges_of(lab.pop(10)) == [(6, 9, 1)]
    record = lab.lane().record
    assert (lab.commit_offset, record.expired_from_log, record.leased) == (6, 6, 4)


def test_a_reset_backwards_makes_messages_fresh_and_old_handles_stale() -> None:
    lab = LaneLab(written=10)
    handle = lab.pop(5).handle
    lab.ack(handle, (0, 2))
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=1))
    assert lab.ack(handle, (1, 3)) == [(1, 3, "STALE_HANDLE")]
    assert ranges_of(lab.pop(3)) == [(1, 3, 1)]


def test_a_reset_forwards_counts_what_it_skips() -> None:
    lab = LaneLab(written=10)
    lab.ack(lab.pop(5).handle, (1, 1))
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=8))
    record = lab.lane().record
    assert (lab.commit_offset, record.skipped_by_reset, record.leased) == (8, 7, 0)


def test_a_forgotten_lane_leaves_its_handles_dead() -> None:
    lab = LaneLab(written=5)
    handle = lab.pop(2).handle
    lab.do(ForgetLane(**QUEUE, group=GROUP))
    assert lab.ack(handle, (0, 1)) == [(0, 1, "UNKNOWN_HANDLE")]
    lab.pop(2)
    assert lab.ack(handle, (0, 1)) == [(0, 1, "STALE_HANDLE")]


def test_messages_with_other_tags_are_passed_over_and_count_as_acked() -> None:
    lab = LaneLab()
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 3, 7), WrittenRange(4, 5), WrittenRange(6, 7, 9)]))
    answer = lab.pop(10, tags=[9])
    assert ranges_of(answer) == [(6, 7, 1)]
    assert (lab.commit_offset, lab.lane().record.passed_over) == (6, 6)


def test_units_count_as_their_inner_messages_but_one_is_always_given() -> None:
    lab = LaneLab()
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 9, 0, 50)]))
    assert ranges_of(lab.pop(100)) == [(0, 1, 1)]
    assert ranges_of(lab.pop(10)) == [(2, 2, 1)]


def test_in_flight_is_bounded_by_policy_and_an_ack_makes_room() -> None:
    lab = LaneLab(written=10)
    lab.do(Policy(**QUEUE, group=GROUP, in_flight_max=3))
    answer = lab.pop(10)
    assert ranges_of(answer) == [(0, 2, 1)]
    lab.pop(10, poll_time_ms=60_000, op_id="waiting")
    lab.ack(answer.handle, (0, 0))
    assert ranges_of(lab.answers["waiting"]) == [(3, 3, 1)]


def test_holes_that_a_refused_ack_came_upon_are_stored_with_their_count() -> None:
    lab = LaneLab(written=3)
    lab.ack(lab.pop(3).handle, (1, 2))
    lab.do(Dispatch(**QUEUE, skip=[(3, 4)]))
    assert lab.ack("forged", (0, 0)) == [(0, 0, "UNKNOWN_HANDLE")]
    lab.overlay = Overlay(lab.kv)  # as after a restart
    record = lab.lane().record
    assert (record.next_offset, record.holes, record.acked_above) == (5, 2, 4)


def test_of_two_deadlines_of_a_page_the_second_takes_effect_though_the_first_has_left_the_log() -> None:
    lab = LaneLab(written=5)
    lab.pop(2, 1_000)
    lab.pop(2, 2_000)
    lab.do(Dispatch(**QUEUE, skip=[(0, 1)]))
    lab.tick(10_000)
    assert lab.steps == [("expired_from_log", 0, 1, 1), ("expired", 2, 3, 1)]


@pytest.mark.parametrize("op_id", ["", "x" * 129])
def test_a_declare_whose_op_id_is_refused_makes_no_queue(op_id: str) -> None:
    lab = LaneLab()
    new = {**QUEUE, "queue_id": 1}
    answer = lab.do(Declare(**new, topic_id="id", op_id=op_id))
    assert answer is not None
    assert answer.reason is Reason.INVALID_PARAMETER
    again = lab.do(Declare(**new, topic_id="id"))
    assert again is not None
    assert again.applied, "it is new all the same"
