"""What blocks a lane, from views of lanes."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from pipelines.control.lane_views import BatchView, LaneDetail, LaneView, MemberView, ParkedPopView, QueueView
from pipelines.explain.lane_story import lane_story, lane_story_lines
from pipelines.explain.story import GroupStory, story_of
from tests.support.kernel_history import NOON_MS, KernelHistory

WAITING = ParkedPopView("op", "c", None, 10, NOON_MS + 20_000)


def lane(detail: LaneDetail, **changed: Any) -> LaneView:
    known = {
        "group": "g",
        "commit_offset": 4,
        "next_offset": 10,
        "lag": 6,
        "leased": 6,
        "available": 0,
        "parked": len(detail.waiting),
        "acked": 4,
        "dead_lettered": 0,
        "epoch": 1,
        "orderly": False,
    }
    return LaneView(**{**known, **changed}, detail=detail)


def queue(view: LaneView, commit_position: int = 10) -> QueueView:
    return QueueView("orders", 0, "t", "simple", NOON_MS, 0, commit_position, 0, [view])


def findings(view: LaneView, first: GroupStory | None = None, commit_position: int = 10) -> tuple[bool, list[str]]:
    story = lane_story(queue(view, commit_position), view, first, NOON_MS + 1_000, UTC)
    return story.is_stuck, story.findings


def test_a_lane_that_has_done_everything() -> None:
    view = lane(LaneDetail(None, []), commit_offset=10, lag=0, leased=0)
    assert findings(view) == (False, ["everything that is poppable is done"])


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        (LaneDetail(None, [], paused_until_ms=NOON_MS + 1_200), "it is paused until 12:00:01.200"),
        (
            LaneDetail(None, [], in_flight_max=6),
            "in-flight limit is reached: 6 messages are leased, and in_flight_max is 6",
        ),
    ],
)
def test_a_lane_that_a_rule_holds(detail: LaneDetail, words: str) -> None:
    is_stuck, found = findings(lane(detail))
    assert is_stuck
    assert words in found[0]


def test_a_rule_that_holds_no_more() -> None:
    view = lane(LaneDetail(None, [], paused_until_ms=NOON_MS, in_flight_max=7), available=2)
    assert findings(view) == (
        False,
        ["nobody pops: 2 returned and 0 new offsets are ready, and no pop waits for them"],
    )


def test_an_orderly_lane_that_a_message_blocks() -> None:
    history = KernelHistory()
    history.pop(-5, "holder", 6, order=True)
    (first,) = story_of(history.rows(4), ["g"], NOON_MS + 1_000, UTC).groups
    member = MemberView(4, 9, NOON_MS + 25_000, 2, suspended=False)
    batch = BatchView(1, NOON_MS - 5_000, 30_000, None, 0, 9, 10, 4, NOON_MS + 25_000, [member])
    is_stuck, found = findings(lane(LaneDetail(batch, [WAITING]), orderly=True), first)
    assert is_stuck
    assert " ".join(found) == (
        "message 4 blocks it: popped by holder at 11:59:55.000 with 10 messages, of which 6 are not acked (attempt 2);"
        " free at 12:00:25.000, in 24 s, or when all are acked"
    )


def test_a_concurrent_lane_tells_what_its_commit_offset_waits_for() -> None:
    history = KernelHistory()
    history.pop(0, "holder", 10)
    (first,) = story_of(history.rows(4), ["g"], NOON_MS + 1_000, UTC).groups
    is_stuck, found = findings(lane(LaneDetail(None, [WAITING])), first)
    assert not is_stuck
    assert found == [
        "its commit offset waits for message 4: delivered once. holder holds it until 12:00:30.000, for another 29 s.",
        "6 messages are being handled, and pops wait: nothing else is ready",
    ]


def test_nobody_pops() -> None:
    is_stuck, found = findings(lane(LaneDetail(None, []), leased=0, next_offset=4), commit_position=1_000)
    assert not is_stuck
    assert found == ["nobody pops: 0 returned and 996 new offsets are ready, and no pop waits for them"]


def test_the_lines_name_counts_waiting_pops_and_quotas() -> None:
    view = lane(LaneDetail(None, [WAITING], quotas={"pops_per_s_max": 5}))
    lines = list(lane_story_lines(lane_story(queue(view), view, None, NOON_MS, UTC), UTC))
    assert lines[0] == "orders/0, group g: not held"
    assert lines[-3:] == [
        "  concurrent, done up to 4, 6 behind what is poppable, 6 leased, 0 waiting for redelivery, 0 dead letters",
        "  c waits for 10 until 12:00:20.000",
        "  quota: pops_per_s_max is 5; beyond it operations are refused with QUOTA_EXCEEDED",
    ]
