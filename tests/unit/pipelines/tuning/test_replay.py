"""A range of the log decided once more, with other settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker_state.store.keys import NEVER_MS
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.share import PartitionRange, ReplayResult, run_share
from popstream.wire.command import Cancel, ForgetLane, Policy, Pop, ReturnClient, Tick
from tests.model.generator import PARTITIONS, iterate
from tests.support.kernel_history import KernelHistory
from tests.support.slow_handlers import slow_handlers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipelines.tuning.share import LaneResult

QUEUE: dict[str, Any] = {"v": 1, "topic": "orders", "queue_id": 0}


def replay(tmp_path: Path, history: KernelHistory, *, begin: int = 0, **settings: Any) -> LaneResult:
    """The one lane of a history, from a record on."""
    records = history.records
    range_ = PartitionRange(0, 0, begin, records[-1].kafka_offset + 1)
    result = run(tmp_path, {0: records}, [range_], OtherSettings(**settings))
    (lane,) = result.lanes
    return lane


def run(
    tmp_path: Path,
    log: dict[int, Sequence[KafkaRecord]],
    ranges: list[PartitionRange],
    settings: OtherSettings,
    **options: Any,
) -> ReplayResult:
    def records(partition: int, first: int, end: int) -> Any:
        return (record for record in log[partition] if first <= record.kafka_offset < end)

    return run_share(ranges, None, tmp_path / "work", settings, Decoder(len(log)), records, lambda *_: None, **options)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 30))])
@pytest.mark.parametrize("begin", [0, 100])
def test_with_the_same_settings_everything_is_as_it_was(tmp_path: Path, seed: int, begin: int) -> None:
    log: dict[int, list[KafkaRecord]] = {partition: [] for partition in range(PARTITIONS)}
    for found in iterate(seed, 400):
        record = KafkaRecord(*found, value_bytes=len(found.value))
        log[record.partition].append(record._replace(kafka_offset=len(log[record.partition])))
    ranges = [
        PartitionRange(partition, 0, min(begin, len(records)), len(records)) for partition, records in log.items()
    ]
    result = run(tmp_path, dict(log), ranges, OtherSettings(), tick_after_ms=NEVER_MS)
    assert result.lanes
    for lane in result.lanes:
        assert lane.what_if == lane.fact, (lane.topic, lane.queue_id, lane.group)


@pytest.mark.parametrize(
    "settings", [{}, {"max_attempts": 0}, {"in_flight_max": 0, "back_off_ms": []}, {"invisible_time_ms": 30_000}]
)
def test_settings_that_are_as_they_were_change_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    lane = replay(tmp_path, slow_handlers(200), **settings)
    assert lane.what_if == lane.fact
    assert (lane.fact.redeliveries, lane.fact.expired) == (4, 5)
    assert lane.evidence == {"recorded": 204, "repeated": 0, "assumed": 0, "open": 0}


def test_a_longer_lease_saves_redeliveries_and_acks_in_vain(tmp_path: Path) -> None:
    lane = replay(tmp_path, slow_handlers(200), invisible_time_ms=60_000)
    assert (lane.fact.acked_in_vain, lane.fact.blocked_ms) == (4, 28_570)
    assert (lane.what_if.redeliveries, lane.what_if.expired, lane.what_if.acked_in_vain) == (0, 0, 0)
    assert (lane.what_if.acked, lane.what_if.not_done, lane.what_if.blocked_ms) == (200, 0, 0)


def test_a_stale_ack_that_comes_in_time_then_counts(tmp_path: Path) -> None:
    history = KernelHistory(1)
    first = history.pop(1, "slow")
    second = history.pop(32, "quick")
    history.ack(36, "slow", first)
    history.ack(50, "quick", second)
    lane = replay(tmp_path, history, invisible_time_ms=40_000)
    assert (lane.fact.deliveries, lane.fact.acked_in_vain, lane.fact.commit_offset) == (2, 1, 1)
    assert (lane.what_if.deliveries, lane.what_if.acked_in_vain, lane.what_if.acked) == (1, 0, 1)


def test_a_shorter_lease_ends_before_the_handler_does(tmp_path: Path) -> None:
    history = KernelHistory(1)
    handle = history.pop(1, "a")
    history.do(2, Pop(**QUEUE, group="g", client_id="b", max_messages=1, invisible_time_ms=30_000, poll_time_ms=60_000))
    history.ack(21, "a", handle)
    history.tick(70)
    lane = replay(tmp_path, history, invisible_time_ms=10_000)
    assert (lane.fact.deliveries, lane.fact.expired) == (1, 0)
    # A tick serves the waiting pop after 10 s; its handler takes 20 s again, so that the message expires twice.
    assert (lane.what_if.deliveries, lane.what_if.redeliveries, lane.what_if.expired) == (2, 1, 2)
    assert (lane.what_if.acked_in_vain, lane.what_if.acked, lane.what_if.acked_late) == (1, 1, 1)
    assert lane.evidence == {"recorded": 1, "repeated": 1, "assumed": 0, "open": 0}


def test_a_client_that_sent_nothing_sends_nothing(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.pop(1, "killed")
    history.ack(33, "b", history.pop(32, "b"))
    history.tick(200)
    lane = replay(tmp_path, history, invisible_time_ms=20_000)
    assert (lane.fact.blocked_ms, lane.what_if.blocked_ms) == (2_000, 12_000)
    assert (lane.what_if.deliveries, lane.what_if.acked, lane.what_if.expired) == (2, 1, 1)


def test_clients_that_renew_go_on_in_another_rhythm(tmp_path: Path) -> None:
    history = KernelHistory(2)
    first = history.pop(0, "a")
    history.change(20, "a", first, 30)
    changed = history.operations[-1].handle_after or ""
    history.change(40, "a", changed, 30)
    history.ack(65, "a", history.operations[-1].handle_after or "")
    history.ack(67, "a", history.pop(66, "a"), offset=1)
    lane = replay(tmp_path, history, invisible_time_ms=12_000)
    assert lane.renews
    assert (lane.what_if.expired, lane.what_if.redeliveries, lane.what_if.acked) == (0, 0, 2)


def test_without_renewals_a_short_lease_expires(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.ack(25, "a", history.pop(0, "a"))
    lane = replay(tmp_path, history, invisible_time_ms=12_000)
    assert not lane.renews
    assert (lane.what_if.expired, lane.what_if.acked_late) == (1, 1)


def failing(attempts: int) -> KernelHistory:
    """Message 0 fails so often; message 1 is acked."""
    history = KernelHistory(2)
    for number in range(attempts):
        handle = history.pop(10 * number, "a")
        history.change(10 * number + 1, "a", handle, 1, 0, release="back_off", cause="ValueError")
    history.ack(500, "a", history.pop(499, "a"))
    history.ack(502, "a", history.pop(501, "a"), offset=1)
    return history


def test_fewer_attempts_make_dead_letters_and_free_the_commit_offset(tmp_path: Path) -> None:
    lane = replay(tmp_path, failing(5), max_attempts=3)
    assert (lane.fact.dead_letters, lane.fact.given_back, lane.fact.acked) == (0, 5, 2)
    assert (lane.what_if.dead_letters, lane.what_if.given_back) == (1, 3)
    assert lane.what_if.blocked_ms < lane.fact.blocked_ms


def test_a_longer_back_off_gives_pops_another_message(tmp_path: Path) -> None:
    lane = replay(tmp_path, failing(5), back_off_ms=[25_000, 60_000])
    # Message 1 comes at the second pop; message 0 fails at 0, 30 and 499 s, where it is not acked yet.
    assert (lane.what_if.deliveries, lane.what_if.given_back, lane.what_if.acked) == (4, 3, 1)


def test_a_policy_within_the_range_keeps_what_is_not_named(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.do(0, Policy(**QUEUE, group="g", max_attempts=2, back_off_ms=[5_000]))
    for at_s in (1, 8, 20, 30):
        if handle := history.pop(at_s, "a"):
            history.change(at_s + 1, "a", handle, 0, 0, release="back_off")
    history.tick(60)
    as_it_was = replay(tmp_path, history, back_off_ms=[5_000])
    assert as_it_was.what_if == as_it_was.fact
    assert as_it_was.fact.dead_letters == 1
    without_limit = replay(tmp_path, history, max_attempts=0)
    assert (without_limit.what_if.dead_letters, without_limit.what_if.given_back) == (0, 4)


def test_retries_that_pops_declare_are_kept_where_they_are_not_named(tmp_path: Path) -> None:
    history = KernelHistory(1)
    for at_s in (1, 8):
        handle = history.pop(at_s, "a", max_attempts=2, back_off_ms=[5_000])
        history.change(at_s + 1, "a", handle, 0, 0, release="back_off")
    lane = replay(tmp_path, history, in_flight_max=10)
    assert lane.what_if == lane.fact
    assert lane.fact.dead_letters == 1
    assert replay(tmp_path, history, max_attempts=1).what_if.deliveries == 1


def test_a_lane_that_is_deleted_and_made_again_has_the_other_policy_too(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.ack(2, "a", history.pop(1, "a"))
    history.do(3, ForgetLane(**QUEUE, group="g"))
    history.change(5, "a", history.pop(4, "a"), 0, 0, release="back_off")
    history.ack(7, "a", history.pop(6, "a"))
    lane = replay(tmp_path, history, max_attempts=1)
    assert (lane.fact.dead_letters, lane.what_if.dead_letters) == (0, 1)


def test_a_limit_of_messages_in_flight_holds_pops_back(tmp_path: Path) -> None:
    history = KernelHistory(4)
    handles = [history.pop(number, "a") for number in range(4)]
    for number, handle in enumerate(handles):
        history.ack(20 + number, "a", handle, number)
    lane = replay(tmp_path, history, in_flight_max=2)
    # The first pop makes the lane, which has the limit from then on.
    assert (lane.fact.deliveries, lane.what_if.deliveries, lane.what_if.not_done) == (4, 2, 2)


def test_in_order_a_pop_waits_for_the_one_before(tmp_path: Path) -> None:
    history = KernelHistory(2)
    one, two = history.pop(1, "a"), history.pop(2, "b")
    history.ack(10, "a", one)
    history.ack(11, "b", two, 1)
    lane = replay(tmp_path, history, order=True)
    assert (lane.fact.deliveries, lane.what_if.deliveries, lane.what_if.commit_offset) == (2, 1, 1)


def test_a_lane_of_the_other_mode_begins_anew_at_its_commit_offset(tmp_path: Path) -> None:
    history = KernelHistory(3)
    history.ack(2, "a", history.pop(1, "a"))
    begin = history.records[-1].kafka_offset + 1
    history.ack(4, "a", history.pop(3, "a"), offset=1)
    history.ack(6, "a", history.pop(5, "a"), offset=2)
    lane = replay(tmp_path, history, begin=begin, order=True)
    assert (lane.what_if.acked, lane.what_if.commit_offset) == (2, 3)


def test_leases_from_before_the_range_end_as_they_did(tmp_path: Path) -> None:
    history = KernelHistory(2)
    handle = history.pop(1, "a")
    begin = history.records[-1].kafka_offset + 1
    history.ack(5, "a", handle)
    history.ack(7, "a", history.pop(6, "a"), offset=1)
    lane = replay(tmp_path, history, begin=begin, invisible_time_ms=1_000)
    assert (lane.fact.deliveries, lane.fact.acked, lane.fact.commit_offset) == (1, 2, 2)
    assert (lane.what_if.acked, lane.what_if.commit_offset) == (2, 2)


def test_a_message_that_nobody_got_is_acked_after_the_median(tmp_path: Path) -> None:
    history = KernelHistory(2)
    history.pop(1, "killed")
    history.ack(44, "b", history.pop(40, "b"))
    history.tick(60)
    lane = replay(tmp_path, history, invisible_time_ms=50_000)
    # The pop of b gets message 1 now, which had no delivery.
    assert lane.evidence == {"recorded": 1, "repeated": 0, "assumed": 1, "open": 0}
    assert (lane.what_if.acked, lane.what_if.commit_offset) == (1, 0)


def test_a_lease_that_is_open_when_the_range_ends_is_not_judged(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.pop(1, "a")
    assert replay(tmp_path, history, max_attempts=1).evidence["open"] == 1


def test_what_clients_do_by_themselves_is_kept(tmp_path: Path) -> None:
    history = KernelHistory(3)
    pop = Pop(**QUEUE, group="g", client_id="a", max_messages=1, invisible_time_ms=30_000, op_id="first")
    history.do(1, pop)
    history.do(2, pop)  # sent again
    history.do(3, Cancel(**QUEUE, target_op_id="first"))
    history.pop(4, "b")
    history.do(5, ReturnClient(**QUEUE, group="g", client_id="b"))
    history.ack(7, "c", history.pop(6, "c"))
    lane = replay(tmp_path, history, invisible_time_ms=60_000)
    assert lane.what_if == lane.fact
    assert (lane.fact.deliveries, lane.fact.acked) == (3, 1)


def test_other_groups_are_as_they_were(tmp_path: Path) -> None:
    history = KernelHistory(1)
    for group in ("g", "other"):
        history.pop(1, "a", group=group)
    for at_s in (20, 40):
        history.pop(at_s, "b")
        history.pop(at_s, "b", group="other")
    range_ = PartitionRange(0, 0, 0, history.records[-1].kafka_offset + 1)
    settings = OtherSettings(groups=["g"], invisible_time_ms=10_000)
    lanes = {lane.group: lane for lane in run(tmp_path, {0: history.records}, [range_], settings).lanes}
    assert lanes["other"].what_if == lanes["other"].fact
    assert lanes["g"].what_if.deliveries == lanes["g"].fact.deliveries + 1


def test_a_lane_that_is_deleted_has_no_end(tmp_path: Path) -> None:
    history = KernelHistory(1)
    history.pop(1, "a")
    history.do(2, ForgetLane(**QUEUE, group="g"))
    history.do(3, Tick(**QUEUE))
    lane = replay(tmp_path, history, invisible_time_ms=1_000)
    assert (lane.fact.commit_offset, lane.what_if.commit_offset, lane.what_if.not_done) == (0, 0, 0)
