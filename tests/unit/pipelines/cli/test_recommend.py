"""`popstream recommend` as a user runs it, on tables without a job."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from tests.support.delta_files import append_audit_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.slow_handlers import slow_handlers

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)


def written(folder: Path, history: KernelHistory) -> Path:
    for name, rows in history.tables().items():
        create_table(folder / "delta", name)
        append_audit_rows(folder / "delta", name, rows)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("recommend"), slow_handlers())


def recommend(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["recommend", *arguments, "--folder", str(folder)])


def test_each_recommendation_has_its_evidence(folder: Path) -> None:
    done = recommend(folder)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["g in orders", "  invisible time: 1 min, now 30 s"]
    assert lines[2] == (
        "    too short; half of the acks came within 3 s of the lease, 99 of 100 within 40 s, the last after 40 s; 1"
        " after the lease had ended, and 29 in vain, for the message had been delivered again"
    )
    assert lines[3] == "    from 1,229 acks"
    assert (lines[4], lines[7]) == ("  max attempts: 4", "  prefetch: 3")


def test_the_query_gives_the_figures(folder: Path) -> None:
    commands = [line for line in recommend(folder, "--sql").stdout.splitlines() if line.startswith("    popstream ")]
    assert len(commands) == 3
    for command in commands:
        _, *arguments = shlex.split(command)
        done = CliRunner().invoke(app, [*arguments, "--json", "--folder", str(folder)])
        assert done.exit_code == 0, done.stderr
        first = msgspec.json.decode(done.stdout.splitlines()[0])
        if "acks" in first:
            assert (first["acks"], first["p99_ms"], first["late"], first["in_vain"]) == (1_229, 40_000.0, 1, 29)


def test_it_is_data(folder: Path) -> None:
    (found,) = msgspec.json.decode(recommend(folder, "g", "--json").stdout)
    assert (found["group"], found["topic"]) == ("g", "orders")
    assert [(each["setting"], each["now"], each["proposed"]) for each in found["recommendations"]] == [
        ("invisible_time_ms", 30_000, 60_000),
        ("max_attempts", None, 4),
        ("prefetch", None, 3),
    ]
    assert found["figures"]["attempts"]["acked"] == {"1": 1_171, "2": 29}


def test_only_leases_since_a_time_count(folder: Path) -> None:
    done = recommend(folder, "--since", str(NOON_MS + 900_000))
    assert "not enough evidence" in done.stdout
    assert "invisible time: no recommendation, now 30 s" in done.stdout


def test_too_little_evidence_recommends_nothing(tmp_path: Path) -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    done = recommend(written(tmp_path, history))
    assert done.exit_code == 0
    assert done.stdout.count("no recommendation") == 3
    assert "not enough evidence: 1 acks, and 1,000 are needed" in done.stdout


def test_acks_of_a_lane_whose_topic_has_the_same_offsets_are_its_own(tmp_path: Path) -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.pop(3, "a", group="it's $$ mine")
    done = recommend(written(tmp_path, history), "it's $$ mine", "--json")
    assert done.exit_code == 0, done.stderr
    (found,) = msgspec.json.decode(done.stdout)
    assert (found["figures"]["delays"]["acks"], found["figures"]["delays"]["leases"]) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nobody",), "the group nobody has never received a message; groups that have: g"),
        (("--since", "soon"), "is not a time"),
    ],
)
def test_what_there_is_nothing_to_say_about(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = recommend(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


def test_no_tables_and_empty_tables_are_one_line(tmp_path: Path) -> None:
    done = recommend(tmp_path / "nothing")
    assert (done.exit_code, "there are no tables in" in done.stderr) == (2, True)
    for name in ("operations", "deliveries"):
        create_table(tmp_path / "delta", name)
    assert recommend(tmp_path).stderr == "popstream: no group has ever received a message\n"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path, slow_handlers(20))
    for file in (folder / "delta" / "deliveries").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:200])
    done = recommend(folder)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "deliveries" in done.stderr


def test_tables_at_a_place_of_their_own(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tables"
    elsewhere.symlink_to(folder / "delta")
    here = recommend(folder)
    by_option = recommend(tmp_path / "job", "--tables", str(elsewhere))
    settings = tmp_path / "job.toml"
    settings.write_text(f'tables = "{elsewhere}"\n')
    by_setting = recommend(tmp_path / "job", "--settings", str(settings))
    assert by_option.stdout == by_setting.stdout == here.stdout
    assert here.stdout
