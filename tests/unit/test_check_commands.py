"""Claim: pre-commit runs the commands of `make check`, in the same order. Method: compare the two files."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def commands_of_make_check() -> list[str]:
    """The lines of the target's recipe, with the folder of programs filled in."""
    text = (ROOT / "Makefile").read_text()
    (folder,) = re.findall(r"^BIN := (.*)$", text, re.MULTILINE)
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return [line.strip().lstrip("@").replace("$(BIN)", folder) for line in recipe.splitlines()]


def test_pre_commit_runs_what_make_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == commands_of_make_check()
    for hook in repository["hooks"]:
        assert (hook["language"], hook["always_run"], hook["pass_filenames"]) == ("system", True, False)
