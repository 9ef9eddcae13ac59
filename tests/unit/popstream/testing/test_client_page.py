"""Claim: the example of docs/client.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "client.md"


def test_the_example_of_a_test_without_kafka_runs() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Testing without Kafka")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102
