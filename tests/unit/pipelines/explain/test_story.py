"""The stories of histories that the kernel decided."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipelines.explain.leases import leases_of
from pipelines.explain.message_events import EventKind, UnitRow, events_of
from pipelines.explain.story import MessageStory, story_lines, story_of
from popstream.wire.command import Policy, Redrive, ResetOffset, ReturnClient
from tests.support.kernel_history import NOON_MS, KernelHistory

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT = UnitRow("t", "simple", 0, 0, 1, NOON_MS - 500, 52, 0, True, None, None)


def story(
    history: KernelHistory, offset: int = 0, at_s: float = 600, groups: Sequence[str] | None = None, **unit: Any
) -> MessageStory:
    rows = history.rows(offset, UNIT._replace(queue_offset=offset, **unit))
    return story_of(rows, groups, NOON_MS + round(at_s * 1000), UTC)


def verdict(history: KernelHistory, offset: int = 0, at_s: float = 600) -> str:
    (group,) = story(history, offset, at_s, ["g"]).groups
    return group.verdict


def kinds(history: KernelHistory, offset: int = 0) -> list[str]:
    return [event.kind for event in events_of(history.rows(offset), "g")]


def test_a_message_that_was_handled_at_once() -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a", 2))
    assert list(story_lines(story(history), UTC)) == [
        "orders/0/0, 2026-11-21, times in UTC",
        "  11:59:59.500  written by its producer: 52 bytes",
        "  12:00:00.000  dispatched, with 0..9",
        "  12:00:00.000  poppable: the commit position of the queue moved from 0 to 10",
        "",
        "group g",
        "  12:00:01.000  leased to a until 12:00:31.000, for 30 s: attempt 1, with 0..1",
        "  12:00:02.000  acked by a, 1 s after it was delivered",
        "  12:00:02.000  the commit offset of the group moved from 0 to 1, past the message",
        "  => delivered once. Done by a at 12:00:02.000, 2.5 s after it was written.",
    ]


def test_a_handler_that_was_slower_than_its_lease() -> None:
    history = KernelHistory()
    first = history.pop(1, "slow")
    second = history.pop(31, "b")  # 30 s after the first: its record brings the expiry
    history.ack(33.1, "slow", first)
    history.ack(34, "b", second)
    assert kinds(history) == ["leased", "expired", "leased", "refused", "acked", "passed"]
    assert verdict(history) == (
        "delivered twice: the first lease of 30 s expired 2.1 s before its ack; its handler took 32.1 s."
        " Done by b at 12:00:34.000, 34.5 s after it was written."
    )
    refused = events_of(history.rows(), "g")[3]
    assert (refused.reason, refused.client_id, refused.operation) == ("STALE_HANDLE", "slow", "ack")
    assert "ack of delivery 1 by slow refused: STALE_HANDLE, the message had been delivered again since" in "\n".join(
        story_lines(story(history), UTC)
    )


def test_an_expiry_is_told_at_its_deadline_and_not_when_it_was_decided() -> None:
    history = KernelHistory()
    history.pop(1, "gone", invisible_s=10)
    history.pop(60, "b")
    expired = events_of(history.rows(), "g")[1]
    assert (expired.kind, expired.at_ms) == (EventKind.EXPIRED, NOON_MS + 11_000)
    assert verdict(history, at_s=61) == (
        "delivered twice: the first lease of 10 s expired, and gone sent no ack: it was stopped, hung or too slow."
        " b holds it until 12:01:30.000, for another 29 s."
    )


def test_an_ack_after_the_deadline_that_nobody_minded() -> None:
    history = KernelHistory()
    handle = history.pop(1, "a", invisible_s=10)
    history.tick(12)
    history.ack(14, "a", handle)
    lines = list(story_lines(story(history), UTC))
    late = "acked by a, 13 s after it was delivered, 3 s after the lease had expired; nobody had got the message since"
    assert any(late in line for line in lines)
    assert verdict(history).startswith("delivered once. Done by a")


def test_a_lease_that_was_extended() -> None:
    history = KernelHistory()
    handle = history.pop(1, "a", invisible_s=10)
    history.change(9, "a", handle, 20)
    lines = "\n".join(story_lines(story(history, at_s=12), UTC))
    assert "12:00:09.000  a changed the lease to end at 12:00:29.000, 8 s after it was delivered" in lines
    assert verdict(history, at_s=12) == "delivered once. a holds it until 12:00:29.000, for another 17 s."
    assert verdict(history, at_s=40).endswith("what came after that is not in the tables yet.")


def test_a_handler_that_raised() -> None:
    history = KernelHistory()
    handle = history.pop(1, "a")
    history.change(2.5, "a", handle, 5, release="after", cause="ValueError: no milk")
    lines = "\n".join(story_lines(story(history, at_s=3), UTC))
    raised = "a released it: its handler raised ValueError: no milk, 1.5 s after it was delivered"
    assert f"{raised}; it can be popped again from 12:00:07.500" in lines
    assert verdict(history, at_s=3) == "delivered once. It backs off until 12:00:07.500."
    assert verdict(history, at_s=10) == "delivered once. It waits for a pop of the group, for 2.5 s now."
    history.ack(9, "b", history.pop(8, "b"))
    assert "delivered twice: its handler raised ValueError: no milk after 1.5 s. Done by b" in verdict(history)


def test_a_client_that_gave_back_or_was_gone() -> None:
    history = KernelHistory()
    history.change(2, "a", history.pop(1, "a"), 0)
    history.pop(3, "b")
    history.do(4, ReturnClient(v=1, topic="orders", queue_id=0, group="g", client_id="b"))
    history.ack(6, "c", history.pop(5, "c"))
    assert verdict(history).startswith(
        "delivered 3 times: a released it after 1 s; its client was gone, and what it held was released after 1 s."
    )
    ended = "the lease of b ended: its client was gone, and what it held was released, 1 s after it was delivered"
    assert ended in "\n".join(story_lines(story(history), UTC))


def test_many_deliveries_are_counted_by_their_cause() -> None:
    history = KernelHistory()
    history.do(0, Policy(v=1, topic="orders", queue_id=0, group="g", max_attempts=5))
    for second in (1, 11, 21):
        history.change(second + 1, "a", history.pop(second, "a"), 0, release="after", cause="KeyError: 'x'")
    history.pop(31, "b", invisible_s=2)
    history.change(42, "a", history.pop(41, "a"), 0, release="after", cause="KeyError: 'x'")
    found = story(history, groups=["g"]).groups[0]
    assert (found.state, found.deliveries) == ("dead", 5)
    assert found.verdict == (
        "delivered 5 times: its handler raised KeyError: 'x', 3 times; a lease expired without an ack, once."
        " A dead letter since 12:00:42.000 (attempt_limit): it counts as done."
    )


def test_a_message_that_its_handler_rejected() -> None:
    history = KernelHistory()
    history.reject(2, "a", history.pop(1, "a"), cause="no such customer")
    told_of_it = "rejected by a, so that it became a dead letter: no such customer, in attempt 1, 1 s after"
    assert told_of_it in "\n".join(story_lines(story(history), UTC))
    assert verdict(history) == (
        "delivered once. A dead letter since 12:00:02.000 (no such customer): it counts as done."
    )


def test_a_dead_letter_that_was_redriven() -> None:
    history = KernelHistory()
    history.reject(2, "a", history.pop(1, "a"), cause="no milk")
    redrive = Redrive(v=1, topic="orders", queue_id=0, group="g", offsets=[(0, 0)], to="group", by="anna@bar")
    history.do(9, msgspec.structs.replace(redrive, comment="the milk is back"))
    history.do(10, msgspec.structs.replace(redrive, group=""))  # refused
    told = "12:00:09.000  a redrive was announced, to the group, by anna@bar: the milk is back"
    assert [line.strip() for line in story_lines(story(history), UTC) if "redrive" in line] == [told]
    assert kinds(history) == ["leased", "dead_lettered", "passed", "redrive_announced"]


def test_an_orderly_lane_delivers_again_behind_an_unacked_message() -> None:
    history = KernelHistory()
    first = history.pop(1, "a", 3, invisible_s=10, order=True)
    history.ack(2, "a", first, offset=1)
    second = history.pop(12, "b", 3, invisible_s=10, order=True)
    for offset in range(3):
        history.ack(13, "b", second, offset=offset)
    text = verdict(history, 1)
    assert text.startswith("delivered twice: it was acked, but a message before it was not")
    assert "Done by b at 12:00:13.000" in text


def test_a_reset_tells_the_deliveries_before_and_after() -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.do(3, ResetOffset(v=1, topic="orders", queue_id=0, group="g", queue_offset=0))
    assert verdict(history) == "delivered once. The lane was moved back or reset: it will be delivered again."
    history.ack(5, "b", history.pop(4, "b"))
    assert kinds(history) == ["leased", "acked", "passed", "moved_back", "leased", "acked", "passed"]
    assert verdict(history).startswith("delivered twice: the lane was moved back or reset after it was done. Done by b")


def test_messages_that_nobody_got() -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.do(3, ResetOffset(v=1, topic="orders", queue_id=0, group="g", queue_offset=5))
    assert verdict(history, 7) == "Not delivered yet: no pop of the group has come to it."
    assert verdict(history, 3).startswith(
        "Not delivered, and done: passed over by the tags of a pop, skipped by a reset"
    )
    (group,) = story(history, 7, groups=["g"], duplicate_of=4).groups
    assert group.verdict == "Not delivered: it repeats the deduplication id of offset 4."
    (group,) = story(history, 7, groups=["g"], deliver_at_ms=NOON_MS + 700_000).groups
    assert group.verdict == "Not delivered yet: its delivery time is 12:11:40.000."


def test_each_group_has_its_own_story() -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.pop(3, "x", group="other")
    assert [(each.group, each.state) for each in story(history).groups] == [("g", "done"), ("other", "leased")]


def test_an_unreadable_handle_is_told_without_a_delivery() -> None:
    history = KernelHistory()
    history.pop(1, "a")
    history.ack(2, "intruder", "1.AAAA")
    assert "ack by intruder refused: UNKNOWN_HANDLE, no lease of this lane has such a handle" in "\n".join(
        story_lines(story(history), UTC)
    )


def test_a_story_is_data() -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    document = msgspec.json.decode(msgspec.json.encode(story(history)))
    assert document["groups"][0]["state"] == "done"
    assert document["groups"][0]["events"][0] == {
        "kind": "leased",
        "at_ms": NOON_MS + 1_000,
        "group": "g",
        "client_id": "a",
        "attempt": 1,
        "epoch": document["groups"][0]["events"][0]["epoch"],
        "until_ms": NOON_MS + 31_000,
        "cause": "pop",
        "first": 0,
        "last": 0,
    }
    assert document["unit"]["size_bytes"] == 52


def test_a_history_whose_beginning_is_cut_is_told_from_where_it_is_known() -> None:
    history = KernelHistory()
    history.ack(34, "b", history.pop(31, "b"))
    del history.deliveries[0]
    rows = history.rows()
    assert leases_of(events_of(rows, "g")) == []
    (group,) = story_of(rows, None, NOON_MS, UTC).groups
    assert group.verdict.startswith("Not delivered, and done")


@pytest.mark.parametrize("time_ms", [-(1 << 62), 1 << 62])
def test_a_producer_may_write_any_time(time_ms: int) -> None:
    lines = list(story_lines(story(KernelHistory(), groups=["g"], store_time_ms=time_ms), UTC))
    assert f"{time_ms} ms since 1970" in lines[1]
