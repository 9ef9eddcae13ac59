"""Claim: what a command cannot do with a job on a cluster it says in one line, with what does it instead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pipelines import printed_commands
from pipelines.cli.app import app
from pipelines.printed_commands import with_options

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
        (["restore", *URL], "`popstream migrate to-cluster --snapshot ID --checkpoint NEW-URL`"),
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


def test_a_message_names_the_checkpoint_of_the_command() -> None:
    text = "run `popstream snapshot` now, `popstream status`, or `popstream verify --fresh`"
    assert with_options(text) == text
    CliRunner().invoke(app, ["restore", *URL, "--prefix", "orders"])
    named = "--checkpoint hdfs://name/orders"
    assert with_options(text) == (
        f"run `popstream snapshot {named}` now, `popstream status`, or `popstream verify --fresh {named}`"
    )
    CliRunner().invoke(app, ["status", "--folder", "nowhere"])
    assert named not in with_options(text)
