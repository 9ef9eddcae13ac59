"""The sizes that `popstream status` shows are those of the newest versions, and of the folders."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from connectors.delta.compaction import compact
from connectors.delta.retention import delete_before
from connectors.delta.table_sizes import table_sizes
from connectors.delta.tables import TABLES
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def test_rows_bytes_and_growth(tmp_path: Path) -> None:
    create_table(tmp_path, "deliveries")
    create_table(tmp_path, "quality_results")
    for number in (0, 0, 1, 2):
        rows = [delivery(1, n, NOW_MS + number * DAY_MS) for n in range(3)]
        append_audit_rows(tmp_path, "deliveries", rows)
    compact(tmp_path, TABLES["deliveries"])

    deliveries, results = table_sizes(tmp_path, datetime(2026, 11, 23, 1, tzinfo=UTC))

    files = [each for each in (tmp_path / "deliveries").rglob("*.parquet") if "_delta_log" not in each.parts]
    assert (deliveries.table, deliveries.rows, deliveries.files) == ("deliveries", 12, 3)
    assert len(files) == 5, "two were joined"
    assert deliveries.yesterday_rows == 3
    assert 0 < (deliveries.yesterday_bytes or 0) < deliveries.bytes < deliveries.disk_bytes
    assert deliveries.disk_bytes > sum(file.stat().st_size for file in files)
    assert deliveries.first_day is None
    assert (results.table, results.rows, results.yesterday_rows) == ("quality_results", 0, None)

    delete_before(tmp_path, TABLES["deliveries"], date(2026, 11, 22))

    (deliveries, _) = table_sizes(tmp_path, datetime(2026, 11, 23, 1, tzinfo=UTC))
    assert (deliveries.rows, deliveries.first_day) == (6, date(2026, 11, 22))


def test_without_tables_there_are_no_sizes(tmp_path: Path) -> None:
    assert table_sizes(tmp_path / "delta") == []
