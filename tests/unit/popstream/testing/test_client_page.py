"""Claim: the examples of docs/client.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "client.md"


@pytest.mark.parametrize("title", ["Retries", "Testing without Kafka"])
def test_the_example_of_a_section_runs(title: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102
