"""The rows of the runbook in docs/reliability.md, the row that a message belongs to, and the commands of both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Row", "commands_in", "row_of", "rows"]

_PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_HEAD = "| message | meaning | repair |"
_COMMAND = re.compile(r"`popstream (up|restore|verify|snapshot|queue|migrate to-cluster)((?: [^`]*)?)`")
_CHOOSE_JOB = frozenset(
    ("--settings", "--folder", "--tables", "--bootstrap-servers", "--kafka-config", "--prefix", "--at", "--var")
)


class Row(NamedTuple):
    """One row: the beginnings of messages as patterns, and what to do."""

    messages: tuple[re.Pattern[str], ...]
    repair: str


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the runbook; `...` in a message stands for any text.

    >>> len(rows()) > 20
    True
    """
    lines = _PAGE.read_text(encoding="utf-8").split(_HEAD)[1].splitlines()[2:]
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[: lines.index("")]]
    return tuple(Row(tuple(map(_pattern, _messages(cells[0]))), cells[2]) for cells in table)


def _messages(cell: str) -> list[str]:
    """Return what is in back-quotes, but for the commands that a message is of, which are in parentheses."""
    return re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", cell))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part.strip()) for part in text.split("...")))


def row_of(message: str) -> Row | None:
    """Return the first row with a message that is found in this one; None if the runbook does not know it.

    >>> row = row_of("the state cannot be read: Corruption: block checksum mismatch")
    >>> row is not None and row.repair
    '`popstream restore`'
    >>> row_of("the moon is gone") is None
    True
    """
    return next((row for row in rows() if any(pattern.search(message) for pattern in row.messages)), None)


def commands_in(text: str) -> frozenset[str]:
    """Return the commands that repair something, without values, and without the options that choose the job.

    >>> sorted(commands_in("`popstream restore --snapshot ID --folder /job`, then `popstream up`, `popstream status`"))
    ['restore --snapshot', 'up']
    """
    found = set()
    for name, given in _COMMAND.findall(text):
        own = {word for word in given.split() if word.startswith("--")} - _CHOOSE_JOB
        found.add(" ".join([name, *sorted(own)]))
    return frozenset(found)
