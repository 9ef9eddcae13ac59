"""Retries: what pops declare, how messages are given back, and when that ends. Sentences of docs/semantics.md."""

from typing import Any

import msgspec
import pytest

from broker_state.store.state_records import DeclaredRetries, LaneRecord
from popstream.wire.command import Cancel, ChangeEntry, ChangeInvisible, HandleRef, Policy, Release, ResetOffset
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab, ranges_of

DEFAULT = (0, ())


def give_back(
    lab: LaneLab,
    handle: str | None,
    *offsets: int,
    release: Release | None = "back_off",
    wait_ms: int = 0,
    cause: str | None = "KeyError: 'milk'",
    suspend: bool = False,
) -> list[tuple[int, int, str]]:
    """Give messages back, in the order of `offsets`; return the runs."""
    entries = [ChangeEntry(0, [(at, at)], wait_ms, suspend, None, release, cause) for at in offsets]
    answer = lab.do(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle or "")], entries=entries))
    assert answer is not None
    lab.last = answer
    return [(run.first, run.last, str(run.reason)) for run in answer.runs]


def rows(lab: LaneLab) -> list[tuple[str, int, str]]:
    """(step, first offset, cause) of the deliveries of the last operation."""
    return [(str(row.step), row.first_offset, row.cause) for row in lab.decision.deliveries]


def policy_of(lab: LaneLab) -> tuple[int, tuple[int, ...]]:
    policy = lab.lane().policy
    return policy.max_attempts, policy.back_off_ms


def test_the_last_pop_that_declares_retries_sets_those_of_its_lane() -> None:
    lab = LaneLab(written=2)
    lab.pop(1)
    assert policy_of(lab) == DEFAULT
    lab.pop(1, max_attempts=16, back_off_ms=[1_000, 2_000])
    assert policy_of(lab) == (16, (1_000, 2_000))
    lab.pop(1)
    assert policy_of(lab) == (16, (1_000, 2_000))
    lab.pop(1, max_attempts=4)
    assert policy_of(lab) == (4, ())
    lab.pop(1, back_off_ms=[])
    assert policy_of(lab) == DEFAULT


def test_a_policy_of_the_lane_holds_as_a_whole_whatever_pops_declare() -> None:
    lab = LaneLab(written=2)
    lab.pop(1, max_attempts=16, back_off_ms=[1_000])
    lab.do(Policy(**QUEUE, group=GROUP, in_flight_max=7))
    assert policy_of(lab) == DEFAULT
    lab.pop(1, max_attempts=3)
    assert policy_of(lab) == DEFAULT


def test_what_the_policy_of_the_queue_leaves_open_its_consumers_declare() -> None:
    lab = LaneLab(written=2)
    lab.do(Policy(**QUEUE, max_attempts=5, parked_max=3, in_flight_max=9))
    lab.pop(1, max_attempts=16, back_off_ms=[1_000])
    assert policy_of(lab) == (5, (1_000,))
    assert (lab.lane().policy.parked_max, lab.lane().policy.in_flight_max) == (3, 9)
    lab.do(Policy(**QUEUE, back_off_ms=[70]))
    assert policy_of(lab) == (16, (70,))
    lab.do(Policy(**QUEUE))
    assert policy_of(lab) == (16, (1_000,))


@pytest.mark.parametrize(
    "fields",
    [{"max_attempts": -1}, {"max_attempts": 65_536}, {"back_off_ms": [0] * 33}, {"back_off_ms": [43_200_001]}],
)
def test_retries_out_of_range_are_refused_and_change_nothing(fields: dict[str, Any]) -> None:
    lab = LaneLab(written=2)
    lab.pop(1, max_attempts=2)
    assert lab.pop(1, **fields).reason == "INVALID_PARAMETER"
    assert policy_of(lab) == (2, ())


def test_a_reset_keeps_what_was_declared() -> None:
    lab = LaneLab(written=2)
    lab.pop(1, max_attempts=2)
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=0))
    assert policy_of(lab) == (2, ())


def test_a_lane_that_declares_nothing_is_stored_as_before() -> None:
    lane = LaneRecord(1, "g", 0, 0, 0, 0, 0, 0, 0, 0)
    count = len(msgspec.msgpack.decode(lane.encode()[1:]))
    assert len(msgspec.msgpack.decode(msgspec.structs.replace(lane, era_no=7).encode()[1:])) == count + 1
    paused = msgspec.structs.replace(lane, paused_until_ms=7)
    assert len(msgspec.msgpack.decode(paused.encode()[1:])) == count + 2
    declared = msgspec.structs.replace(lane, declared=DeclaredRetries(16, (1_000,)))
    assert len(msgspec.msgpack.decode(declared.encode()[1:])) == count + 3
    for record in (lane, paused, declared):
        assert LaneRecord.decode(record.encode()) == record


def test_what_pops_declared_ends_the_attempts_of_an_expired_message() -> None:
    lab = LaneLab(written=1)
    lab.pop(1, 1_000, max_attempts=2, back_off_ms=[300])
    lab.tick(1_000 + 299)
    assert lab.pop(1).reason == "NO_MESSAGE"
    assert ranges_of(lab.pop(1, 1_000, after_ms=1)) == [(0, 0, 2)]
    lab.tick(1_000)
    assert lab.steps == [("expired", 0, 0, 2), ("dead_lettered", 0, 0, 2)]


def test_a_message_that_is_given_back_is_released_at_once_and_comes_after_the_given_time() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1, 60_000).handle
    assert give_back(lab, handle, 0, release="after", wait_ms=5_000) == [(0, 0, "OK")]
    assert rows(lab) == [("released", 0, "handler: KeyError: 'milk'")]
    run = lab.last.runs[0]
    assert (run.pop_time_ms, run.invisible_time_ms) == (lab.now_ms, 5_000)
    record = lab.lane().record
    assert (record.leased, record.available) == (0, 1)
    lab.tick(4_999)
    assert lab.pop(1).reason == "NO_MESSAGE"
    assert rows(lab) == []
    lab.tick(1)
    assert rows(lab) == [], "the lease had ended before: it does not expire"
    assert ranges_of(lab.pop(1)) == [(0, 0, 2)]


def test_a_release_after_a_time_comes_in_place_of_the_back_off() -> None:
    lab = LaneLab(written=1)
    lab.do(Policy(**QUEUE, group=GROUP, back_off_ms=[1_000]))
    give_back(lab, lab.pop(1).handle, 0, release="after", wait_ms=0)
    assert ranges_of(lab.pop(1)) == [(0, 0, 2)]


@pytest.mark.parametrize(("back_off_ms", "waits_ms"), [([1_000, 5_000], [1_000, 5_000, 5_000]), ([], [70, 70, 70])])
@pytest.mark.parametrize("order", [False, True])
def test_a_release_with_back_off_waits_as_the_policy_says_else_as_the_entry_says(
    back_off_ms: list[int], waits_ms: list[int], *, order: bool
) -> None:
    lab = LaneLab(written=1)
    lab.do(Policy(**QUEUE, group=GROUP, back_off_ms=back_off_ms))
    for attempt, wait_ms in enumerate(waits_ms, 1):
        popped = lab.pop(1, order=order)
        assert ranges_of(popped) == [(0, 0, attempt)]
        give_back(lab, popped.handle, 0, wait_ms=70)
        lab.tick(wait_ms - 1)
        assert lab.pop(1, order=order).reason == "NO_MESSAGE"
        lab.tick(1)


def test_a_suspended_message_waits_too_and_its_attempt_does_not_count() -> None:
    lab = LaneLab(written=1)
    give_back(lab, lab.pop(1, max_attempts=1).handle, 0, release="after", wait_ms=500, suspend=True)
    lab.tick(499)
    assert lab.pop(1).reason == "NO_MESSAGE"
    assert ranges_of(lab.pop(1, after_ms=1)) == [(0, 0, 1)]


def test_the_ack_of_a_message_that_was_given_back_is_good_until_it_is_leased_again() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1).handle
    give_back(lab, handle, 0, wait_ms=5_000)
    assert lab.ack(handle, (0, 0)) == [(0, 0, "OK")]


def test_at_the_attempt_limit_a_message_that_is_given_back_is_a_dead_letter_with_the_cause() -> None:
    lab = LaneLab(written=1)
    handle = lab.pop(1, max_attempts=1).handle
    give_back(lab, handle, 0, wait_ms=5_000)
    assert rows(lab) == [("released", 0, "handler: KeyError: 'milk'"), ("dead_lettered", 0, "attempt_limit")]
    (letter,) = lab.decision.dead_letters
    assert (letter.reason, letter.cause) == ("attempt_limit", "handler: KeyError: 'milk'")


def test_a_dead_letter_of_a_lease_that_expired_has_no_cause_and_is_stored_as_before() -> None:
    lab = LaneLab(written=1)
    lab.pop(1, 1_000, max_attempts=1)
    lab.tick(1_000)
    (letter,) = lab.decision.dead_letters
    assert letter.cause is None
    assert b"cause" not in msgspec.msgpack.encode(letter)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize(
    ("cause", "written"),
    [(None, "change_invisible"), ("", "handler"), ("reset_offset", "handler: reset_offset"), ("x" * 512, None)],
)
def test_no_cause_of_a_client_can_be_mistaken_for_another(
    cause: str | None, written: str | None, *, order: bool
) -> None:
    lab = LaneLab(written=1)
    give_back(lab, lab.pop(1, order=order).handle, 0, release=None, cause=cause)
    assert rows(lab) == [("released", 0, written or f"handler: {cause}")]
    assert lab.decision.operations[0].detail == cause


def test_a_cause_that_is_too_long_is_refused() -> None:
    lab = LaneLab(written=1)
    assert give_back(lab, lab.pop(1).handle, 0, cause="x" * 513) == [(0, 0, "INVALID_PARAMETER")]
    assert rows(lab) == []


def test_an_orderly_lane_waits_for_its_failed_member_and_hands_out_the_batch_in_order() -> None:
    lab = LaneLab(written=3)
    handle = lab.pop(3, order=True).handle
    give_back(lab, handle, 1, 2, release=None, cause=None, suspend=True)
    give_back(lab, handle, 0, wait_ms=800)
    assert rows(lab) == [("released", 0, "handler: KeyError: 'milk'")]
    assert lab.lane().record.leased == 0
    lab.tick(799)
    assert lab.pop(3, order=True).reason == "NO_MESSAGE"
    lab.tick(1)
    assert rows(lab) == []
    assert ranges_of(lab.pop(3, order=True)) == [(0, 0, 2), (1, 2, 1)]


def test_at_the_attempt_limit_an_orderly_member_is_a_dead_letter_at_once_with_the_cause() -> None:
    lab = LaneLab(written=3)
    handle = lab.pop(3, order=True, max_attempts=1).handle
    give_back(lab, handle, 1, 2, release=None, cause=None, suspend=True)
    give_back(lab, handle, 0, wait_ms=800)
    assert rows(lab) == [("released", 0, "handler: KeyError: 'milk'"), ("dead_lettered", 0, "attempt_limit")]
    (letter,) = lab.decision.dead_letters
    assert (letter.first, letter.last, letter.cause) == (0, 0, "handler: KeyError: 'milk'")
    assert ranges_of(lab.pop(3, order=True)) == [(1, 2, 1)], "the others had no attempt"


def test_members_that_reach_the_limit_together_are_letters_of_one_reason_and_the_failed_one_has_the_cause() -> None:
    lab = LaneLab(written=3)
    popped = lab.pop(3, 1_000, order=True, max_attempts=1)
    lab.now_ms += 999
    give_back(lab, popped.handle, 1, 2, 0, cause="first")
    assert [(letter.first, letter.last, letter.cause) for letter in lab.decision.dead_letters] == [
        (0, 0, "handler: first"),
        (1, 2, None),
    ]


def test_cancel_takes_no_message_that_was_given_back() -> None:
    lab = LaneLab(written=1)
    give_back(lab, lab.pop(1, op_id="p").handle, 0, wait_ms=500)
    answer = lab.do(Cancel(**QUEUE, target_op_id="p"))
    assert answer is not None
    assert answer.released == []
