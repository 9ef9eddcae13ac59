"""Output of results to a terminal, a file or a pipe."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import say
from pipelines.printed_commands import completed_commands

__all__ = ["counted", "new_console", "print_facts", "print_progress", "standard_output"]

WIDTH_IN_FILES = 200


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "message"), counted(0, "message")
    ('1 message', '0 messages')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


class _Escaped:
    """Something to print, without characters that a terminal would obey beside those of its style."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            text = segment.text if segment.control else escape_controls(segment.text, kept="\n\t")
            yield Segment(text, segment.style, segment.control)


class _EscapeAll(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise it, as `print` does: rich itself would end the process with exit code 1."""
        raise BrokenPipeError


def new_console(**options: Any) -> Console:  # noqa: ANN401 - Console's
    """Return a console for texts of others: it replaces no `:name:` by a picture, and no text controls the terminal."""
    console = _Console(highlight=False, emoji=False, **options)
    console.push_render_hook(_EscapeAll())
    return console


def standard_output() -> Console:
    """Return a console on standard output, as wide as the terminal; in a file it is wide enough for whole rows."""
    console = new_console()
    return console if console.is_terminal else new_console(width=WIDTH_IN_FILES)


def print_facts(console: Console, facts: Mapping[str, object], *, indent: int = 0) -> None:
    """Print one name and value per line. Values are never truncated."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        console.print(f"{'':{indent}}{name:<{width}}  {completed_commands(str(value))}", markup=False, soft_wrap=True)


def print_progress(report: msgspec.Struct, *, as_json: bool) -> None:
    """Print on standard error how far a command is: a line for people, or of JSON."""
    if as_json:
        print(msgspec.json.encode(report).decode(), file=sys.stderr, flush=True)
    else:
        say(str(report))
