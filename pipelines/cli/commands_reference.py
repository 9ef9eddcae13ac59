"""Generates docs/commands.md: `python -m pipelines.cli.commands_reference > docs/commands.md`."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator

import typer
from typer.core import TyperCommand, TyperGroup

from pipelines.cli.app import app

__all__ = ["commands_markdown"]

_HEAD = """\
# Commands

Generated from the commands' own help by `python -m pipelines.cli.commands_reference`; a test keeps it current.

`popstream COMMAND --help` prints the same. [Operating the job](operating.md) says when to use which, and has the
[exit codes](operating.md#exit-codes).
"""

_SHARED_BY_MIN = 4
"""An option that as many commands have with the same words is described once, for all of them."""

_SHARED = """
## Options of many commands

"""

_VALUES = {"<int>": "N", "<int range>": "N", "<float>": "N", "<float range>": "N", "<str>": "TEXT", "<path>": "PATH"}
"""What the help calls the type of a value, and what this document does."""

_TABLE = "| option | meaning |\n|---|---|\n"

_Row = tuple[str, str]
"""(argument, or option with its value; meaning)"""


def commands_markdown() -> str:
    """Return the whole document."""
    commands = list(_leaves(typer.main.get_command(app), "popstream"))
    rows = {name: _rows(command) for name, command in commands}
    count = Counter(row for of_one in rows.values() for row in of_one)
    common = [row for row, times in count.most_common() if times >= _SHARED_BY_MIN and row[0].startswith("-")]
    # Of an option with several meanings the most common one is shared: the commands with the others have it themselves.
    shared = set({_name(row): row for row in reversed(common)}.values())
    parts = [_HEAD]
    for name, command in commands:
        parts.append(f"\n## `{name}`\n\n`{name} {_usage(command)}`\n\n{_text(command)}\n")
        own = [row for row in rows[name] if row not in shared]
        if own:
            parts.append(f"\n{_TABLE}{_lines(own)}")
        others = [f"`{_name(row)}`" for row in rows[name] if row in shared]
        if others:
            parts.append(f"\nAnd [of many commands](#options-of-many-commands): {', '.join(others)}.\n")
    parts.append(f"{_SHARED}{_TABLE}{_lines(sorted(shared))}")
    return "".join(parts)


def _leaves(command: object, name: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yield (full name, command) of each command that does something, in the order of the help."""
    if isinstance(command, TyperGroup):
        for child, found in command.commands.items():
            yield from _leaves(found, f"{name} {child}")
    elif isinstance(command, TyperCommand):
        yield name, command


def _rows(command: TyperCommand) -> list[_Row]:
    """Return the arguments and options of a command, without `--help`."""
    context = typer.Context(command)
    rows: list[_Row] = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            name, _, value = record[0].partition(" ")
            value = _VALUES.get(value, value) if name.startswith("-") else ""
            rows.append((f"{name} {value}".rstrip(), " ".join(record[1].split())))
    return rows


def _name(row: _Row) -> str:
    return row[0].partition(" ")[0]


def _usage(command: TyperCommand) -> str:
    """Return what follows the name of the command."""
    pieces = command.collect_usage_pieces(typer.Context(command))
    # An argument is `{NAME}` there, and `{NAME...}...` if it takes several values.
    return " ".join(re.sub(r"[{}]|(?<=[}\]])\.{3}$", "", piece) for piece in pieces)


def _text(command: TyperCommand) -> str:
    """Return the text of the help; paragraphs of command lines become code."""
    paragraphs = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(
        f"```sh\n{text}\n```" if all(line.startswith("popstream ") for line in text.splitlines()) else text
        for text in paragraphs
    )


def _lines(rows: list[_Row]) -> str:
    return "".join(f"| `{_cell(option)}` | {_cell(text).replace('<', '&lt;')} |\n" for option, text in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(commands_markdown())
