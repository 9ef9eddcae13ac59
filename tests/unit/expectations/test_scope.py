"""Claim: a check of some dates judges their rows as the check of all does, by what they continue, and nothing else.

Method: worlds that the kernel decided, with a midnight in their middle, and by hand a lane with a fault after midnight.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import compact
from connectors.delta.tables import AUDIT_TABLES, TABLES
from expectations.opened_tables import OpenedTables, pinned_versions
from expectations.scope import ALL_ROWS, changed_rows, rows_since
from expectations.suites import rules_of, suites
from expectations.validate import validate
from tests.support.kernel_history import KernelHistory
from tests.support.quality_rows import NOW_MS, Rows, of_worlds, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from expectations.report import QualityReport
    from expectations.scope import Scope

BEFORE, AFTER = dt.date(2026, 11, 21), dt.date(2026, 11, 22)
MIDNIGHT_MS = NOW_MS + 12 * 3_600_000

SUITES = suites()

TablesOfRows = dict[str, list[tuple[int, Any]]]


def checked(root: Path, scope: Scope, **more: Any) -> QualityReport:
    with OpenedTables(root, scope=scope) as opened:
        return validate(opened, **{"results": False, **more})


def failed(report: QualityReport) -> set[str]:
    return {f"{outcome.suite} {outcome.expectation}" for outcome in report.failures}


def broken(root: Path, scope: Scope) -> set[str]:
    """The same without Great Expectations, which takes a second."""
    with OpenedTables(root, scope=scope) as opened:
        return {
            f"{suite.name} {rule.expectation_type}"
            for suite in SUITES
            for rule in rules_of(suite)
            if opened.unexpected_rows(suite.name, rule.sql)[0]
        }


def moved(row: Any, by_ms: int) -> Any:
    times = [name for name in row._fields if name.endswith("_ms") and name != "invisible_time_ms"]
    return row._replace(**{name: at + by_ms for name in times if (at := getattr(row, name)) is not None})


def with_midnight(tables: TablesOfRows) -> TablesOfRows:
    """Move each world in time, so that half of its records come before midnight."""
    by_world: dict[int, list[int]] = {}
    for _, row in tables["operations"]:
        by_world.setdefault(row.partition // 100, []).append(row.now_ms)
    move = {world: MIDNIGHT_MS - sorted(times)[len(times) // 2] for world, times in by_world.items()}
    return {
        table: [(seq, moved(row, move[row.partition // 100])) for seq, row in rows] for table, rows in tables.items()
    }


def one_world_in_a_hundred(tables: TablesOfRows) -> TablesOfRows:
    """Give the partitions of each world a hundred of their own."""
    worlds = sorted({row.topic.partition("-topic")[0] for _, row in tables["operations"]})

    def partition(row: Any) -> int:
        return 100 * (10 + worlds.index(row.topic.partition("-topic")[0])) + int(row.partition) % 100 % 8

    return {
        table: [(seq, row._replace(partition=partition(row))) for seq, row in rows] for table, rows in tables.items()
    }


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("worlds") / "delta"
    write(root, "worlds", with_midnight(one_world_in_a_hundred(of_worlds())))
    return root


def test_rows_after_midnight_that_continue_those_before_it_break_no_rule(worlds: Path) -> None:
    report = checked(worlds, rows_since(AFTER))
    assert failed(report) == set()
    whole = checked(worlds, ALL_ROWS)
    assert failed(whole) == set()
    for table in ("operations", "deliveries", "commit_positions", "order_info"):
        assert 0.2 < report.judged[table] / whole.judged[table] < 0.8


@pytest.mark.parametrize("idle_h", [25, 1])
def test_an_orderly_lane_may_forget_its_counts_after_a_day_and_not_before(tmp_path: Path, idle_h: int) -> None:
    """A message in its second attempt, changed much later; where the lane was not idle for long, as if it had been."""
    history = KernelHistory()
    history.pop(1, "a", invisible_s=1, order=True)
    handle = history.pop(3, "b", invisible_s=1, order=True)
    history.change(25 * 3600, "b", handle, 30)
    assert [row.attempt for row in history.deliveries if row.step == "leased" and row.first_offset == 0] == [1, 2]
    early_ms = (25 - idle_h) * 3_600_000
    late = [row for row in history.deliveries if row.step == "changed"]
    assert [row.attempt for row in late] == [1]
    history.deliveries = [
        row._replace(now_ms=row.now_ms - early_ms) if row in late else row for row in history.deliveries
    ]
    tables = {name: [(1, row) for row in rows] for name, rows in history.tables().items()}
    write(tmp_path, "idle", {**tables, "rejected": [], "order_info": []})
    found = {rule for rule in broken(tmp_path, ALL_ROWS) if "attempts" in rule}
    assert bool(found) is (idle_h < 24), found


def lane() -> Rows:
    """Before midnight 0..9 are leased, 0..4 acked, 5..9 expired; 20..29 are leased, and no position speaks of them."""
    rows = Rows(0)
    day_ms = 13 * 3_600_000
    rows.add("operations", rows.operation(1, "pop", 0, 9, deadline_after_ms=MIDNIGHT_MS), rows.operation(2))
    rows.add("operations", rows.operation(3), rows.operation(4))
    rows.add(
        "deliveries",
        rows.lease(1, "leased", 0, 9),
        rows.lease(2, "acked", 0, 4, cause="ack"),
        rows.lease(3, "leased", 20, 29, 2, deadline_ms=MIDNIGHT_MS + day_ms),
        rows.lease(3, "expired", 5, 9, at_ms=NOW_MS + 1, deadline_ms=NOW_MS + 1, cause="deadline", ordinal=1),
    )
    rows.add("commit_positions", rows.position(2, 0, 5, next_offset=10))
    return rows


def later(record: int, **more: Any) -> dict[str, Any]:
    return {"now_ms": MIDNIGHT_MS + record, **more}


def lease_later(rows: Rows, record: int, step: str, first: int, last: int, *numbers: int, **more: Any) -> Any:
    at = MIDNIGHT_MS + record
    return rows.lease(
        record, step, first, last, *numbers, **{"now_ms": at, "at_ms": at, "deadline_ms": at + 1000, **more}
    )


RIGHT = {
    "acked that were leased before": [("deliveries", lambda rows: lease_later(rows, 10, "acked", 20, 24, 2))],
    "leased again that had expired": [("deliveries", lambda rows: lease_later(rows, 10, "leased", 5, 9, 3, 2))],
    "a position that goes on": [
        ("commit_positions", lambda rows: rows.position(10, 5, 10, **later(10, acked=10, leased=0, available=0)))
    ],
}
WRONG = {
    "deliveries expect_done_messages_to_stay_done": [
        ("deliveries", lambda rows: lease_later(rows, 10, "leased", 3, 3, 3, 2))
    ],
    "deliveries expect_one_live_lease_of_a_message": [
        ("deliveries", lambda rows: lease_later(rows, 10, "leased", 22, 22, 3, 1))
    ],
    "deliveries expect_attempts_to_count_deliveries": [
        ("deliveries", lambda rows: lease_later(rows, 10, "leased", 5, 9, 3, 5))
    ],
    "deliveries expect_steps_of_a_lease_that_exists": [
        ("deliveries", lambda rows: lease_later(rows, 10, "acked", 40, 44, 3))
    ],
    "commit_positions expect_positions_to_chain": [
        ("commit_positions", lambda rows: rows.position(10, 7, 10, **later(10, acked=10, leased=0, available=0)))
    ],
}

Planted = list[tuple[str, "Callable[[Rows], Any]"]]


def with_later(root: Path, planted: Planted) -> None:
    rows = lane()
    write(root, "epoch", rows.tables)
    after = Rows(0)
    for table, make in planted:
        after.add(table, make(after), seq=2)
    after.add("operations", after.operation(90, now_ms=MIDNIGHT_MS + 90), seq=2)
    after.add("deliveries", lease_later(after, 90, "leased", 90, 90, 9), seq=2)
    write(root, "epoch", after.tables)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_by_the_day_before_is_right(tmp_path: Path, name: str) -> None:
    with_later(tmp_path, RIGHT[name])
    assert broken(tmp_path, rows_since(AFTER)) == set()


@pytest.mark.parametrize("expected", WRONG)
def test_what_is_wrong_by_the_day_before_is_found(tmp_path: Path, expected: str) -> None:
    with_later(tmp_path, WRONG[expected])
    found = broken(tmp_path, rows_since(AFTER))
    assert expected in found
    assert found <= broken(tmp_path, ALL_ROWS)


def test_a_daily_check_judges_the_dates_that_have_changed(tmp_path: Path) -> None:
    write(tmp_path, "epoch", lane().tables)
    versions = pinned_versions(tmp_path, {})
    assert changed_rows(tmp_path, versions).since == {}, "nothing was checked before"
    assert failed(checked(tmp_path, changed_rows(tmp_path, versions), results=True)) == set()
    assert set(changed_rows(tmp_path, versions).since.values()) == {dt.date.max}, "nothing has changed"
    after = Rows(0)
    after.add("operations", after.operation(90, now_ms=MIDNIGHT_MS + 90), seq=2)
    write(tmp_path, "epoch", after.tables)
    scope = changed_rows(tmp_path, pinned_versions(tmp_path, {}))
    assert {scope.since[table] for table in AUDIT_TABLES} == {AFTER}
    report = checked(tmp_path, scope, results=True)
    assert report.judged["operations"] == 1
    assert {row["scope"] for row in DeltaTable(tmp_path / "quality_results").to_pyarrow_table().to_pylist()} == {
        "changed"
    }


def test_a_deletion_of_an_old_row_is_found_by_the_next_daily_check(tmp_path: Path) -> None:
    with_later(tmp_path, [])
    assert failed(checked(tmp_path, ALL_ROWS, results=True)) == set()
    DeltaTable(tmp_path / "operations").delete("kafka_offset = 3")
    scope = changed_rows(tmp_path, pinned_versions(tmp_path, {}))
    assert {scope.since[table] for table in AUDIT_TABLES} == {BEFORE}
    assert "operations expect_rows_as_written" in failed(checked(tmp_path, scope, results=True))
    again = changed_rows(tmp_path, pinned_versions(tmp_path, {}))
    assert again.since == scope.since, "a check that has found something is not the last one that held"


def test_dates_that_were_compacted_are_counted_again(tmp_path: Path) -> None:
    with_later(tmp_path, [])
    assert failed(checked(tmp_path, ALL_ROWS, results=True)) == set()
    after = Rows(0)
    after.add("operations", after.operation(91, now_ms=MIDNIGHT_MS + 91), seq=3)
    write(tmp_path, "epoch", after.tables)
    assert compact(tmp_path, TABLES["operations"]).into == 1
    report = checked(tmp_path, changed_rows(tmp_path, pinned_versions(tmp_path, {})))
    assert failed(report) == set()
    assert report.judged["operations"] == 2


def test_where_delta_has_deleted_the_log_all_rows_are_judged(tmp_path: Path) -> None:
    with_later(tmp_path, [])
    assert failed(checked(tmp_path, ALL_ROWS, results=True)) == set()
    for commit in (tmp_path / "operations/_delta_log").glob("*0[01].json"):
        commit.unlink()
    versions = {table: DeltaTable(tmp_path / table).version() for table in AUDIT_TABLES if table != "operations"}
    assert changed_rows(tmp_path, {**versions, "operations": 99}).since.get("operations") is None
