"""Claim: the examples of docs/client.md run as they are printed."""

from __future__ import annotations

import re
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
    (program,) = EXAMPLES[section]
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102
