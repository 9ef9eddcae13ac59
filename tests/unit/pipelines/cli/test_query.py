"""`popstream query` as a user runs it, without Spark: formats, earlier versions, refusals."""

from __future__ import annotations

import csv
import errno
import json
import os
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from connectors.delta.log.commits import commit_file
from connectors.delta.tables import table_path
from pipelines.cli.app import app
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

GROUPED = "SELECT step, count(*) AS n FROM deliveries GROUP BY step ORDER BY step"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job with two leases in version 1 of `deliveries`, and an ack in version 2, a minute later."""
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "job" / "delta"
    create_table(root, "deliveries")
    create_table(root, "rejected")
    append_audit_rows(root, "deliveries", [delivery(1, 0), delivery(1, 5)], 1)
    acked = delivery(2, 0, NOW_MS + 60_000)._replace(step="acked", cause="ack", client_id="billing-worker-7")
    append_audit_rows(root, "deliveries", [acked], 2)
    # Delta tells when a version was made by the time of its commit file.
    for version in range(3):
        os.utime(commit_file(table_path(root, "deliveries"), version), (NOW_MS / 1000 + 60 * version,) * 2)
    return tmp_path / "job"


def query(folder: Path, *arguments: str, width: int | None = None) -> Result:
    terminal = {"NO_COLOR": "1", "TERM": "dumb"} if width is None else {"FORCE_COLOR": "1", "COLUMNS": str(width)}
    return CliRunner().invoke(app, ["query", "--folder", str(folder), *arguments], env=terminal)


def test_rows_are_a_table(folder: Path) -> None:
    done = query(folder, GROUPED)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "│ acked  │ 1 │\n│ leased │ 2 │\n" in done.stdout


def test_a_table_that_does_not_fit_has_a_line_per_value(folder: Path) -> None:
    sql = "SELECT * FROM deliveries ORDER BY now_ms DESC LIMIT 1"
    narrow, wide = query(folder, sql, width=80).stdout, query(folder, sql, width=400).stdout
    assert "client_id     billing-worker-7\n" in narrow
    assert "…" not in narrow
    assert "billing-worker-7 │" in wide


def test_the_same_lines_are_there_for_who_asks(folder: Path) -> None:
    assert (
        query(folder, GROUPED, "--vertical").stdout
        == "── row 1 \nstep  acked\nn     1\n── row 2 \nstep  leased\nn     2\n"
    )


def test_rows_are_json_csv_or_parquet(folder: Path, tmp_path: Path) -> None:
    expected = [{"step": "acked", "n": 1}, {"step": "leased", "n": 2}]
    assert [json.loads(line) for line in query(folder, GROUPED, "--json").stdout.splitlines()] == expected
    lines = query(folder, GROUPED, "--csv").stdout.splitlines()
    assert list(csv.reader(lines)) == [["step", "n"], ["acked", "1"], ["leased", "2"]]
    made = tmp_path / "rows.parquet"
    done = query(folder, GROUPED, "--parquet", str(made))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"popstream: 2 rows written to {made}\n")
    assert pq.read_table(made).to_pylist() == expected


def test_a_file_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "rows.parquet"
    made.write_text("mine")
    done = query(folder, GROUPED, "--parquet", str(made))
    assert (done.exit_code, done.stderr) == (2, f"popstream: {made} exists: name another file\n")
    assert made.read_text() == "mine"
    assert query(folder, "SELECT error('no')", "--parquet", str(tmp_path / "other.parquet")).exit_code == 2
    assert [path.name for path in tmp_path.iterdir() if "parquet" in path.name] == ["rows.parquet"]


def test_what_parquet_lacks_is_to_be_cast(folder: Path, tmp_path: Path) -> None:
    done = query(folder, "SELECT interval 1 day", "--parquet", str(tmp_path / "rows.parquet"))
    assert done.exit_code == 2
    assert "a column has a type that Parquet does not know: cast it in the query" in " ".join(done.stderr.split())
    done = query(folder, GROUPED, "--parquet", str(tmp_path / "nowhere" / "rows.parquet"))
    assert (done.exit_code, done.stderr) == (2, f"popstream: there is no folder {tmp_path / 'nowhere'}\n")
    assert not [path for path in tmp_path.iterdir() if "parquet" in path.name]


def test_a_file_is_made_where_there_are_no_links(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    made = tmp_path / "rows.parquet"
    assert query(folder, GROUPED, "--parquet", str(made)).exit_code == 0
    assert pq.read_table(made).num_rows == 2
    assert query(folder, GROUPED, "--parquet", str(made)).exit_code == 2


def test_values_that_json_lacks_are_texts(folder: Path) -> None:
    made = "to_timestamp(0) AS began, 1.50::decimal(3, 2) AS price, 'x'::blob AS raw, [1] AS items, NULL AS nothing"
    done = query(folder, f"SELECT op_date, {made} FROM deliveries LIMIT 1", "--json")  # noqa: S608
    assert json.loads(done.stdout) == {
        "op_date": "2026-11-21",
        "began": "1970-01-01T00:00:00Z",
        "price": "1.50",
        "raw": "eA==",
        "items": [1],
        "nothing": None,
    }
    assert "NaN" not in query(folder, "SELECT 'nan'::double AS x", "--json").stdout


def test_columns_of_one_name_are_no_json(folder: Path) -> None:
    done = query(folder, "SELECT 1 AS a, 2 AS a", "--json")
    assert (done.exit_code, "two columns have one name" in done.stderr) == (2, True)
    assert query(folder, "SELECT 1 AS a, 2 AS a", "--csv").stdout == "a,a\n1,2\n"


def test_more_rows_are_there_than_are_printed(folder: Path) -> None:
    done = query(folder, "FROM deliveries", "--max-rows", "2", "--csv")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "popstream: only the first 2 rows are shown; --max-rows 0 shows all\n"
    assert query(folder, "FROM deliveries", "--max-rows", "3").stderr == ""


def test_no_row_names_the_tables(folder: Path) -> None:
    done = query(folder, "FROM rejected")
    assert (done.exit_code, done.stderr) == (
        0,
        "popstream: no rows; there are deliveries, rejected, deliveries_by_message, history_begins\n",
    )


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (("--version", "1"), 2),
        (("--version", "deliveries=2"), 3),
        (("--version", "0"), 0),
        (("--at", str(NOW_MS + 90_000)), 2),
        (("--at", "2026-11-21T12:02Z"), 3),
    ],
)
def test_a_query_reads_a_table_as_it_was(folder: Path, options: tuple[str, ...], rows: int) -> None:
    done = query(folder, "SELECT count(*) AS n FROM deliveries", "--json", *options)
    assert json.loads(done.stdout) == {"n": rows}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("SELECT 1 FROM deliveries, rejected", "--version", "1"), "each table has versions of its own"),
        (("FROM deliveries", "--version", "rejected=1"), "the query reads no table rejected"),
        (("FROM deliveries", "--version", "new"), "'new' is not a version: write a number, or TABLE=NUMBER"),
        (("FROM deliveries", "--version", "3"), "deliveries has no version 3: its newest is 2"),
        (("FROM deliveries", "--at", "2001-01-01"), "deliveries did not exist at 2001-01-01"),
        (("FROM deliveries", "--at", "then"), "'then' is not a time"),
        (("FROM deliveries", "--engine", "spark", "--version", "1"), "VERSION AS OF 3"),
        (("FROM deliverys",), 'Did you mean "deliveries"'),
        (("SELECT stp FROM deliveries",), "stp"),
        (("SELECT 1/",), "Parser Error"),
        (("SELECT * FROM read_csv('/etc/passwd')",), "queries can read only the tables of the job"),
        (("COPY deliveries TO 'x.csv'",), "only queries can be run here, not COPY"),
        (("SELECT string_agg(range::text) FROM range(1 << 34::bigint)",), "the query takes more than 1GiB of memory"),
        (("FROM deliveries", "--csv", "--vertical"), "choose one of --vertical and --csv"),
    ],
)
def test_what_cannot_be_answered_is_one_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = query(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_damaged_file_says_how_to_repair_the_table(folder: Path) -> None:
    file = next((folder / "delta" / "deliveries").glob("*/*.parquet"))
    data = bytearray(file.read_bytes())
    data[:64] = bytes(64)
    file.write_bytes(data)
    done = query(folder, "FROM deliveries")
    assert done.exit_code == 4
    assert f"a data file of deliveries is damaged: {file}" in done.stderr
    assert "popstream restore --rebuild deliveries" in done.stderr
    assert query(folder, "FROM rejected").exit_code == 0
