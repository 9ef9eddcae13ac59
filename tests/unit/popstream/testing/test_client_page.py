"""Claim: the examples of docs/client.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_process.open_telemetry import make_provider

PAGE = Path(__file__).parents[4] / "docs" / "client.md"


EXAMPLES = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in re.split(r"\n##+ ", PAGE.read_text(encoding="utf-8"))
    if "```python" in section
}


@pytest.mark.parametrize("section", EXAMPLES)
def test_the_examples_of_a_section_run(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_provider(monkeypatch)  # OpenTelemetry's API, or a stand-in where it is not installed
    (program,) = EXAMPLES[section]  # of "With pytest" only the names, see below
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102


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
