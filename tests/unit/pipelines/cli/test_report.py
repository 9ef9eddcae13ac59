"""`popstream report` as a user runs it, on tables without a job: what it writes, and what it refuses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from connectors.delta.compaction import compact
from connectors.delta.tables import TABLES
from pipelines.cli.app import app
from pipelines.cli.tables import report as report_command
from pipelines.report.read_report import read_report
from tests.support.delta_files import append_audit_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from typer.testing import Result


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job whose tables have a file for each row."""
    history = KernelHistory()
    history.ack(5, "a", history.pop(1, "a"))
    history.pop(6, "b")
    for name, rows in history.tables().items():
        create_table(tmp_path / "job" / "delta", name)
        for number, row in enumerate(rows):
            append_audit_rows(tmp_path / "job" / "delta", name, [row], number)
    return tmp_path / "job"


def report(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments, "--folder", str(folder)])


def test_a_report_is_one_file(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "night.html"
    done = report(folder, "--out", str(made), "--lane", "g", "orders/0")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"popstream: the report is in {made}\n")
    text = made.read_text(encoding="utf-8")
    assert "Leases of g in orders/0" in text
    assert "2026-11-21 12:00:00 to 2026-11-21 12:00:06.001, UTC" in text
    assert [path.name for path in tmp_path.iterdir()] == ["job", "night.html"]


def test_it_has_a_name_by_itself_and_replaces_the_one_before(folder: Path, tmp_path: Path) -> None:
    assert report(folder).exit_code == 0
    made = tmp_path / "popstream-report.html"
    made.write_text("before")
    assert report(folder).exit_code == 0
    assert made.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lane", "g", "orders"), "name the queue of the lane by TOPIC/QUEUE"),
        (("--lane", "g", "orders/0/1"), "name the queue of the lane by TOPIC/QUEUE"),
        (("--lane", "g", "or/de/rs"), "is not a place"),
        (("--lane", "other", "orders/0"), "the group other has never read orders/0; groups that have: g"),
        (("--lane", "g", "orders/7"), "the group g has never read orders/7; no group has"),
        (("--lane", "g", "orders/0", "--group", "a"), "the lane g orders/0 is not one of the group a"),
        (("--lane", "g", "orders/0", "--topic", "a"), "the lane g orders/0 is not one of the topic a"),
        (("--group", "other"), "the tables have no group other, only g"),
        (("--topic", "other"), "the tables have no topic other, only orders"),
        (("--since", "2030-01-01"), "they have rows from 2026-11-21 12:00:00 to 2026-11-21 12:00:06, UTC"),
        (("--until", "2001-01-01"), "the tables have no rows of this period"),
        (("--since", "2026-11-21T12:00:05Z", "--until", "2026-11-21T12:00:01Z"), "the period ends before it begins"),
        (("--since", "then"), "'then' is not a time"),
        (("--out", "missing/report.html"), "cannot be written to missing/report.html: there is no folder missing"),
        (("--out", "job"), "cannot be written to job: it is a folder"),
    ],
)
def test_what_there_is_not_to_report_is_one_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = report(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.output
    assert [path.name for path in folder.parent.iterdir()] == ["job"]


def test_no_tables_and_tables_without_rows_are_one_line(tmp_path: Path) -> None:
    done = report(tmp_path / "job")
    assert (done.exit_code, "there are no tables in" in done.stderr) == (2, True)
    create_table(tmp_path / "job" / "delta", "operations")
    create_table(tmp_path / "job" / "delta", "deliveries")
    done = report(tmp_path / "job")
    assert (done.exit_code, "have no rows yet: there is nothing to report" in done.stderr) == (2, True)


def test_a_disk_that_is_full_leaves_the_report_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "night.html"
    made.write_text("before")

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    done = report(folder, "--out", str(made))
    assert (done.exit_code, done.stderr) == (
        2,
        f"popstream: the report cannot be written to {made}: No space left on device\n",
    )
    assert made.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"job", "night.html"}


def test_tables_that_are_compacted_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []

    def while_compacted(tables: Any, *more: Any) -> Any:
        joined.extend(compact(folder / "delta", TABLES[name]).compacted for name in ("deliveries", "operations"))
        return read_report(tables, *more)

    with monkeypatch.context() as patched:
        patched.setattr(report_command, "read_report", while_compacted)
        assert report(folder, "--out", "during.html").exit_code == 0
    assert min(joined) > 1
    assert report(folder, "--out", "after.html").exit_code == 0
    during, after = (
        (folder.parent / name).read_text().partition("<footer")[0] for name in ("during.html", "after.html")
    )
    assert during == after


def test_a_damaged_file_says_how_to_repair_the_table(folder: Path) -> None:
    file = next((folder / "delta" / "deliveries").glob("*/*.parquet"))
    data = bytearray(file.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    file.write_bytes(data)
    done = report(folder)
    assert (done.exit_code, f"a data file of deliveries is damaged: {file}" in done.stderr) == (4, True)
    file.unlink()
    done = report(folder)
    assert (done.exit_code, f"a data file of deliveries is damaged: {file} is missing" in done.stderr) == (4, True)


def test_a_period_may_be_named_by_a_duration(folder: Path) -> None:
    done = report(folder, "--since", "1h")
    assert (done.exit_code, "the tables have no rows of this period" in done.stderr) == (2, NOON_MS > 0)
    assert report(folder, "--since", "2026-11-21T12:00:04Z", "--until", str(NOON_MS + 6_000)).exit_code == 0
