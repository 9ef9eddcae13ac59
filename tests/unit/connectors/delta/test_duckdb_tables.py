"""What SQL can reach by DuckDB: the rows of the tables, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest

from connectors.delta.duckdb_tables import DuckDbTables, require_reading
from connectors.delta.snapshot import open_snapshot
from popstream.wire.base_errors import Invalid
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY_MS = 86_400_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file for each of two dates, of two ranges each, and the end of every lease of the lane in between."""
    root = tmp_path / "it's [a] zone=1" / "delta"
    create_table(root, "deliveries")
    create_table(root, "rejected")
    ended = delivery(1, 2, NOW_MS)._replace(step="released", cause="reset_offset", first_offset=0, last_offset=10)
    for seq, rows in enumerate(([delivery(0, 0), delivery(0, 5), ended], [delivery(1, 9_000, NOW_MS + DAY_MS)])):
        append_audit_rows(root, "deliveries", rows, seq)
    return root


@pytest.fixture
def tables(root: Path) -> Iterator[DuckDbTables]:
    with DuckDbTables([open_snapshot(root / name) for name in ("deliveries", "rejected")]) as opened:
        yield opened


def rows(tables: DuckDbTables, sql: str) -> list[tuple[Any, ...]]:
    return list(tables.rows(sql))


def test_a_table_has_its_rows_and_the_date_of_their_folder(tables: DuckDbTables) -> None:
    sql = "SELECT op_date::text, count(*), min(first_offset) FROM deliveries GROUP BY op_date ORDER BY op_date"
    assert rows(tables, sql) == [("2026-11-21", 3, 0), ("2026-11-22", 1, 9_000)]


def test_a_table_without_rows_has_its_columns(tables: DuckDbTables) -> None:
    assert rows(tables, "SELECT reason, value_head FROM rejected") == []
    assert rows(tables, "SELECT column_type FROM (DESCRIBE rejected) WHERE column_name = 'value_head'") == [("BLOB",)]


def test_a_view_has_a_row_for_each_message(tables: DuckDbTables) -> None:
    sql = 'SELECT queue_offset, "group" FROM deliveries_by_message WHERE queue_offset < 9 ORDER BY queue_offset'
    assert rows(tables, sql) == [*((offset, "g") for offset in (0, 1, 2, 3, 4, 5, 6, 7, 8))]
    assert rows(tables, "SELECT cause FROM deliveries_by_message WHERE queue_offset IS NULL") == [("reset_offset",)]


def test_a_view_by_message_reads_only_the_row_groups_of_an_offset(tables: DuckDbTables) -> None:
    sql = "EXPLAIN ANALYZE SELECT * FROM deliveries_by_message WHERE first_offset <= {0} AND last_offset >= {0}"
    assert "Row Groups Scanned: 1 / 2" in rows(tables, sql.format(9_001))[0][1]


def test_a_column_that_an_older_file_lacks_is_null(root: Path) -> None:
    snapshot = open_snapshot(root / "deliveries")
    file = next(each.path for each in snapshot.files if "2026-11-21" in str(each.path))
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns("client_id"), file)
    with DuckDbTables([snapshot]) as tables:
        assert rows(tables, "SELECT count(*), count(client_id) FROM deliveries") == [(4, 0)]


def test_an_asof_join_of_few_rows_is_no_loop_over_all_pairs(tables: DuckDbTables) -> None:
    tables.define("few", "SELECT * FROM range(3) AS few(number)")
    sql = "EXPLAIN FROM few ASOF LEFT JOIN deliveries ON few.number >= deliveries.first_offset"
    ((_, plan),) = rows(tables, sql)
    assert "Asof Join" in plan
    assert "Nested Loop Join" not in plan


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('{root}/deliveries/_delta_log/00000000000000000000.json')",
        "SELECT * FROM glob('/etc/*')",
        "COPY (SELECT 1) TO '{root}/made.csv'",
        "ATTACH '{root}/made.db'",
        "EXPORT DATABASE '{root}/made'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '100GB'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM root",
    ],
)
def test_nothing_else_can_be_reached(tables: DuckDbTables, root: Path, sql: str) -> None:
    before = sorted(root.rglob("*"))
    quoted = str(root).replace("'", "''")
    with pytest.raises(duckdb.Error):
        rows(tables, sql.format(root=quoted))
    assert sorted(root.rglob("*")) == before


def test_memory_and_disk_have_a_limit(tables: DuckDbTables) -> None:
    found = dict(rows(tables, "SELECT name, value FROM duckdb_settings()"))
    assert (found["memory_limit"], found["max_temp_directory_size"]) == ("1.0 GiB", "4.0 GiB")
    assert Path(found["temp_directory"]).parent == Path(tempfile.gettempdir())
    with pytest.raises(duckdb.OutOfMemoryException):
        rows(tables, "SELECT length(repeat('x', 1 << 20) || string_agg(range::text)) FROM range(1::BIGINT << 40)")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "FROM operations;",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "VALUES (1)",
        "TABLE operations",
        "DESCRIBE operations",
        "SHOW TABLES",
        "SUMMARIZE operations",
        "-- why?\n/* because */ EXPLAIN ANALYZE SELECT 1",
        "explain (analyze, format json) select 1",
    ],
)
def test_a_query_is_taken(sql: str) -> None:
    require_reading(sql)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("DELETE FROM operations", "here, not DELETE"),
        ("INSERT INTO x SELECT 1", "here, not INSERT"),
        ("SET x = 1", "here, not SET"),
        ("CREATE TABLE x (a int)", "here, not CREATE"),
        ("COPY operations TO 'x'", "here, not COPY"),
        ("PRAGMA version", "here, not PRAGMA"),
        ("CALL enable_logging()", "here, not CALL"),
        ("EXPLAIN ANALYZE INSERT INTO x SELECT 1", "here, not INSERT"),
        ("EXPLAIN /* a */ ANALYZE COPY (SELECT 1) TO 'x'", "statements|syntax error|not COPY"),
        ("", "not 0 statements"),
        ("SELECT 1; DROP TABLE x", "not 2 statements"),
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        ("SELECT 1 FROM x VERSION AS OF 3", "there are --version and --at"),
    ],
)
def test_anything_else_is_refused_in_one_line(sql: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        require_reading(sql)
    assert "\n" not in str(refused.value)
