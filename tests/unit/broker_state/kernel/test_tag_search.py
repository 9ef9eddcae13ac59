"""A record searches a bounded number of pages for tags; the search goes on in later records, in either mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.kernel.context import op_context
from broker_state.store.keys import DEADLINE_PAUSE, NEVER_MS, queue_prefix
from broker_state.store.pages import PAGE_OFFSETS
from popstream.wire.command import Dispatch, ForgetLane, Pop, ResetOffset, Tick, WrittenRange
from tests.support.in_process.lane_lab import GROUP, QUEUE, TOPIC, LaneLab

if TYPE_CHECKING:
    from popstream.wire.answer import Answer

OTHER, WANTED = 7, 8
PAUSE_MS = 200
PAGES_A_STEP = 5


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a record search five pages of one run each."""
    monkeypatch.setattr(op_context, "TAG_SEARCH_COST_MAX", 2 * PAGES_A_STEP)


def lab_of(pages: int, *, wanted_at: int | None = None) -> LaneLab:
    """A backlog of `pages` full pages with another tag, but for one offset."""
    lab = LaneLab()
    end = pages * PAGE_OFFSETS
    split = end if wanted_at is None else wanted_at
    ranges = [WrittenRange(0, split - 1, tag=OTHER)] if split else []
    if wanted_at is not None:
        ranges += [WrittenRange(split, split, tag=WANTED), WrittenRange(split + 1, end - 1, tag=OTHER)]
    lab.do(Dispatch(**QUEUE, ranges=ranges))
    return lab


def pop(*, order: bool = False, op_id: str | None = None, poll_time_ms: int = 0, tags: list[int] | None = None) -> Pop:
    return Pop(
        **QUEUE,
        group=GROUP,
        max_messages=10,
        invisible_time_ms=60_000,
        order=order,
        op_id=op_id,
        poll_time_ms=poll_time_ms,
        tags=[WANTED] if tags is None else tags,
    )


def searched(lab: LaneLab) -> int:
    return lab.lane().acked.floor


@pytest.mark.parametrize("order", [False, True])
def test_a_parked_pop_is_served_after_as_many_steps_as_its_message_is_far(*, order: bool) -> None:
    lab = lab_of(12, wanted_at=11 * PAGE_OFFSETS + 3)
    assert lab.do(pop(order=order, op_id="far", poll_time_ms=60_000)) is None
    for step in (1, 2):
        assert searched(lab) == step * PAGES_A_STEP * PAGE_OFFSETS
        assert lab.lane().record.paused_until_ms == lab.now_ms + PAUSE_MS
        lab.do(Tick(**QUEUE), after_ms=PAUSE_MS)
    answer: Answer = lab.answers["far"]
    assert [(leased.first, leased.last) for leased in answer.messages] == [(11 * PAGE_OFFSETS + 3,) * 2]
    assert lab.lane().record.paused_until_ms == 0


@pytest.mark.parametrize("order", [False, True])
def test_during_a_pause_nothing_of_the_lane_is_searched_or_served(*, order: bool) -> None:
    lab = lab_of(12)
    first = lab.do(pop(order=order))
    assert first is not None
    assert first.reason == "NO_MESSAGE"
    before = searched(lab)
    for tags in ([WANTED], [OTHER]):
        answer = lab.do(pop(order=order, tags=tags), after_ms=PAUSE_MS // 2 - 1)
        assert answer is not None
        assert answer.reason == "NO_MESSAGE"
    assert searched(lab) == before
    served = lab.do(pop(order=order, tags=[OTHER]), after_ms=2)
    assert served is not None
    assert served.messages[0].first == before


def test_the_pops_of_a_record_share_the_limit() -> None:
    lab = lab_of(12)
    for number in range(3):
        lab.do(pop(op_id=f"op-p{number}", poll_time_ms=60_000))
    assert searched(lab) == PAGES_A_STEP * PAGE_OFFSETS
    lab.do(Tick(**QUEUE), after_ms=PAUSE_MS)
    assert searched(lab) == 2 * PAGES_A_STEP * PAGE_OFFSETS
    lab.do(Tick(**QUEUE), after_ms=PAUSE_MS)
    assert searched(lab) == 12 * PAGE_OFFSETS
    assert lab.lane().record.parked == 3


@pytest.mark.parametrize("order", [False, True])
def test_a_reset_or_the_end_of_the_lane_ends_the_pause(*, order: bool) -> None:
    for command in (ResetOffset(**QUEUE, group=GROUP, queue_offset=0), ForgetLane(**QUEUE, group=GROUP)):
        lab = lab_of(12)
        lab.do(pop(order=order))
        lab.do(command)
        stored = lab.kv.deadlines(queue_prefix(TOPIC, 0), None, NEVER_MS, 10)
        assert not [ref for ref in stored if ref.kind == DEADLINE_PAUSE]
        answer = lab.do(pop(order=order, tags=[OTHER]))
        assert answer is not None
        assert answer.messages[0].first == 0


def test_what_was_found_before_the_limit_is_given_at_once() -> None:
    lab = lab_of(12, wanted_at=0)
    answer = lab.do(pop())
    assert answer is not None
    assert [(leased.first, leased.last) for leased in answer.messages] == [(0, 0)]
    assert lab.lane().record.paused_until_ms == 0
    assert lab.lane().record.next_offset == PAGE_OFFSETS * PAGES_A_STEP


def test_a_backlog_without_any_tag_is_passed_over_at_once() -> None:
    lab = LaneLab(1_000_000)
    for first in range(1_000_000, 4_000_000, 1_000_000):
        lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(first, first + 999_999)]))
    lab.do(pop())
    assert searched(lab) == 4_000_000
    assert lab.lane().record.paused_until_ms == 0
