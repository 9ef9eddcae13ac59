"""An orderly lane through the kernel: RIP-51's own example, and what makes a lane orderly (docs/semantics.md)."""

from typing import Any

import pytest

from popstream.wire.command import Cancel, ChangeEntry, ChangeInvisible, HandleRef, Policy, ResetOffset, ReturnClient
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, decode_handle
from popstream.wire.reason import Reason
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab

SECOND = 1_000


def popped(lab: LaneLab, count: int = 3, **fields: Any) -> tuple[str, list[tuple[int, int, int]]]:
    answer = lab.pop(count, order=True, **fields)
    assert answer.handle is not None, answer
    return answer.handle, [(m.first, m.last, m.attempt) for m in answer.messages]


def nothing(lab: LaneLab, count: int = 3, **fields: Any) -> Reason:
    answer = lab.pop(count, order=True, **fields)
    assert answer.handle is None
    assert not answer.applied
    return answer.reason


@pytest.fixture
def rip_51() -> tuple[LaneLab, str, int]:
    """Three messages popped at 00:00:00 for 10 s; 0 and 2 acked, 1 to be visible at 00:00:20."""
    lab = LaneLab(5)
    midnight_ms = lab.now_ms
    handle, messages = popped(lab, 3, invisible_ms=10 * SECOND)
    assert messages == [(0, 2, 1)]
    lab.now_ms = midnight_ms + 1 * SECOND
    assert lab.ack(handle, (0, 0)) == [(0, 0, "OK")]
    assert lab.commit_offset == 1
    lab.now_ms = midnight_ms + 2 * SECOND
    assert lab.ack(handle, (2, 2)) == [(2, 2, "OK")]
    assert lab.commit_offset == 1, "an ack out of order moves nothing"
    lab.now_ms = midnight_ms + 3 * SECOND
    assert lab.change(handle, 17 * SECOND, (1, 1)) == [(1, 1, "OK")]
    return lab, handle, midnight_ms


def test_rip_51_the_message_is_acked_in_time(rip_51: tuple[LaneLab, str, int]) -> None:
    lab, handle, midnight_ms = rip_51
    lab.now_ms = midnight_ms + 15 * SECOND
    assert nothing(lab) is Reason.NO_MESSAGE
    assert lab.ack(handle, (1, 1)) == [(1, 1, "OK")]
    assert lab.commit_offset == 3
    assert popped(lab)[1] == [(3, 4, 1)]


def test_rip_51_the_message_comes_again_with_its_acked_successor(rip_51: tuple[LaneLab, str, int]) -> None:
    lab, handle, midnight_ms = rip_51
    lab.now_ms = midnight_ms + 19_999
    assert nothing(lab) is Reason.NO_MESSAGE
    lab.now_ms = midnight_ms + 20 * SECOND
    again, messages = popped(lab, 3)
    assert messages == [(1, 2, 2), (3, 3, 1)]
    assert ("expired", 1, 1, 1) in lab.steps
    assert lab.ack(handle, (1, 1)) == [(1, 1, "STALE_HANDLE")]
    assert lab.last.runs[0].code == 0
    assert lab.ack(again, (1, 3)) == [(1, 3, "OK")]
    assert lab.commit_offset == 4


def test_a_change_keeps_the_pop_time_and_gives_a_handle_that_says_so() -> None:
    lab = LaneLab(2)
    handle, _ = popped(lab, 2)
    lab.now_ms += 500
    assert lab.change(handle, 60_000, (1, 1)) == [(1, 1, "OK")]
    run = lab.last.runs[0]
    assert (run.pop_time_ms, run.invisible_time_ms) == (lab.now_ms - 500, 60_500)
    assert run.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY
    assert run.handle is not None
    changed = decode_handle(lab.last.handles[run.handle])
    assert changed is not None
    assert changed.next_visible_time_ms == lab.now_ms + 60_000
    assert lab.ack(lab.last.handles[run.handle], (1, 1)) == [(1, 1, "OK")]


def test_a_waiting_pop_is_served_by_the_record_that_frees_the_lane() -> None:
    """By the ack of what blocked it; and by the first record at its true moment, when several members block."""
    lab = LaneLab(4)
    handle, _ = popped(lab, 2, invisible_ms=10_000)
    assert lab.pop(2, order=True, poll_time_ms=60_000, op_id="waits") is None
    lab.change(handle, 30_000, (1, 1))
    assert lab.ack(handle, (0, 0)) == [(0, 0, "OK")]
    assert "waits" not in lab.answers
    lab.ack(handle, (1, 1))
    assert [(m.first, m.last) for m in lab.answers["waits"].messages] == [(2, 3)]
    assert lab.pop(2, order=True, poll_time_ms=60_000, op_id="later") is None
    second = lab.answers["waits"].handle
    lab.change(second, 20_000, (3, 3))
    lab.tick(10_000)
    assert "later" not in lab.answers, "the first member is visible, the second still blocks"
    lab.tick(10_000)
    assert [(m.first, m.last, m.attempt) for m in lab.answers["later"].messages] == [(2, 3, 2)]


def test_the_same_attempt_id_gets_the_batch_again_with_the_same_attempts() -> None:
    lab = LaneLab(4)
    first, _ = popped(lab, 2, attempt_id="a")
    assert nothing(lab, 2, attempt_id="b") is Reason.NO_MESSAGE
    again, messages = popped(lab, 3, attempt_id="a")
    assert messages == [(0, 2, 1)]
    assert lab.ack(first, (0, 0)) == [(0, 0, "STALE_HANDLE")]
    assert lab.ack(again, (0, 0)) == [(0, 0, "OK")]


def test_suspend_does_not_count_the_delivery() -> None:
    lab = LaneLab(2)
    handle, _ = popped(lab, 2)
    lab.change(handle, 0, (0, 0), suspend=True)
    lab.change(handle, 0, (1, 1))
    assert popped(lab, 2)[1] == [(0, 0, 1), (1, 1, 2)]


def test_a_lane_has_one_mode() -> None:
    lab = LaneLab(4)
    handle, _ = popped(lab, 1)
    assert lab.pop(1).reason is Reason.WRONG_MODE
    assert lab.decision.operations[0].code == 13
    answer = lab.do(Policy(**QUEUE, group=GROUP, orderly=False))
    assert answer is not None
    assert answer.reason is Reason.WRONG_MODE
    lab.ack(handle, (0, 0))
    assert lab.do(Policy(**QUEUE, group=GROUP, orderly=False)).applied  # type: ignore[union-attr]
    assert lab.pop(1).messages[0].first == 1
    assert nothing(lab) is Reason.WRONG_MODE


def test_an_orderly_handle_is_wrong_in_a_concurrent_lane() -> None:
    lab = LaneLab(4)
    handle, _ = popped(lab, 1)
    lab.ack(handle, (0, 0))
    lab.do(Policy(**QUEUE, group=GROUP, orderly=False))
    lab.pop(1)
    assert lab.ack(handle, (1, 1)) == [(1, 1, "WRONG_MODE")]


def test_what_is_no_member_is_refused_and_changes_nothing() -> None:
    lab = LaneLab(6)
    handle, _ = popped(lab, 2)
    assert lab.ack(handle, (0, 4)) == [(0, 1, "OK"), (2, 4, "OUTSIDE_POP")]
    assert lab.change(handle, 5_000, (5, 5)) == [(5, 5, "OUTSIDE_POP")]
    assert lab.change(handle, 5_000, (0, 0)) == [(0, 0, "ALREADY_ACKED")]
    run = lab.last.runs[0]
    assert (run.code, run.pop_time_ms, run.invisible_time_ms, run.revive_queue_id) == (0, 0, 0, 0)


def test_an_attempt_limit_dead_letters_when_the_batch_is_free() -> None:
    lab = LaneLab(3)
    lab.do(Policy(**QUEUE, group=GROUP, orderly=True, max_attempts=2))
    popped(lab, 2, invisible_ms=1_000)
    lab.tick(1_000)
    assert not lab.decision.dead_letters
    assert popped(lab, 3, invisible_ms=1_000)[1] == [(0, 1, 2), (2, 2, 1)]
    lab.tick(1_000)
    assert [(d.first, d.last, d.attempts) for d in lab.decision.dead_letters] == [(0, 1, 2)]
    assert lab.commit_offset == 2
    assert popped(lab)[1] == [(2, 2, 2)]


def test_a_reset_overrides_a_block_and_forgets_counts() -> None:
    lab = LaneLab(4)
    handle, _ = popped(lab, 3)
    lab.do(ResetOffset(**QUEUE, group=GROUP, queue_offset=1))
    assert lab.ack(handle, (1, 1)) == [(1, 1, "STALE_HANDLE")]
    assert popped(lab, 2)[1] == [(1, 2, 1)]


def test_cancel_and_return_client_free_the_lane() -> None:
    lab = LaneLab(4)
    lab.pop(2, order=True, op_id="p", client_id="c")
    cancelled = lab.do(Cancel(**QUEUE, target_op_id="p"))
    assert cancelled is not None
    assert cancelled.released == [(0, 1)]
    assert popped(lab, 2, client_id="c")[1] == [(0, 1, 1)]
    returned = lab.do(ReturnClient(**QUEUE, group=GROUP, client_id="c"))
    assert returned is not None
    assert returned.released == [(0, 1)]
    assert popped(lab, 2)[1] == [(0, 1, 2)]


def test_after_a_day_without_an_operation_only_the_counts_are_forgotten() -> None:
    lab = LaneLab(3)
    popped(lab, 2, invisible_ms=1_000)
    handle, messages = popped(lab, 2, invisible_ms=1_000, after_ms=1_000)
    assert messages == [(0, 1, 2)]
    lab.now_ms += 24 * 3_600_000 + 1_000
    assert lab.ack(handle, (0, 0)) == [(0, 0, "OK")], "the batch is still there"
    assert popped(lab, 2)[1] == [(1, 1, 2), (2, 2, 1)], "what was counted before is forgotten, this delivery is not"


def test_a_change_of_another_lite_topic_is_misrouted() -> None:
    lab = LaneLab(2)
    handle, _ = popped(lab, 1)
    entry = ChangeEntry(0, [(0, 0)], 5_000, lite_topic="room-7")
    answer = lab.do(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=[entry]))
    assert answer is not None
    assert answer.runs[0].reason is Reason.MISROUTED


def test_ten_thousand_members_and_no_value_over_4_kib() -> None:
    """RocketMQ's 64 bits make the 65th member look like the first."""
    lab = LaneLab(10_000)
    handle, messages = popped(lab, 10_000)
    assert messages == [(0, 9_999, 1)]
    for offset in range(9_999, 0, -7):
        lab.ack(handle, (offset, offset))
        lab.change(handle, 20_000 + offset, (offset - 1, offset - 1))
    assert lab.commit_offset == 0
    assert max(len(value) for value in lab.kv.families["state"].values()) <= 4_096
    lab.ack(handle, (0, 9_999))
    assert lab.commit_offset == 10_000


def test_a_lane_that_becomes_poppable_is_notified_once() -> None:
    """When its batch is free by itself, and when it is done; not while a later member blocks."""
    lab = LaneLab(5)
    handle, _ = popped(lab, 2, invisible_ms=10_000)
    assert not lab.decision.notifications
    lab.change(handle, 30_000, (1, 1))
    lab.tick(10_000)
    assert not lab.decision.notifications, "the second member blocks"
    lab.tick(20_000)
    assert [(n.group, n.at_ms) for n in lab.decision.notifications] == [(GROUP, lab.now_ms)]
    again, _ = popped(lab, 2)
    lab.ack(again, (0, 0))
    assert not lab.decision.notifications
    lab.ack(again, (1, 1))
    assert len(lab.decision.notifications) == 1
    lab.tick(1)
    assert not lab.decision.notifications


@pytest.mark.parametrize("invisible_ms", [-1, 12 * 3_600_000 + 1])
def test_a_time_out_of_range_is_refused_and_changes_nothing(invisible_ms: int) -> None:
    lab = LaneLab(3)
    handle, _ = popped(lab, 2)
    before = dict(lab.kv.families["state"])
    assert lab.change(handle, invisible_ms, (0, 0)) == [(0, 0, "INVALID_PARAMETER")]
    assert [(row.reason, row.code, row.applied) for row in lab.decision.operations] == [
        ("INVALID_PARAMETER", 29, False)
    ]
    changed = {key for key, value in lab.kv.families["state"].items() if before.get(key) != value}
    assert {key[key.index(b"\0\0\0\0") + 4 :][:1] for key in changed} <= {b"Q", b"F"}, (
        "only the queue's clock and op_ids"
    )


def test_an_attempt_id_of_a_megabyte_is_refused() -> None:
    lab = LaneLab(3)
    assert nothing(lab, attempt_id="x" * 1_000_000) is Reason.INVALID_PARAMETER


def test_a_handle_of_another_lane_is_unknown() -> None:
    lab = LaneLab(3)
    handle, _ = popped(lab, 2)
    popped(lab, 2, group="other")
    assert lab.ack(handle, (0, 0), group="other") == [(0, 0, "UNKNOWN_HANDLE")]


def test_a_concurrent_lane_with_live_leases_takes_no_orderly_pop() -> None:
    lab = LaneLab(3)
    concurrent = lab.pop(1)
    assert nothing(lab) is Reason.WRONG_MODE
    answer = lab.do(Policy(**QUEUE, group=GROUP, orderly=True))
    assert answer is not None
    assert answer.reason is Reason.WRONG_MODE
    lab.ack(concurrent.handle, (0, 0))
    assert popped_after_policy(lab) == [(1, 2, 1)]


def popped_after_policy(lab: LaneLab) -> list[tuple[int, int, int]]:
    lab.do(Policy(**QUEUE, group=GROUP, orderly=True))
    return popped(lab, 3)[1]


def test_a_refused_policy_does_not_end_the_idle_time_of_a_lane() -> None:
    """Only operations that reach the lane count: the consumed counts are dropped by the first of them."""
    lab = LaneLab(written=3)
    lab.pop(2, 1_000, order=True)
    lab.pop(2, 1_000, order=True, after_ms=2_000)
    before = lab.lane().order_info.unacked()
    counts = [member.count for _, _, member in before]
    refused = lab.do(Policy(**QUEUE, group=GROUP, orderly=False), after_ms=25 * 3_600_000)
    assert refused is not None
    assert refused.reason == "WRONG_MODE"
    assert [member.count for _, _, member in lab.lane().order_info.unacked()] == counts
    assert any(counts)
