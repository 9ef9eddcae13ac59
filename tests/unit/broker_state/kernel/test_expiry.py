"""A record applies a bounded number of deadlines, the first ones first; the records that follow apply the others."""

from __future__ import annotations

import pytest

from broker_state.kernel import expiry
from broker_state.kernel.context.queue_state import load_queue
from popstream.wire.command import Dispatch, Pop, Tick, WrittenRange
from tests.support.in_process.lane_lab import GROUP, QUEUE, TOPIC, LaneLab

INVISIBLE_MS = 10_000
MESSAGES = 64 * 6


@pytest.fixture(autouse=True)
def two_pages_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of which each message was popped alone cost 69."""
    monkeypatch.setattr(expiry, "DUE_COST_MAX", 2 * 69)


def lab_with_single_leases() -> LaneLab:
    """Each message was popped alone, a millisecond after the one before."""
    lab = LaneLab(MESSAGES)
    for _ in range(MESSAGES):
        lab.pop(1, INVISIBLE_MS, after_ms=1)
    return lab


def earliest_ms(lab: LaneLab) -> int:
    queue = load_queue(lab.overlay, TOPIC, 0)
    assert queue is not None
    return queue.deadlines.earliest_ms


def test_leases_that_end_together_end_in_several_records() -> None:
    lab = lab_with_single_leases()
    ended: list[list[int]] = []
    for _ in range(3):
        lab.tick(INVISIBLE_MS if not ended else 0)
        ended.append([first for step, first, _, _ in lab.steps if step == "expired"])
        assert (earliest_ms(lab) <= lab.now_ms) == (len(ended) < 3)
    assert ended == [[*range(128)], [*range(128, 256)], [*range(256, 384)]]
    assert lab.lane().record.available == MESSAGES


def test_each_expires_at_its_own_deadline_however_late_it_is_applied() -> None:
    lab = lab_with_single_leases()
    first_pop_ms = lab.now_ms - MESSAGES + 1
    at_ms = []
    for number in range(3):
        lab.tick(60_000 if not number else 5_000)
        at_ms += [row.at_ms for row in lab.decision.deliveries]
    assert at_ms == [first_pop_ms + number + INVISIBLE_MS for number in range(MESSAGES)]


def test_a_lease_whose_end_was_left_to_the_next_record_is_still_held() -> None:
    lab = lab_with_single_leases()
    lab.tick(INVISIBLE_MS)
    granted = lab.pop(MESSAGES, INVISIBLE_MS)
    # Its own record has taken two further pages first.
    assert [(leased.first, leased.last) for leased in granted.messages] == [(0, 255)]
    assert [leased.attempt for leased in granted.messages] == [2]
    assert lab.lane().record.leased == MESSAGES


def test_a_pop_of_many_is_one_run_a_page() -> None:
    lab = LaneLab(64 * 100)
    lab.pop(64 * 100, INVISIBLE_MS)
    lab.tick(INVISIBLE_MS)
    assert lab.steps == [("expired", 0, 23 * 64 - 1, 1)]
    for _ in range(4):
        lab.tick(0)
    assert lab.lane().record.leased == 0


def test_parked_pops_count_six_each() -> None:
    lab = LaneLab()
    for number in range(60):
        command = Pop(
            **QUEUE,
            group=GROUP,
            max_messages=1,
            invisible_time_ms=1_000,
            order=False,
            poll_time_ms=5_000,
            op_id=f"p{number}",
        )
        lab.do(command)
    lab.do(Tick(**QUEUE), after_ms=5_000)
    assert len(lab.decision.answers) == 23 + 1
    lab.do(Tick(**QUEUE))
    assert len(lab.decision.answers) == 23 + 1
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, 0)]))
    assert lab.lane().record.parked == 0


def test_what_left_the_log_does_not_expire_with_a_batch_that_was_left_to_the_next_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many skips the lane learns of at once: all are accounted for before its batch is settled."""
    monkeypatch.setattr(expiry, "DUE_COST_MAX", 1)
    lab = LaneLab(written=20)
    lab.pop(1, 50, group="another")
    lab.pop(5, 50, order=True)
    lab.do(Dispatch(**QUEUE, skip=[(12, 12), (3, 3), (1, 2)]), after_ms=1_000)
    of_lane = [row for row in lab.decision.deliveries if row.group == GROUP]
    assert [(str(row.step), row.first_offset, row.last_offset) for row in of_lane] == [
        ("expired_from_log", 3, 3),
        ("expired_from_log", 1, 2),
        ("expired", 0, 0),
        ("expired", 4, 4),
    ]
