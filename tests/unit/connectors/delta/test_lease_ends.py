"""Claim: the view `lease_ends` names who held each lease that ended, who ended it, and what a failed handler raised.

Method: the kernel decides a history; DuckDB reads its rows. tests/integration/delta/test_other_readers.py has Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import open_snapshot
from popstream.wire.command import ResetOffset, ReturnClient
from tests.support.delta_files import append_audit_rows, create_table
from tests.support.kernel_history import KernelHistory

if TYPE_CHECKING:
    from pathlib import Path

FAILED: dict[str, Any] = {"release": "back_off", "cause": "ValueError: no milk"}


def opened(root: Path, history: KernelHistory) -> DuckDbTables:
    for name, rows in history.tables().items():
        create_table(root, name)
        append_audit_rows(root, name, rows)
    return DuckDbTables([open_snapshot(root / name) for name in history.tables()])


def ends(root: Path, history: KernelHistory) -> list[tuple[Any, ...]]:
    with opened(root, history) as tables:
        sql = """
            SELECT first_offset, step, cause, holder, ended_by, raised, at_ms - leased_ms FROM lease_ends
            ORDER BY kafka_offset, ordinal
        """
        return list(tables.rows(sql))


def test_who_held_it_and_who_ended_it(tmp_path: Path) -> None:
    history = KernelHistory()
    late = history.pop(1, "slow", 2)  # 0 and 1
    history.ack(2, "slow", late)
    failing = history.pop(3, "b")  # 2
    history.change(4, "b", failing, 0, offset=2, **FAILED)
    history.pop(5, "gone")  # 2 again
    history.do(6, ReturnClient(v=1, topic="orders", queue_id=0, group="g", client_id="gone"))
    history.tick(40)  # 1 expires
    rejected = history.pop(41, "c")
    history.reject(42, "d", rejected, offset=1, cause="bad: ValueError")

    assert ends(tmp_path, history) == [
        (0, "acked", "ack", "slow", "slow", None, 1_000),
        (2, "released", "handler: ValueError: no milk", "b", "b", "ValueError: no milk", 1_000),
        (2, "released", "return_client", "gone", "gone", None, 1_000),
        (1, "expired", "deadline", "slow", None, None, 30_000),
        (1, "dead_lettered", "bad: ValueError", "c", "d", None, 1_000),
    ]


def test_a_dead_letter_of_the_last_attempt_says_what_was_raised_and_by_whom(tmp_path: Path) -> None:
    history = KernelHistory()
    failing = history.pop(1, "b", max_attempts=1)
    history.change(2, "b", failing, 0, **FAILED)

    assert ends(tmp_path, history) == [
        (0, "released", "handler: ValueError: no milk", "b", "b", "ValueError: no milk", 1_000),
        (0, "dead_lettered", "attempt_limit", "b", "b", "ValueError: no milk", 1_000),
    ]


def test_the_end_of_every_lease_of_a_lane_is_no_row(tmp_path: Path) -> None:
    history = KernelHistory()
    history.pop(1, "b")
    history.do(2, ResetOffset(v=1, topic="orders", queue_id=0, group="g", queue_offset=5))
    assert ends(tmp_path, history) == []


def test_the_first_date_of_each_table(tmp_path: Path) -> None:
    with opened(tmp_path, KernelHistory()) as tables:
        found = list(tables.rows("SELECT table_name, first_day FROM history_begins ORDER BY table_name"))
    assert found == [("commit_positions", None), ("deliveries", None), ("operations", None)]
