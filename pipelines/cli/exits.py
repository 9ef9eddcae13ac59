"""How a command ends: one clear line on standard error, and a number that a script can tell apart."""

import sys
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

from connectors.jars.resolve import JarError
from popstream.wire.failures import Corrupt, Fenced, Invalid, PopstreamError, Unavailable

__all__ = ["EPILOG", "Exit", "Group", "described", "exit_code", "say"]

TEXT_MAX = 500


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    NOT_AS_ASKED = 1
    INVALID = 2
    UNAVAILABLE = 3
    CORRUPT = 4


EPILOG = (
    "Exit codes: 0 done (also when stopped by Ctrl-C or SIGTERM); 1 an operation was refused, an expectation failed, or"
    " something unforeseen happened; 2 wrong options or settings, or another process owns the folder; 3 something does"
    " not answer: try again; 4 stored data contradicts itself."
)


class Group(TyperGroup):
    """Turns the project's errors into lines and exit codes, for every command."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own types are private
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (PopstreamError, JarError) as error:
            say(described(error))
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(Exit.OK) from None
        except BrokenPipeError:
            # Whoever read the output has seen enough. Nothing may be flushed into the closed pipe at exit.
            sys.stdout = None
            raise typer.Exit(Exit.OK) from None


def exit_code(error: BaseException) -> Exit:
    """The number for an error.

    >>> exit_code(Unavailable("no Kafka")).value, exit_code(ValueError()).value
    (3, 1)
    """
    if isinstance(error, Invalid | Fenced | JarError):
        return Exit.INVALID
    if isinstance(error, Unavailable):
        return Exit.UNAVAILABLE
    return Exit.CORRUPT if isinstance(error, Corrupt) else Exit.NOT_AS_ASKED


def described(error: BaseException) -> str:
    """What an operator reads of an error: ours whole, of any other its kind and first line.

    >>> described(OSError("disk on fire"))
    'OSError: disk on fire'
    """
    if isinstance(error, PopstreamError | JarError):
        return str(error)
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first[:TEXT_MAX]}"


def say(text: str) -> None:
    """One message to the person, on standard error."""
    print(f"popstream: {text}", file=sys.stderr, flush=True)
