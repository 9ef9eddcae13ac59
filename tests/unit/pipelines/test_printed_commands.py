"""Claim: a command that a message names works as it is printed, and a wrong one leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from pipelines import printed_commands
from pipelines.cli.app import app
from pipelines.cli.exits import say
from pipelines.cli.options import RecoveryOptions
from pipelines.job_settings import JobSettings
from pipelines.printed_commands import completed_commands, remember_job, remembered
from pipelines.recovery.verify import goes_on
from popstream.wire.base_errors import RESTORE, Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for name in ("_options", "_options_elsewhere"):
        monkeypatch.setattr(printed_commands, name, {})
    yield
    remember_job(JobSettings())


def command_in(text: str) -> list[str]:
    found = re.search(r"`popstream ([^`]*)`", completed_commands(text))
    assert found is not None
    return shlex.split(found[1])


def test_the_defaults_need_no_options() -> None:
    remember_job(JobSettings())
    remembered("--var", Path("var"))(Path("var"))
    assert completed_commands(RESTORE) == RESTORE


@pytest.mark.parametrize("name", ["restore", "restore --lossy", "verify"])
def test_a_recovery_command_gets_the_options_of_the_job(tmp_path: Path, name: str) -> None:
    settings = JobSettings(
        folder=Path("my job"),
        bootstrap_servers="kafka:9092",
        kafka_config=Path("my.properties"),
        topic_prefix="orders",
        snapshots="s3://bucket/it",
    )
    remember_job(settings)
    remembered("--var", Path("var"))(Path("other"))
    words = command_in(f"run `popstream {name}`")
    assert words == [
        *name.split(),
        *("--folder", str(tmp_path / "my job"), "--bootstrap-servers", "kafka:9092"),
        *("--kafka-config", str(tmp_path / "my.properties"), "--prefix", "orders"),
        *("--at", "s3://bucket/it", "--var", str(tmp_path / "other")),
    ]
    given = dict(zip(words[-12::2], words[-11::2], strict=True))
    again = RecoveryOptions(
        snapshots=given["--at"],
        folder=Path(given["--folder"]),
        bootstrap_servers=given["--bootstrap-servers"],
        kafka_config=Path(given["--kafka-config"]),
        prefix=given["--prefix"],
    ).load()
    assert again == settings.model_copy(
        update={"folder": tmp_path / "my job", "kafka_config": tmp_path / "my.properties"}
    )


def test_other_commands_get_the_options_that_they_have(tmp_path: Path) -> None:
    remember_job(JobSettings(folder=Path("f"), bootstrap_servers="kafka:9092", snapshots="elsewhere"))
    folder, elsewhere = str(tmp_path / "f"), str(tmp_path / "elsewhere")
    assert command_in("`popstream up`") == ["up", "--folder", folder, "--bootstrap-servers", "kafka:9092"]
    assert command_in("`popstream snapshot --list`") == ["snapshot", "--list", "--folder", folder, "--at", elsewhere]
    text = "`popstream up --prefix NAME --folder FOLDER --ops-partitions 6`"
    assert command_in(text)[-2:] == ["--bootstrap-servers", "kafka:9092"]
    assert command_in("`popstream queue orders --queue 0`") == ["queue", "orders", "--queue", "0", "--folder", folder]
    assert completed_commands("`popstream dead list`, popstream restore") == "`popstream dead list`, popstream restore"


def test_up_gets_every_option_that_it_was_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        *("--folder", str(tmp_path / "f"), "--ops-partitions", "6", "--message-topics", "orders.*"),
        *("--flush-interval", "1.5s", "--driver-memory", "600m", "--metrics-port", "9465", "--log-to-terminal"),
    ]
    started: list[JobSettings] = []
    monkeypatch.setattr("pipelines.cli.up.run_up", lambda settings, **_: started.append(settings))
    assert CliRunner().invoke(app, ["up", *given, "--take-over"]).exit_code == 0
    command = command_in("start it with `popstream up`")
    assert sorted(command) == sorted(["up", *given])
    assert CliRunner().invoke(app, command).exit_code == 0
    assert started[0] == started[1]


def test_a_command_gets_its_own_options_that_it_needs_again(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["verify", "--work", "w", "--no-messages", "--since", "newest", "--fresh"])
    assert command_in(f"stopped: {goes_on('newest')}") == [
        *("verify", "--since", "newest", "--work", str(tmp_path / "w"), "--no-messages")
    ]
    CliRunner().invoke(app, ["restore", "--snapshot", "none"])
    assert command_in("`popstream restore --lossy`") == ["restore", "--lossy", "--snapshot", "none"]
    CliRunner().invoke(app, ["restore"])
    assert command_in(RESTORE) == ["restore"]


def test_a_settings_file_is_named_and_its_values_are_not(tmp_path: Path) -> None:
    file = tmp_path / "popstream.toml"
    file.write_text('bootstrap_servers = "kafka:9092"\ntopic_prefix = "orders"\n')
    RecoveryOptions(settings_file=Path("popstream.toml"), prefix="other").load()
    assert command_in(RESTORE) == ["restore", "--settings", str(file), "--prefix", "other"]


def test_variables_are_printed_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPSTREAM_FOLDER", "f")
    RecoveryOptions().load()
    assert command_in(RESTORE) == ["restore", "--folder", str(tmp_path / "f")]


def test_completed_twice_is_completed_once() -> None:
    remember_job(JobSettings(topic_prefix="orders"))
    assert completed_commands(completed_commands(RESTORE)) == completed_commands(RESTORE)


def test_what_is_said_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    remember_job(JobSettings(topic_prefix="orders"))
    say(str(Corrupt(f"damaged: {RESTORE}")))
    assert capsys.readouterr().err == "popstream: damaged: stop the job and run `popstream restore --prefix orders`\n"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert "Traceback" not in result.output
    return result.exit_code, result.stderr


@pytest.mark.parametrize("command", ["restore", "verify", "snapshot"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_that_is_not_of_a_job_stays_as_it_is(tmp_path: Path, command: str, *, exists: bool) -> None:
    folder = tmp_path / "wrong"
    if exists:
        folder.mkdir()
    code, said = run(command, "--folder", str(folder))
    assert (code, said) == (
        2,
        f"popstream: {folder} is not the folder of a job: name it with --folder or --settings\n",
    )
    assert folder.exists() == exists
    assert [*tmp_path.rglob("*")] == ([folder] if exists else [])


def test_restore_creates_nothing_while_its_kafka_does_not_answer(tmp_path: Path) -> None:
    code, said = run("restore", "--folder", "new", "--bootstrap-servers", "127.0.0.1:1")
    assert code == 3
    assert "127.0.0.1:1" in said
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("command", ["verify", "snapshot"])
def test_a_lost_state_is_named_with_the_command(tmp_path: Path, command: str) -> None:
    folder = JobFolder(tmp_path / "job")
    folder.delta.mkdir(parents=True)
    code, said = run(command, "--folder", "job")
    assert (code, said) == (
        4,
        f"popstream: there is no state in job: stop the job and run `popstream restore --folder {folder.root}`\n"
        if command == "snapshot"
        else f"popstream: there is no state in {folder.root}: stop the job and run"
        f" `popstream restore --folder {folder.root}`\n",
    )
    assert sorted(path.name for path in folder.root.iterdir()) == ["delta"]


def test_a_damaged_state_is_named_with_the_command(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    with RocksStore(folder.state) as store:
        store.copy_to(tmp_path / "flushed")
    next(folder.state.glob("MANIFEST-*")).unlink()
    code, said = run("snapshot", "--folder", "job")
    assert code == 4
    assert f"stop the job and run `popstream restore --folder {folder.root}`" in said
    assert said.count("\n") == 1
