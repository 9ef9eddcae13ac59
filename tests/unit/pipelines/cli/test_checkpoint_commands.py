"""Claim: what a command cannot do with a job on a cluster it says in one line, with what does it instead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from checkpoints.applied import Applied
from checkpoints.snapshot_store import SnapshotStore
from pipelines import printed_commands
from pipelines.cli.app import app
from pipelines.printed_commands import completed_commands

if TYPE_CHECKING:
    from pathlib import Path

URL = ["--checkpoint", "hdfs://name/orders"]


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(printed_commands, "_options", {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["restore", *URL], "start it with --take-over, a new --checkpoint and new --tables"),
        (["restore", *URL, "--snapshot", "none"], "start it with --take-over, a new --checkpoint and new --tables"),
        (["restore", *URL, "--snapshot", "it"], "`popstream migrate to-cluster --snapshot it --checkpoint NEW-URL`"),
        (["queue", "orders", "--queue", "0", "--rebuild-from", "5", *URL], "start it with a new --checkpoint"),
        (["status", "--ready", *URL], "`popstream status --ready --api URL`"),
        (["restore", "--tables", "s3://bucket/tables"], "tables at a URL are those of a job on a Spark cluster"),
        (["verify", "--tables", "s3://bucket/tables"], "tables at a URL are those of a job on a Spark cluster"),
    ],
)
def test_it_says_what_does_it_instead(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_restore_names_the_newest_snapshot(tmp_path: Path) -> None:
    for number in (1, 2):
        state = tmp_path / f"state-{number}"
        state.mkdir()
        applied = Applied(state_epoch="e", ops_topic="o", ops_topic_id="i", apply_seq=number)
        SnapshotStore(str(tmp_path / "kept")).put(state, applied, taken_at_ms=number)
    said = CliRunner().invoke(app, ["restore", *URL, "--at", "kept"]).stderr
    assert (
        "`popstream migrate to-cluster --snapshot 19700101T000000Z-000000000002 --checkpoint NEW-URL"
        f" --at {tmp_path / 'kept'}`"
    ) in said


def test_a_message_names_the_checkpoint_of_the_command() -> None:
    text = "run `popstream snapshot` now, `popstream dead list`, or `popstream verify --fresh`"
    assert completed_commands(text) == text
    CliRunner().invoke(app, ["restore", *URL])
    named = "--checkpoint hdfs://name/orders"
    assert completed_commands(text) == (
        f"run `popstream snapshot {named}` now, `popstream dead list`, or `popstream verify --fresh {named}`"
    )
    again = completed_commands("start it with `popstream up --take-over`")
    assert again == f"start it with `popstream submit --take-over {named}`"
    assert completed_commands("run `popstream restore`") == f"run `popstream restore {named}`"
    rescale = completed_commands("finish it with `popstream rescale --partitions 8`")
    assert rescale == f"finish it with `popstream rescale --partitions 8 {named}`"
    CliRunner().invoke(app, ["status", "--folder", "nowhere"])
    assert named not in completed_commands(text)
