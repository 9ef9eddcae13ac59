"""`popstream check` on tables: its report, its exit codes, and who hears of a broken rule."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.tables.check_tables import progress
from tests.support.delta_files import append_audit_rows
from tests.support.quality_rows import Rows, write

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = Rows(0)
    rows.add("operations", rows.operation(1))
    write(tmp_path / "job/delta", "epoch", rows.tables)
    return tmp_path / "job"


def check(folder: Path, *options: str) -> Result:
    command = ["check", "--folder", str(folder), "--data-docs", str(folder / "docs"), *options]
    return CliRunner().invoke(app, command, env={"TERM": "dumb"})


def test_rules_that_hold_and_one_that_is_broken(folder: Path) -> None:
    good = check(folder)
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "68 of 68 expectations hold, for 1 row")
    append_audit_rows(folder / "delta", "operations", [Rows(0).operation(2)], apply_seq=2)
    told = folder / "told.json"
    broken = check(folder, "--table", "operations", "--on-failure", f"tee {told}", "--json")
    assert broken.exit_code == 1
    report = json.loads(broken.stdout)
    failed = [outcome["expectation"] for outcome in report["outcomes"] if not outcome["success"]]
    assert failed == ["expect_rows_as_written"]
    assert {outcome["suite"] for outcome in report["outcomes"]} == {"operations"}
    heard = json.loads(told.read_text())
    assert [failure["expectation"] for failure in heard["failures"]] == failed
    assert heard["data_docs"] == str(folder / "docs")


def test_a_command_that_fails_is_said_and_does_not_hide_the_result(folder: Path) -> None:
    append_audit_rows(folder / "delta", "operations", [Rows(0).operation(2)], apply_seq=2)
    done = check(folder, "--table", "operations", "--on-failure", "false")
    assert done.exit_code == 1
    assert "popstream: the command `false` ended with exit code 1\n" in done.stderr


def test_a_folder_with_anything_else_is_not_replaced_by_data_docs(folder: Path) -> None:
    for place in (folder, folder / "delta", folder / "delta/operations/_delta_log/00000000000000000000.json"):
        done = check(folder, "--data-docs", str(place))
        assert done.exit_code == 2
        assert "which Data Docs would replace: name a new folder, or one of theirs" in done.stderr
    assert (folder / "delta" / "operations" / "_delta_log").is_dir()
    (folder / "docs").mkdir()
    assert [check(folder).exit_code for _ in range(2)] == [0, 0]
    assert (folder / "docs" / "index.html").is_file()


def test_a_check_whose_results_cannot_be_written_is_reported_all_the_same(folder: Path) -> None:
    table = folder / "delta" / "quality_results"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "00000000000000000000.json").write_text("no json")
    done = check(folder)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "68 of 68 expectations hold, for 1 row"
    assert "quality_results has no row of this check: " in done.stderr
    report = json.loads(check(folder, "--json").stdout)
    assert report["expectations_failed"] == 0
    assert len(report["not_written"]) == 1


def test_the_next_daily_check_judges_what_has_changed(folder: Path) -> None:
    assert check(folder, "--since", "last").exit_code == 0
    again = check(folder, "--since", "last", "--json")
    report = json.loads(again.stdout)
    assert (report["scope"], sum(report["judged"].values())) == ("changed", 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--table", "nope"), "no expectations for a table nope: use one of"),
        (("--webhook", "ftp://example"), "a webhook must be an http or https URL, not 'ftp://example'"),
        (("--context", "nowhere"), "nowhere is not a context of Great Expectations"),
        (("--since", "yesterday"), "'yesterday' is not a time"),
    ],
)
def test_wrong_options_are_refused(folder: Path, options: tuple[str, ...], said: str) -> None:
    refused = check(folder, *options)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.replace("│", " ").split())
    assert not (folder / "docs").exists()


def test_without_tables_it_says_so(tmp_path: Path) -> None:
    refused = check(tmp_path)
    assert refused.exit_code == 2
    assert "has the job run here?" in refused.stderr


def test_a_check_that_is_stopped_says_how_far_it_came() -> None:
    class Opened:
        evaluated = (("operations", 0), ("operations", 3))

    assert progress(Opened()) == "2 expectations were checked, 1 of them hold; no report was printed"  # type: ignore[arg-type]
