"""`popstream erase` and the settings of retention, as a user runs them, on tables without a job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from broker_state.audit import RejectedRow
from pipelines.cli.app import app
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from typer.testing import Result

ADDRESS = "alice@example.com"


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "job" / "delta"
    for name in ("deliveries", "rejected"):
        create_table(root, name)
    cause = f"handler: ValueError: {ADDRESS}"
    append_audit_rows(root, "deliveries", [delivery(1, n)._replace(cause=cause) for n in range(3)])
    head = f"not JSON: {ADDRESS}".encode()
    append_audit_rows(root, "rejected", [RejectedRow(3, 9, 0, NOW_MS, "NOT_JSON", "bad", 20, "ab", head, None, None)])
    return tmp_path / "job"


def erase(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["erase", *arguments, "--folder", str(folder)])


def heads(folder: Path) -> list[bytes]:
    found: list[bytes] = DeltaTable(folder / "delta" / "rejected").to_pyarrow_table()["value_head"].to_pylist()
    return found


def test_it_says_what_was_erased_and_what_was_not_reached(folder: Path) -> None:
    done = erase(folder, "--text", ADDRESS)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "deliveries 3 texts in 1 files erased; 1 old files deleted" in lines
    assert "rejected 1 texts in 1 files erased; 1 old files deleted" in lines
    assert "popstream.ops, the operations: as long as its retention.ms says" in lines
    assert not any("cluster" in line for line in lines), "an embedded broker has no job on a cluster"
    assert any("popstream dead purge --erase" in line for line in lines)
    assert heads(folder) == [b""]
    again = erase(folder, "--text", ADDRESS)
    assert again.exit_code == 0
    assert "0 texts in 0 files erased" in again.stdout


def test_a_dry_run_is_data_and_erases_nothing(folder: Path) -> None:
    done = erase(folder, "--record", "3/9", "--dry-run", "--json")
    assert done.exit_code == 0, done.stderr
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert report["dry_run"] is True
    assert {each["table"]: each["values"] for each in report["tables"]} == {
        "operations": 0,
        "deliveries": 0,
        "rejected": 2,
        "quality_results": 0,
    }
    assert heads(folder) == [f"not JSON: {ADDRESS}".encode()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say what to erase"),
        (("--text", ""), "say what to erase"),
        (("--text", "\udcff"), "--text is not UTF-8"),
        (("--record", "9"), "'9' is not a record: write PARTITION/OFFSET"),
        (("--message", "orders/0"), "'orders/0' is not a message: write TOPIC/QUEUE/OFFSET"),
    ],
)
def test_what_cannot_be_done_is_one_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = erase(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


NAME = "José \U0001f600"


@pytest.mark.parametrize("as_written", ["Jos\\u00e9 \\ud83d\\ude00", "Jos\\u00E9 \\uD83D\\uDE00", NAME])
def test_a_text_is_found_as_json_writes_it(tmp_path: Path, as_written: str) -> None:
    root = tmp_path / "job" / "delta"
    for name in ("deliveries", "rejected"):
        create_table(root, name)
    append_audit_rows(root, "deliveries", [delivery(1, 0)._replace(cause=f"handler: KeyError: {as_written}")])
    head = f'{{"name": "{as_written}'.encode()
    append_audit_rows(root, "rejected", [RejectedRow(3, 9, 0, NOW_MS, "NOT_JSON", "bad", 20, "ab", head, None, None)])
    done = erase(tmp_path / "job", "--text", NAME, "--json")
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    found = {each["table"]: each["values"] for each in report["tables"]}
    assert (found["deliveries"], found["rejected"]) == (1, 1)
    assert heads(tmp_path / "job") == [b""]


@pytest.mark.parametrize("place", ["job/replaced", "tables/replaced"])
def test_tables_that_a_restore_has_replaced_are_reached(folder: Path, place: str, tmp_path: Path) -> None:
    """Also those from before the tables got a place of their own."""
    shutil.copytree(folder / "delta", tmp_path / "tables")
    replaced = tmp_path / place / "20301201T000000Z-abcdef"
    shutil.copytree(folder / "delta", replaced)
    done = erase(folder, "--tables", str(tmp_path / "tables"), "--text", ADDRESS, "--json")
    assert done.exit_code == 0, done.stderr
    report: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert {each["table"]: (each["values"], each["old_files"]) for each in report["replaced"]} == {
        str(replaced / "deliveries"): (3, 1),
        str(replaced / "rejected"): (1, 1),
    }
    assert DeltaTable(replaced / "rejected").to_pyarrow_table()["value_head"].to_pylist() == [b""]
    shown = erase(folder, "--tables", str(tmp_path / "tables"), "--text", ADDRESS).stdout
    assert str(replaced / "rejected") in shown.replace("\n", "")


@pytest.mark.parametrize("damage", ["a file of rows", "the log", "no log"])
def test_a_replaced_table_that_cannot_be_searched_is_named(folder: Path, damage: str) -> None:
    replaced = folder / "replaced" / "20301201T000000Z-abcdef" / "rejected"
    shutil.copytree(folder / "delta" / "rejected", replaced)
    if damage == "no log":
        shutil.rmtree(replaced / "_delta_log")
    elif damage == "the log":
        (replaced / "_delta_log" / f"{1:020d}.json").write_text("{")
    else:
        next(replaced.glob("*/*.parquet")).write_bytes(b"PAR1")
    done = erase(folder, "--text", ADDRESS)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"{replaced}, a replaced table that is damaged or of another version: until you delete it" in done.stdout
    assert heads(folder) == [b""]


def test_states_and_pages_with_such_texts_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = folder / "replaced" / "20301201T000000Z-abcdef" / "state"
    state.mkdir(parents=True)
    (folder / "verify").mkdir()
    (folder / "verify" / "plan").touch()
    monkeypatch.setenv("POPSTREAM_SNAPSHOTS", "s3://bucket/snapshots")
    shown = erase(folder, "--text", ADDRESS).stdout
    for words in (
        f"{folder / 'state'} and s3://bucket/snapshots: ",
        f"{state}, a replaced state with the same: until you delete it",
        f"{folder / 'verify'}, copies of states: ",
        "Data Docs of `popstream check`, with rows that failed: until the next check writes to their folder",
        "behind a letter that nobody has handled until that is handled, too",
    ):
        assert words in shown


def test_without_tables_there_is_nothing_to_erase(tmp_path: Path) -> None:
    done = erase(tmp_path / "nothing", "--text", ADDRESS)
    assert done.exit_code == 2
    assert "there are no tables in" in done.stderr


@pytest.mark.parametrize(
    ("days", "words"),
    [('{"operation": 30}', ", not to operation"), ('{"operations": 0}', "greater than or equal to 1")],
)
def test_a_wrong_retention_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, days: str, words: str) -> None:
    monkeypatch.setenv("POPSTREAM_AUDIT_RETENTION_DAYS", days)
    done = erase(folder, "--text", ADDRESS)
    assert done.exit_code == 2
    assert words in done.stderr
