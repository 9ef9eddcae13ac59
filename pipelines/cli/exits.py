"""How a command ends: one clear line on standard error, and an exit code that scripts can tell apart."""

import errno
import os
import signal
import sys
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from connectors.jars.resolve import JarError
from pipelines.cli.control_characters import escape_controls
from pipelines.printed_commands import completed_commands
from popstream.errors import Refused
from popstream.wire.base_errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable

__all__ = [
    "EPILOG",
    "Exit",
    "Group",
    "command_group",
    "error_text",
    "exit_code",
    "interrupt",
    "interrupted_code",
    "interruption",
    "say",
]

TEXT_MAX = 500


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    NOT_AS_ASKED = 1
    INVALID = 2
    UNAVAILABLE = 3
    CORRUPT = 4


EPILOG = (
    "Exit codes: 0 success; 1 the job refused an operation, an expectation failed, or an unexpected error occurred; 2"
    " invalid options or settings, or another process owns the folder or the prefix; 3 a service does not respond: try"
    " again; 4 stored data is inconsistent; 130 or 143 stopped by Ctrl-C or SIGTERM, after which `up` ends with 0, and"
    " `verify` with 3;"
    " 141 the reader of the output has gone."
)


class Group(TyperGroup):
    """A group of commands that turns the errors of this project into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own types are private
        """Run the command."""
        try:
            found = super().invoke(ctx)
            if sys.stdout is not None:  # what is still buffered may fail as well, and at the exit nobody would say so
                sys.stdout.flush()
        except (PopstreamError, JarError) as error:
            say(error_text(error))
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt as error:
            say(interruption(error))
            raise typer.Exit(interrupted_code(error)) from None
        except UnicodeEncodeError as error:  # Python reads bytes that are not UTF-8 as half characters
            say("an argument or a path has bytes that are not UTF-8")
            raise typer.Exit(Exit.INVALID) from error
        except BrokenPipeError:
            # The reader of the output has gone: nobody knows what was left to do. Nothing may be flushed at exit.
            sys.stdout = None
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except OSError as error:  # a file that is a folder, or belongs to somebody else: it is named
            say(error_text(error))
            if error.filename is None and error.errno == errno.ENOSPC:  # that of the output: it would fail once more
                say("the output is not complete")
                sys.stdout = None
            raise typer.Exit(Exit.NOT_AS_ASKED) from error
        return found

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return the options of the group."""
        return _without_flag_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return a command of the group."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_flag_types(command.get_params(ctx))
        return command


def command_group(name: str, help_text: str) -> typer.Typer:
    """Return a group of sub-commands: without one of them it prints its help."""
    return typer.Typer(name=name, cls=Group, help=help_text, epilog=EPILOG, no_args_is_help=True)


def exit_code(error: BaseException) -> Exit:
    """Return the exit code for an error.

    >>> exit_code(Unavailable("no Kafka")).value, exit_code(ValueError()).value
    (3, 1)
    """
    if isinstance(error, Refused):  # by the job, whatever is wrong with the operation
        return Exit.NOT_AS_ASKED
    if isinstance(error, Invalid | Fenced | JarError):
        return Exit.INVALID
    if isinstance(error, Unavailable):
        return Exit.UNAVAILABLE
    return Exit.CORRUPT if isinstance(error, Corrupt) else Exit.NOT_AS_ASKED


def error_text(error: BaseException) -> str:
    """Return the text of an error for operators: errors of this project in full, others as type and first line.

    >>> error_text(OSError("disk on fire"))
    'OSError: disk on fire'
    """
    if isinstance(error, PopstreamError | JarError):
        return str(error)
    try:
        first, *_ = str(error).splitlines() or [""]
    except Exception:  # noqa: BLE001 - an error of a JVM that has ended has no text
        first = ""
    return f"{type(error).__name__}: {first[:TEXT_MAX]}"


def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    """Handle a signal: unwind the stack, so that a command closes what it has open.

    Raises:
        KeyboardInterrupt: Always, with the number of the signal.
    """
    raise KeyboardInterrupt(number)


def interrupted_code(interrupted: KeyboardInterrupt) -> int:
    """Return the exit code that a shell reports for a process that the signal has ended.

    >>> interrupted_code(KeyboardInterrupt()), interrupted_code(KeyboardInterrupt(signal.SIGTERM))
    (130, 143)
    """
    return 128 + _signal_of(interrupted)


def interruption(interrupted: KeyboardInterrupt) -> str:
    """Return what ended the command, and what it had done, as far as it has said so in a note.

    >>> interruption(KeyboardInterrupt(signal.SIGTERM))
    'stopped by SIGTERM'
    """
    cause = "Ctrl-C" if _signal_of(interrupted) == signal.SIGINT else _signal_of(interrupted).name
    return ": ".join((f"stopped by {cause}", *getattr(interrupted, "__notes__", ())))


def _signal_of(interrupted: KeyboardInterrupt) -> signal.Signals:
    return signal.Signals(interrupted.args[0] if interrupted.args else signal.SIGINT)


def say(text: str) -> None:
    """Print one message for the user on standard error, its commands with the options of the job."""
    try:
        print(escape_controls(f"popstream: {completed_commands(text)}", kept="\n"), file=sys.stderr, flush=True)
    except BrokenPipeError:  # nobody reads it any more, which is no reason to stop
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends


def _without_flag_types(params: Any) -> Any:  # noqa: ANN401
    """Keep typer's help from showing `<bool>` after a flag, which takes no value."""
    for param in params:
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
    return params
