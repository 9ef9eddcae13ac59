"""The rows of the runbook in docs/reliability.md, the row that a message belongs to, and the commands of both; what the
runbook of clusters in docs/scale.md quotes.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Row", "commands_in", "quoted_for_clusters", "row_of", "rows", "text_pattern"]

_DOCS = Path(__file__).parents[2] / "docs"
_HEAD = "| message | meaning | repair |"
_HEAD_FOR_CLUSTERS = "| symptom | cause | what to do |"
_QUOTED = re.compile(r'"([^"]+)"|`([a-z]+(?:_[a-z]+)+)`')
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
    table = _table("reliability.md", _HEAD)
    return tuple(Row(tuple(map(text_pattern, _messages(cells[0]))), cells[2]) for cells in table)


def quoted_for_clusters() -> list[str]:
    """Return what the symptoms of the runbook of clusters quote: parts of messages, and names of logs and metrics.

    >>> {"it is an older copy", "query_failed"} <= {*quoted_for_clusters()}
    True
    """
    symptoms = [cells[0] for cells in _table("scale.md", _HEAD_FOR_CLUSTERS)]
    return sorted({message or name for symptom in symptoms for message, name in _QUOTED.findall(symptom)})


def _table(page: str, head: str) -> list[list[str]]:
    lines = (_DOCS / page).read_text(encoding="utf-8").split(head)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[: lines.index("")]]


def _messages(cell: str) -> list[str]:
    """Return what is in back-quotes, but for the commands that a message is of, which are in parentheses."""
    return re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", cell))


def text_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that finds a text in which `...` stands for any other.

    >>> text_pattern("has taken the prefix ... meanwhile").search("a job has taken the prefix p meanwhile") is None
    False
    """
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
