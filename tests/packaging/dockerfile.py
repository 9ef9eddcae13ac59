"""Reads docker/Dockerfile: its stages, and the files that `docker build` would send to it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

__all__ = ["Instruction", "Stage", "is_sent", "stages_of"]

NAMES = frozenset(
    "ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN USER VOLUME WORKDIR".split()  # noqa: SIM905 - as a table
)


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        name: `RUN`, `COPY` and so on.
        text: What follows, as one line.
    """

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of the text, without quotes."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


class Stage(NamedTuple):
    """A stage.

    Attributes:
        base: The stage that it begins with, or an image.
        name: Its own; empty for the last one.
        instructions: Those of the stage, in order.
    """

    base: str
    name: str
    instructions: list[Instruction]


def stages_of(dockerfile: str) -> list[Stage]:
    """Return the stages of a Dockerfile, with its arguments replaced by their defaults.

    >>> first, last = stages_of('ARG I=base:1\\nFROM ${I} AS build\\nRUN a \\\\\\n && b\\nFROM build\\nCMD ["up"]')
    >>> first.base, first.name, first.instructions
    ('base:1', 'build', [Instruction(name='RUN', text='a  && b')])
    >>> last.base, last.name, last.instructions[0].words
    ('build', '', ['up'])

    Raises:
        ValueError: It has an instruction that is not known here.
    """
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        name, text = line.split(maxsplit=1)
        if name not in NAMES:
            message = f"the instruction {name} is not known: {line}"
            raise ValueError(message)
        if name == "ARG":
            argument, _, default = text.partition("=")
            arguments[argument] = default
        elif name == "FROM":
            base, *alias = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text).split()
            stages.append(Stage(base, alias[1] if alias else "", []))
        else:
            stages[-1].instructions.append(Instruction(name, text))
    return stages


def is_sent(path: Path, ignored: str) -> bool:
    """Tell whether `docker build` sends a file, by the lines of .dockerignore: the last one that matches counts.

    >>> lines = "# all but\\n*\\n!code\\n**/__pycache__"
    >>> [is_sent(Path(path), lines) for path in ("secret", "code/a.py", "code/b/__pycache__/a.pyc")]
    [False, True, False]
    """
    sent = True
    for line in ignored.splitlines():
        pattern = line.removeprefix("!")
        if pattern and not pattern.startswith("#") and _matches(path, pattern):
            sent = line.startswith("!")
    return sent


def _matches(path: Path, pattern: str) -> bool:
    """Tell whether a pattern is that of the path, or of a folder that it is in."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    regex = "".join(parts.get(token) or re.escape(token) for token in tokens)
    return re.fullmatch(f"{regex}(?:/.*)?", str(path)) is not None
