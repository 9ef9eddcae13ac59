"""Claim: the examples of docs/client.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "client.md"


TASKS = "Fifteen tasks"


def examples_of(text: str, heading: str) -> dict[str, list[str]]:
    """Return the examples of the sections that begin with such a heading, by its text."""
    return {
        section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        for section in re.split(rf"\n{heading} ", text)
        if "```python" in section
    }


BEFORE, TASKS_TEXT, AFTER = re.split(
    rf"(\n## {TASKS}\n.*?)(?=\n## )", PAGE.read_text(encoding="utf-8"), maxsplit=1, flags=re.DOTALL
)
EXAMPLES = examples_of(BEFORE + AFTER, "##+")
TASK_EXAMPLES = examples_of(TASKS_TEXT, "###")
((TASK_SETUP,),) = examples_of(TASKS_TEXT.partition("\n### ")[0], "##").values()
del TASK_EXAMPLES[""]  # the set-up


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_examples_of_a_section_run(section: str) -> None:
    (program,) = EXAMPLES[section]  # of "With pytest" only the names, see below
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102


def test_there_are_fifteen_tasks() -> None:
    assert TASKS_TEXT.count("\n### ") == 15
    assert len(TASK_EXAMPLES) == 15


@pytest.mark.parametrize("task", TASK_EXAMPLES)
def test_the_example_of_a_task_runs_after_the_set_up(task: str) -> None:
    (program,) = TASK_EXAMPLES[task]
    assert "assert " in program
    names: dict[str, Any] = {}
    exec(compile(TASK_SETUP + program, f"{PAGE}: {task}", "exec"), names)  # noqa: S102
    names["job"].close()


def test_the_test_of_a_handler_passes(tmp_path: Path) -> None:
    (program,) = EXAMPLES["With pytest"]
    (tmp_path / "test_bar.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    ended = subprocess.run(
        [*command, "-W", "ignore", str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1].split(" in ")[0]) == (0, "2 passed"), ended.stdout
