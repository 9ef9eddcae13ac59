"""What a report counts, beside what follows from each row of the kernel, message by message."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from broker_state.audit import ERA_ENDING_KINDS
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.explain.message_events import EventKind
from pipelines.report import lane_pops, listed
from pipelines.report.page import report_page
from pipelines.report.read_report import read_report
from pipelines.report.report_data import Lane, Quantiles, Scope
from pipelines.report.report_tables import open_tables
from popstream.wire.command import ForgetLane, Policy, ResetOffset
from tests.support.busy_scene import BusyScene
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker_state.audit import DeliveryRow
    from pipelines.report.report_data import Report

ENDS = ("acked", "expired", "released", "dead_lettered", "expired_from_log")


@pytest.fixture(scope="module")
def scene() -> BusyScene:
    return BusyScene(minutes=10)


@pytest.fixture(scope="module")
def root(scene: BusyScene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report") / "delta"
    scene.save(root)
    return root


def report_of(root: Path, **scope: object) -> Report:
    with open_tables(root, Scope(**scope)) as tables:  # type: ignore[arg-type]
        return read_report(tables, "job", NOON_MS, UTC)


def saved(root: Path, history: KernelHistory, units: int = 0) -> Path:
    for name, rows in history.tables().items():
        create_table(root, name)
        append_audit_rows(root, name, rows)
    if units:
        create_table(root, "consume_queue")
        found = [unit_row("orders", offset, store_time_ms=NOON_MS - 500) for offset in range(units)]
        append_rows(root, "consume_queue", pa.Table.from_pylist(found, schema=arrow_schema(CONSUME_QUEUE)))
    return root


def size(row: DeliveryRow) -> int:
    return row.last_offset - row.first_offset + 1


def counted(rows: Iterable[DeliveryRow], report: Report) -> list[int]:
    period = report.period
    found = [0] * period.intervals
    for row in rows:
        found[(row.at_ms - period.begin_ms) // period.width_ms] += size(row)
    return found


def leased_at_the_end(rows: Iterable[DeliveryRow], report: Report) -> list[int]:
    """How many messages were leased at the end of each interval: each of them followed."""
    leased: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    found, steps = [], iter(sorted(rows, key=lambda row: row.at_ms))
    row = next(steps, None)
    for number in range(report.period.intervals):
        while row is not None and row.at_ms < report.period.start_ms(number + 1):
            offsets = range(row.first_offset, row.last_offset + 1)
            lane = leased[row.topic, row.queue_id, row.group]
            if row.step == "leased":
                lane.update(offsets)
            elif row.step in ENDS:
                lane.difference_update(offsets if row.cause not in ERA_ENDING_KINDS else list(lane))
            row = next(steps, None)
        found.append(sum(map(len, leased.values())))
    return found


def test_traffic_counts_each_message_of_each_row(scene: BusyScene, root: Path) -> None:
    report, rows = report_of(root), scene.history.deliveries
    traffic = report.traffic
    leased = [row for row in rows if row.step == "leased"]
    released = [row for row in rows if row.step == "released"]
    assert list(traffic.delivered) == counted(leased, report)
    assert list(traffic.redelivered) == counted([row for row in leased if row.attempt > 1], report)
    assert list(traffic.done) == counted([row for row in rows if row.step == "acked"], report)
    assert list(traffic.dead) == counted([row for row in rows if row.step == "dead_lettered"], report)
    assert list(traffic.expired) == counted([row for row in rows if row.step == "expired"], report)
    assert list(traffic.failed) == counted([row for row in released if row.cause.startswith("handler")], report)
    assert list(traffic.released_by_client) == counted(
        [row for row in released if row.cause == "change_invisible"], report
    )
    assert (
        min(map(sum, (traffic.redelivered, traffic.dead, traffic.expired, traffic.failed, traffic.released_by_client)))
        > 0
    )
    moved = [row for row in scene.history.commit_positions if row.group is None]
    assert sum(traffic.poppable) == sum(row.to_offset - row.from_offset for row in moved)


def test_messages_in_flight_are_those_that_no_step_has_ended(scene: BusyScene, root: Path) -> None:
    report = report_of(root)
    expected = leased_at_the_end(scene.history.deliveries, report)
    # A message that is acked after its lease has expired ends twice, which is put right when its pop ends.
    differences = np.abs(np.array(report.traffic.in_flight) - np.array(expected))
    assert differences[-1] == 0
    assert differences.max() <= 2
    assert max(expected) > 20


def test_quantiles_are_those_of_all_messages(scene: BusyScene, root: Path) -> None:
    rows = scene.history.deliveries
    began = {(row.topic, row.queue_id, row.group, row.epoch): row.at_ms for row in rows if row.step == "leased"}
    took = [
        row.at_ms - began[row.topic, row.queue_id, row.group, row.epoch]
        for row in rows
        if row.step == "acked"
        for _ in range(size(row))
    ]
    found = report_of(root).handling.whole
    expected = [np.quantile(took, share, method="inverted_cdf") for share in (0.5, 0.95, 0.99)]
    assert [found.p50, found.p95, found.p99] == [pytest.approx(value, rel=0.02) for value in expected]


def test_lanes_come_by_lag_with_what_their_clients_hold(scene: BusyScene, root: Path) -> None:
    report, rows = report_of(root), scene.history.commit_positions
    last = {(row.topic, row.queue_id, row.group): row.to_offset for row in rows}
    lags = {lane: last[*lane[:2], None] - position for lane, position in last.items() if lane[2] is not None}
    found = {(each.lane.topic, each.lane.queue_id, each.lane.group): each for each in report.lanes}
    assert {lane: facts.lag for lane, facts in found.items()} == lags
    assert [facts.lag for facts in report.lanes] == sorted(lags.values(), reverse=True)
    assert report.totals.lag == sum(lags.values())
    held = leased_at_the_end(scene.history.deliveries, report)[-1]
    assert sum(facts.in_flight for facts in report.lanes) == held > 0
    assert all(facts.waiting_since_ms is not None for facts in report.lanes if facts.lag)


def test_a_scope_leaves_the_others_out(scene: BusyScene, root: Path) -> None:
    of_group = report_of(root, group="search", topic="payments")
    rows = [row for row in scene.history.deliveries if row.group == "search" and row.topic == "payments"]
    assert sum(of_group.traffic.done) == sum(size(row) for row in rows if row.step == "acked")
    assert {(facts.lane.group, facts.lane.topic) for facts in of_group.lanes} == {("search", "payments")}
    assert of_group.rejected is None
    since_ms, until_ms = NOON_MS + 120_000, NOON_MS + 300_000
    in_period = report_of(root, since_ms=since_ms, until_ms=until_ms)
    acked = [row for row in scene.history.deliveries if row.step == "acked" and since_ms <= row.at_ms < until_ms]
    assert sum(in_period.traffic.done) == sum(map(size, acked))
    assert (in_period.period.since_ms, in_period.period.until_ms) == (since_ms, until_ms)
    assert in_period.notices == []


def shop(root: Path) -> Path:
    """A lease that expires, a handler that fails to the end, a reject, and a lease that is held."""
    history = KernelHistory(group="billing")
    history.do(0, Policy(v=1, topic="orders", queue_id=0, group="billing", back_off_ms=[1_000], max_attempts=2))
    slow = history.pop(1, "worker-1")
    for at_s in (2, 5):
        handle = history.pop(at_s, "worker-2")
        history.change(at_s + 1, "worker-2", handle, 0, 1, release="back_off", cause="KeyError: 'price'")
    history.reject(8, "worker-2", history.pop(7, "worker-2"), 2, "no such customer")
    again = history.pop(33, "worker-2")
    history.ack(34, "worker-1", slow)
    history.ack(41, "worker-2", again)
    history.pop(42, "worker-3", 3)
    return saved(root, history, units=10)


def test_what_is_listed_says_why(tmp_path: Path) -> None:
    report = report_of(shop(tmp_path))
    first, second = report.redelivered
    assert (first.queue_offset, first.attempts, first.causes, first.last_step) == (0, 2, {"deadline": 1}, "acked")
    assert (second.queue_offset, second.causes) == (1, {"handler: KeyError: 'price'": 2})
    assert second.last_step == "dead_lettered"
    letters = [(each.reason, each.cause, each.messages, each.example) for each in report.dead_letters]
    assert letters == [
        ("attempt_limit", "handler: KeyError: 'price'", 1, "orders/0/1"),
        ("no such customer", None, 1, "orders/0/2"),
    ]
    (slowest,) = report.slowest
    assert (slowest.first_offset, slowest.acked_ms - slowest.began_ms, slowest.client_id) == (0, 8_000, "worker-2")
    assert [(each.kind, each.reason, each.count) for each in report.refusals] == [("ack", "STALE_HANDLE", 1)]
    assert report.total.whole.p50 == pytest.approx(41_500, rel=0.02)
    assert report.waiting.whole.p50 == pytest.approx(7_500, rel=0.02)
    (facts,) = report.lanes
    assert (facts.commit_offset, facts.lag, facts.in_flight, facts.dead) == (3, 7, 3, 2)
    assert facts.waiting_since_ms == NOON_MS - 500


def test_the_pops_of_a_lane_have_what_became_of_them(tmp_path: Path) -> None:
    leases = report_of(shop(tmp_path), lane=Lane("billing", "orders", 0)).leases
    assert leases is not None
    assert leases.count == len(leases.pops) == 6
    assert [[event.kind for event in pop.events] for pop in leases.pops] == [
        [EventKind.EXPIRED, EventKind.REFUSED],
        [EventKind.RELEASED_BY_CLIENT],
        [EventKind.RELEASED_BY_CLIENT, EventKind.DEAD_LETTERED],
        [EventKind.DEAD_LETTERED],
        [EventKind.ACKED],
        [],
    ]
    assert [(pop.first_offset, pop.attempt, pop.client_id) for pop in leases.pops][4:] == [
        (0, 2, "worker-2"),
        (3, 1, "worker-3"),
    ]
    assert (leases.pops[-1].messages, leases.pops[-1].until_ms) == (3, NOON_MS + 72_000)


@pytest.mark.parametrize(
    ("rows_max", "epochs_from_last"),
    [(4, [1]), (7, [2, 1]), (1, [])],
)
def test_of_more_rows_than_are_read_the_last_pops_are_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int, epochs_from_last: list[int]
) -> None:
    """Each pop has three rows."""
    history = KernelHistory()
    for at_s in (10, 20, 30):
        handle = history.pop(at_s, "a", 2)
        for number in (0, 1):
            history.ack(at_s + 1 + number, "a", handle, offset=number + at_s // 5 - 2)
    monkeypatch.setattr(lane_pops, "_ROWS_MAX", rows_max)
    leases = report_of(saved(tmp_path, history), lane=Lane("g", "orders", 0)).leases
    assert leases is not None
    assert leases.count == 3
    last = max((pop.epoch for pop in leases.pops), default=0)
    assert [last + 1 - pop.epoch for pop in leases.pops] == epochs_from_last
    assert all([event.kind for event in pop.events] == [EventKind.ACKED] * 2 for pop in leases.pops)


@pytest.mark.parametrize("kind", [ResetOffset, ForgetLane])
def test_a_lane_that_is_reset_holds_nothing(tmp_path: Path, kind: type[ResetOffset | ForgetLane]) -> None:
    history = KernelHistory()
    history.pop(1, "a", 4)
    more: dict[str, Any] = {"queue_offset": 5} if kind is ResetOffset else {}
    history.do(10, kind(v=1, topic="orders", queue_id=0, group="g", **more))
    history.pop(12, "b", 2)
    report = report_of(saved(tmp_path, history), lane=Lane("g", "orders", 0))
    assert list(report.traffic.in_flight) == [0, *[4] * 9, 0, 0, 2]
    assert [facts.in_flight for facts in report.lanes] == [2]
    assert report.leases is not None
    assert [event.kind for event in report.leases.pops[0].events] == [EventKind.RESET]


def test_of_many_kinds_of_refusals_it_says_how_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "LIMIT 20"
    for name in ("_REFUSALS", "_REJECTED"):
        assert shown in getattr(listed, name)
        monkeypatch.setattr(listed, name, getattr(listed, name).replace(shown, "LIMIT 1"))
    history = KernelHistory()
    stale = history.pop(1, "a")
    history.pop(32, "b")
    history.ack(33, "a", stale)
    history.reject(34, "a", stale, 0, "late")
    report = report_of(saved(tmp_path, history))
    assert (len(report.refusals), report.totals.refusal_kinds) == (1, 2)
    assert "the first 1 of 2 kinds" in report_page(report, UTC)


def test_a_history_that_was_cut_says_so_and_counts_what_was_in_flight(tmp_path: Path) -> None:
    history = KernelHistory()
    first, second = history.pop(1, "a"), history.pop(2, "a")
    history.ack(12, "a", second, offset=1)
    history.ack(14, "a", first)
    for rows in (history.operations, history.deliveries, history.commit_positions):
        rows[:] = [row for row in rows if row.now_ms >= NOON_MS + 10_000]  # type: ignore[misc]
    report = report_of(saved(tmp_path, history))
    cut, no_units = report.notices
    assert "Leases of 2 pops end in the tables and do not begin there" in cut
    assert "what came before 2026-11-21 12:00:12 was deleted" in cut
    assert "consume_queue" in no_units
    assert list(report.traffic.in_flight) == [1, 1, 0]
    assert report.handling.whole == Quantiles()


def test_a_period_that_begins_before_the_tables_says_so(tmp_path: Path) -> None:
    report = report_of(shop(tmp_path), since_ms=NOON_MS - 86_400_000)
    assert report.notices == [
        "The tables know nothing from before 2026-11-21 12:00:00: the report begins there.",
    ]
    assert report.period.since_ms == NOON_MS


def test_the_last_result_of_each_rule_counts(root: Path) -> None:
    results = report_of(root).quality
    assert Counter(result.success for result in results) == {True: 4, False: 1}
    assert results[0].expectation == "expect_conservation"
