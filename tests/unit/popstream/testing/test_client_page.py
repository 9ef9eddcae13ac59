"""Claim: the examples of docs/client.md and docs/cookbook.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from popstream.wire.command import Ack, Dispatch

DOCS = Path(__file__).parents[4] / "docs"
PAGE = DOCS / "client.md"
COOKBOOK = DOCS / "cookbook.md"


def examples_of(text: str, heading: str) -> dict[str, list[str]]:
    """Return the examples of the sections that begin with such a heading, by its text."""
    return {
        section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        for section in re.split(rf"\n{heading} ", text)
        if "```python" in section
    }


EXAMPLES = examples_of(PAGE.read_text(encoding="utf-8"), "##+")
HEAD, *TASKS = re.split(r"(?=\n## )", COOKBOOK.read_text(encoding="utf-8"))
TASK_EXAMPLES = examples_of("".join(TASKS), "##")
((TASK_SETUP,),) = examples_of(HEAD, "##").values()


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_examples_of_a_section_run(section: str) -> None:
    (program,) = EXAMPLES[section]  # of "With pytest" only the names, see below
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102


def test_there_are_fifteen_tasks() -> None:
    assert len(TASKS) == 15
    assert len(TASK_EXAMPLES) == 15


@pytest.mark.parametrize("task", TASK_EXAMPLES)
def test_the_example_of_a_task_runs_after_the_set_up(task: str) -> None:
    (program,) = TASK_EXAMPLES[task]
    assert "assert " in program
    names: dict[str, Any] = {}
    exec(compile(TASK_SETUP + program, f"{COOKBOOK}: {task}", "exec"), names)  # noqa: S102
    names["job"].close()


def test_the_example_of_asyncio_acks_a_message_after_its_copy_is_written() -> None:
    (program,) = TASK_EXAMPLES["Use asyncio"]
    names: dict[str, Any] = {}
    exec(compile(TASK_SETUP + program, str(COOKBOOK), "exec"), names)  # noqa: S102
    names["job"].close()
    copied = acked = 0
    for record in names["job"].records:
        if isinstance(record, Dispatch) and record.topic == "served":
            copied += sum(written.last - written.first + 1 for written in record.ranges)
        elif isinstance(record, Ack):
            acked += sum(last - first + 1 for entry in record.entries for first, last in entry.offsets)
            assert acked <= copied
    assert acked > 0


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
