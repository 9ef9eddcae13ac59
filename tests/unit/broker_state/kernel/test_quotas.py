"""Quotas of clients, lanes and queues: what is refused, for how long, and what is counted (docs/semantics.md)."""

from __future__ import annotations

from typing import Any

import pytest

from broker_state.kernel import quotas
from broker_state.store.state_records import QUOTA_CLIENTS_MAX
from popstream.wire.command import Declare, ForgetLane, Policy, Pop, ResetOffset
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab

SECOND_MS, MINUTE_MS = 1_000, 60_000


def lab_with(*, group: str | None = None, **quota: int) -> LaneLab:
    lab = LaneLab(written=100)
    set_policy(lab, group=group, **quota)
    return lab


def set_policy(lab: LaneLab, **fields: Any) -> str:
    return reason_of(lab, Policy(**QUEUE, **fields))


def reason_of(lab: LaneLab, command: Any) -> str:
    answer = lab.do(command)
    assert answer is not None
    return str(answer.reason)


def pops(lab: LaneLab, count: int, **fields: Any) -> list[str]:
    return [str(lab.pop(**fields).reason) for _ in range(count)]


def test_without_a_quota_nothing_is_stored_or_refused() -> None:
    lab = LaneLab(written=100)
    assert pops(lab, 20) == ["OK"] * 20
    lane = lab.lane()
    assert (lane.usage, lane.queue.usage) == (None, None)
    assert not {lane.usage_key, lane.queue.usage_key} & lab.kv.families["state"].keys()


@pytest.mark.parametrize(
    ("group", "quota"), [(None, "pops_per_s_max"), (GROUP, "pops_per_s_max"), (None, "queue_pops_per_s_max")]
)
def test_pops_of_a_second(group: str | None, quota: str) -> None:
    lab = lab_with(group=group, **{quota: 3})
    assert pops(lab, 5) == ["OK"] * 3 + ["QUOTA_EXCEEDED"] * 2
    refused = lab.pop()
    assert (refused.code, refused.applied, refused.detail) == (2, False, f"{quota} is 3")
    (row,) = lab.decision.operations
    assert (row.reason, row.detail) == ("QUOTA_EXCEEDED", f"{quota} is 3")
    assert pops(lab, 1, after_ms=SECOND_MS - lab.now_ms % SECOND_MS) == ["OK"], (
        "in the next second of the queue's clock"
    )


def test_a_queue_and_its_lanes_have_quotas_of_their_own() -> None:
    lab = lab_with(pops_per_s_max=2, queue_pops_per_s_max=5)
    assert [pops(lab, 3, group=group) for group in ("a", "b")] == [["OK", "OK", "QUOTA_EXCEEDED"]] * 2
    assert pops(lab, 2, group="c") == ["OK", "QUOTA_EXCEEDED"], "refused pops do not count for the queue"


def test_a_policy_of_the_lane_replaces_the_quotas_of_the_queue() -> None:
    lab = lab_with(pops_per_s_max=1)
    set_policy(lab, group="free")
    assert pops(lab, 3, group="free") == ["OK"] * 3
    assert pops(lab, 2, group="other") == ["OK", "QUOTA_EXCEEDED"]
    set_policy(lab)
    assert pops(lab, 2, group="other") == ["OK"] * 2


def test_clients_do_not_take_from_each_other() -> None:
    lab = lab_with(client_pops_per_s_max=2)
    assert pops(lab, 3, client_id="greedy") == ["OK", "OK", "QUOTA_EXCEEDED"]
    assert pops(lab, 2, client_id="modest") == ["OK"] * 2
    assert pops(lab, 3) == ["OK", "OK", "QUOTA_EXCEEDED"], "without a client id"


def test_more_clients_than_are_counted_apart_share_a_count() -> None:
    lab = lab_with(client_pops_per_s_max=1)
    assert {pops(lab, 1, client_id=f"c{number}")[0] for number in range(QUOTA_CLIENTS_MAX)} == {"OK"}
    assert [pops(lab, 1, client_id=f"d{number}")[0] for number in range(2)] == ["OK", "QUOTA_EXCEEDED"]
    assert len(lab.kv.families["state"][lab.lane().usage_key]) < 1_024


def test_parked_pops_of_a_client_and_of_a_queue() -> None:
    lab = LaneLab()
    lab.pop(poll_time_ms=60_000, client_id="before")
    set_policy(lab, client_parked_max=2, queue_parked_max=5)
    waits = {"poll_time_ms": 60_000}
    assert [lab.pop(client_id="greedy", **waits) for _ in range(2)] == [None, None]
    refused = lab.pop(client_id="greedy", **waits)
    assert (str(refused.reason), refused.detail) == ("POLLING_FULL", "client_parked_max is 2")
    assert [lab.pop(group="b", client_id="greedy", **waits) for _ in range(2)] == [None, None], "another lane"
    refused = lab.pop(group="c", **waits)
    assert (str(refused.reason), refused.detail) == ("POLLING_FULL", "queue_parked_max is 5")
    lab.tick(60_000)
    assert lab.pop(group="c", **waits) is None, "the others have timed out"
    assert lab.lane("c").queue.record.parked == 1


def test_parked_pops_of_a_client_are_counted_among_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "PARKED_LOOKED_AT_MAX", 3)
    lab = LaneLab()
    set_policy(lab, client_parked_max=1)
    for client in ("first", "a", "b", "c"):
        assert lab.pop(client_id=client, poll_time_ms=60_000) is None
    assert lab.pop(client_id="first", poll_time_ms=60_000) is None
    assert str(lab.pop(client_id="first", poll_time_ms=60_000).reason) == "POLLING_FULL"


def test_new_lanes_of_a_minute() -> None:
    lab = lab_with(new_lanes_per_min_max=2)
    assert [pops(lab, 1, group=group)[0] for group in "abc"] == ["OK", "OK", "QUOTA_EXCEEDED"]
    assert pops(lab, 1, group="a") == ["OK"], "not new"
    assert set_policy(lab, group="d") == "QUOTA_EXCEEDED"
    assert reason_of(lab, ResetOffset(**QUEUE, group="e", queue_offset=5)) == "QUOTA_EXCEEDED"
    lab.tick(MINUTE_MS)
    assert pops(lab, 1, group="c") == ["OK"]


def test_resets_of_a_minute() -> None:
    lab = lab_with(resets_per_min_max=3)
    lab.pop()
    assert reason_of(lab, ForgetLane(**QUEUE, group="nobody")) == "OK", "there is no such lane"
    assert [reason_of(lab, ResetOffset(**QUEUE, group=GROUP, queue_offset=at)) for at in (5, 500, 7)] == [
        "OK",
        "ABOVE_MAX",
        "OK",
    ]
    assert reason_of(lab, ForgetLane(**QUEUE, group=GROUP)) == "OK"
    lab.pop()
    for command in (ForgetLane(**QUEUE, group=GROUP), ResetOffset(**QUEUE, group=GROUP, queue_offset=9)):
        assert reason_of(lab, command) == "QUOTA_EXCEEDED"
    lab.tick(MINUTE_MS)
    assert reason_of(lab, ForgetLane(**QUEUE, group=GROUP)) == "OK"


def test_what_one_quota_refuses_counts_for_no_other_and_makes_no_lane() -> None:
    lab = lab_with(queue_pops_per_s_max=1, new_lanes_per_min_max=2, resets_per_min_max=1)
    assert [pops(lab, 1, group=group)[0] for group in ("a", "b", "c")] == ["OK", "QUOTA_EXCEEDED", "QUOTA_EXCEEDED"]
    queue = lab.lane("a").queue
    assert (queue.lane("b"), queue.lane("c")) == (None, None)
    assert pops(lab, 1, group="b", after_ms=SECOND_MS) == ["OK"], "the second new lane of the minute"
    assert reason_of(lab, ResetOffset(**QUEUE, group="d", queue_offset=5)) == "QUOTA_EXCEEDED"
    assert reason_of(lab, ResetOffset(**QUEUE, group="a", queue_offset=5)) == "OK", "the first reset of the minute"


def test_a_recreated_queue_has_no_quotas() -> None:
    lab = lab_with(resets_per_min_max=1)
    assert reason_of(lab, Declare(**QUEUE, topic_id="another")) == "OK"
    lab.pop(group="x")
    assert lab.lane("x").queue.usage is None


def test_what_a_lane_counts_goes_with_it() -> None:
    lab = lab_with(group=GROUP, pops_per_s_max=5)
    lab.pop()
    key = lab.lane().usage_key
    assert key in lab.kv.families["state"]
    lab.do(ForgetLane(**QUEUE, group=GROUP))
    assert key not in lab.kv.families["state"]


def test_a_refused_pop_is_remembered() -> None:
    """Else a copy that was sent while the answer was lost would lease messages that nobody takes."""
    lab = lab_with(pops_per_s_max=1)
    lab.pop()
    command = Pop(**QUEUE, group=GROUP, max_messages=1, invisible_time_ms=10_000, op_id="again")
    first = lab.do(command, digest=b"same")
    assert first is not None
    assert first.reason == "QUOTA_EXCEEDED"
    assert lab.do(command, after_ms=SECOND_MS, digest=b"same") == first
