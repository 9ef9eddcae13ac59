"""Measurements that are commands of their own, and need no Spark and no Kafka, measure something at small sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connectors.delta.tables import AUDIT_TABLES
from tests.benchmarks import commit_ways, deciding_thread, lane_watch, table_files

if TYPE_CHECKING:
    from pathlib import Path


def test_counting_lanes_is_part_of_what_deciding_costs() -> None:
    decided_us, counted_us, pass_ms = lane_watch.measured(queues=2, groups=3, operations=1_200)
    assert 0 < counted_us < decided_us
    assert pass_ms > 0


def test_encoding_is_compared_with_pickling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding_thread, "OPERATIONS", 200)
    monkeypatch.setattr(deciding_thread, "ROUNDS", 1)
    found = deciding_thread.cpu_us()
    assert list(found) == ["to encode and write it", "to pickle it", "to unpickle it", "for the key of its op_id"]
    assert all(found.values())


def test_a_thread_counts_beside_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding_thread, "ALONE_S", 0.1)
    share, write_ms = deciding_thread.share_beside_writes(1)
    assert share > 0
    assert write_ms > 0


@pytest.mark.parametrize("way", [commit_ways.by_job, commit_ways.by_delta_rs])
def test_both_ways_commit_all_rows(way: commit_ways.Way, tmp_path: Path) -> None:
    table = AUDIT_TABLES[commit_ways.NAME]
    rows = table_files.completed(table, next(table_files.flushes(800))[table.name])
    cost = commit_ways.measured(way, rows.slice(0, 50), 2, tmp_path)
    assert cost.rows == 3 * 50
    assert min(cost) > 0
