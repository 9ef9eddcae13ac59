"""A record searches a bounded number of pages for tags; the search goes on in later records, in either mode."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import msgspec
import pytest

from broker_state.kernel.context import op_context
from broker_state.store.keys import DEADLINE_PAUSE, NEVER_MS, QueueTag, queue_prefix
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.pages import PAGE_OFFSETS, UnitFactsPage
from broker_state.store.state_records import QueueRecord
from broker_state.store.tag_index import TAG_CLASSES
from popstream.wire.command import Dispatch, ForgetLane, Pop, ResetOffset, Tick, WrittenRange
from tests.support.in_process.lane_lab import GROUP, QUEUE, TOPIC, LaneLab

if TYPE_CHECKING:
    from popstream.wire.answer import Answer

OTHER = 7
WANTED = OTHER + TAG_CLASSES
"""A tag of the same class: the index of tags cannot tell them apart, so that pages are searched."""
ELSE = OTHER + 1
"""A tag of a class of its own."""
PAUSE_MS = 200
PAGES_A_STEP = 5


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a record search five pages of one run each."""
    monkeypatch.setattr(op_context, "TAG_SEARCH_COST_MAX", 2 * PAGES_A_STEP)


def lab_of(pages: int, *, wanted_at: int | None = None, wanted: int = WANTED) -> LaneLab:
    """A backlog of `pages` full pages with another tag, but for one offset."""
    lab = LaneLab()
    end = pages * PAGE_OFFSETS
    split = end if wanted_at is None else wanted_at
    ranges = [WrittenRange(0, split - 1, tag=OTHER)] if split else []
    if wanted_at is not None:
        ranges += [WrittenRange(split, split, tag=wanted), WrittenRange(split + 1, end - 1, tag=OTHER)]
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


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("wanted_at", [None, 39 * PAGE_OFFSETS + 3])
def test_pages_without_any_tag_of_its_classes_are_not_read(
    *, order: bool, wanted_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_of(40, wanted_at=wanted_at, wanted=ELSE)
    decode = Mock(side_effect=UnitFactsPage.decode)
    monkeypatch.setattr(UnitFactsPage, "decode", decode)
    lab.overlay = Overlay(lab.kv)
    answer = lab.do(pop(order=order, tags=[ELSE]))
    assert answer is not None
    assert [leased.first for leased in answer.messages] == ([] if wanted_at is None else [wanted_at])
    assert decode.call_count == (0 if wanted_at is None else 1)
    assert lab.lane().record.paused_until_ms == 0
    if wanted_at is None:
        assert searched(lab) == 40 * PAGE_OFFSETS


@pytest.mark.parametrize("order", [False, True])
def test_holes_among_what_is_not_read_are_passed_with_it(*, order: bool) -> None:
    lab = LaneLab()
    pages, held = range(1, 40), 3
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, held - 1, tag=ELSE)], skip=[(held, held)]))
    for page in pages:
        first, last = page * PAGE_OFFSETS, page * PAGE_OFFSETS + PAGE_OFFSETS - 1
        lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(first, last - 1, tag=OTHER)], skip=[(last, last)]))
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(held + 1, PAGE_OFFSETS - 1, tag=OTHER)]))
    held_answer = lab.do(pop(order=order, tags=[ELSE]))
    assert held_answer is not None
    if order:
        lab.ack(held_answer.handle, (0, held - 1))
    lab.do(pop(order=order, tags=[ELSE]))
    record = lab.lane().record
    assert record.next_offset == 40 * PAGE_OFFSETS
    assert record.holes == 1 + len(pages)
    assert record.passed_over == record.next_offset - record.holes - held
    assert record.paused_until_ms == 0


def test_a_page_with_delivery_times_is_looked_at_for_every_tag() -> None:
    lab = lab_of(4)
    at = 4 * PAGE_OFFSETS
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(at, at + 63, tag=OTHER, deliver_at_ms=lab.now_ms + 5_000)]))
    lab.do(pop(tags=[ELSE]))
    assert (searched(lab), lab.lane().record.available) == (at, PAGE_OFFSETS)


def test_pages_from_before_there_was_an_index_are_read() -> None:
    lab = lab_of(12, wanted_at=11 * PAGE_OFFSETS, wanted=ELSE)
    forget_the_index(lab)
    lab.do(pop(tags=[ELSE]))
    assert searched(lab) == PAGES_A_STEP * PAGE_OFFSETS, "those below the commit position are not in the index"
    lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(12 * PAGE_OFFSETS, 40 * PAGE_OFFSETS - 1, tag=OTHER)]))
    lab.do(pop(tags=[ELSE]), after_ms=PAUSE_MS)
    answer = lab.do(pop(tags=[ELSE]), after_ms=PAUSE_MS)
    assert answer is not None
    assert [leased.first for leased in answer.messages] == [11 * PAGE_OFFSETS]
    lab.do(pop(tags=[ELSE]), after_ms=PAUSE_MS)
    assert lab.lane().record.next_offset == 40 * PAGE_OFFSETS, "those beyond it are"


def forget_the_index(lab: LaneLab) -> None:
    """Bring the stored queue into the form that it had before there was an index."""
    prefix, state = queue_prefix(TOPIC, 0), lab.kv.families[STATE]
    key = prefix + QueueTag.RECORD
    state[key] = msgspec.structs.replace(QueueRecord.decode(state[key]), tags_indexed_from=-1).encode()
    for node in [each for each in state if each.startswith(prefix + QueueTag.TAG_INDEX)]:
        del state[node]
    lab.overlay = Overlay(lab.kv)
