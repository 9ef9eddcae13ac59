"""How results look on a terminal, and in a file or pipe."""

from collections.abc import Mapping

from rich.console import Console

__all__ = ["print_facts", "standard_output"]

WIDTH_IN_FILES = 200


def standard_output() -> Console:
    """Standard output: as wide as the terminal, and in a file wide enough for whole rows."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_IN_FILES)


def print_facts(console: Console, facts: Mapping[str, object], *, indent: int = 0) -> None:
    """Names and values below each other; a value is never cut."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        console.print(f"{'':{indent}}{name:<{width}}  {value}", markup=False, soft_wrap=True)
