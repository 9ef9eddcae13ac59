"""The commands `popstream dead list`, `show`, `redrive` and `purge`."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from enum import StrEnum
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, command_group
from pipelines.cli.options import AdminKeyFile, JsonOutput, LetterOptions, ServerOptions, takes_options

__all__ = ["dead"]

dead = command_group("dead", "Look at the dead letters of a job, send them again, or mark them as handled.")


class To(StrEnum):
    """Who gets a redriven message."""

    GROUP = "group"
    TOPIC = "topic"


Letters = Annotated[
    list[str] | None,
    typer.Argument(help="only these letters, as `dead list` names them, such as 2/17", metavar="LETTER..."),
]
LetterLimit = Annotated[int, typer.Option(metavar="N", help="handle only the oldest N; 0: all", min=0)]
Comment = Annotated[str, typer.Option(help="why, to be recorded with each letter", metavar="TEXT")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")]


@dead.command("list", epilog=EPILOG)
@takes_options(letters=LetterOptions, server=ServerOptions)
def list_letters(
    *,
    letters: LetterOptions,
    limit: Annotated[int, typer.Option(metavar="N", help="show only the oldest N; 0: all", min=0)] = 100,
    handled: Annotated[
        bool, typer.Option("--all", help="also those that were redriven or purged, and when, how and by whom")
    ] = False,
    server: ServerOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the dead letters that nobody has handled, oldest first."""
    from pipelines.cli.clients.dead_letters import run_list
    from pipelines.cli.target import find_target

    run_list(find_target(server), letters.selection(), limit=limit, handled=handled, as_json=as_json)


@dead.command(epilog=EPILOG)
@takes_options(server=ServerOptions)
def show(
    letter: Annotated[str, typer.Argument(help="a letter as `dead list` names it, such as 2/17", metavar="LETTER")],
    bytes_max: Annotated[
        int, typer.Option("--bytes", metavar="N", help="how many bytes of key, value and each header are shown", min=1)
    ] = 4_096,
    *,
    server: ServerOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show one dead letter: the message, why it was given up, and what became of it.

    If the job runs on this machine, also what it knows about the
    place of the message in its queue.
    """
    from pipelines.cli.clients.dead_letters import run_show
    from pipelines.cli.target import find_target
    from popstream.dead_letters.letter import parse_place

    place = parse_place(letter)
    run_show(find_target(server), place, bytes_max=bytes_max, as_json=as_json)


@dead.command(epilog=EPILOG)
@takes_options(selected=LetterOptions, server=ServerOptions)
def redrive(
    letters: Letters = None,
    *,
    selected: LetterOptions,
    to: Annotated[
        To, typer.Option(help="group: only the group that gave a message up gets it; topic: every group does")
    ] = To.GROUP,
    limit: LetterLimit = 0,
    comment: Comment = "",
    dry_run: DryRun = False,
    admin_key_file: AdminKeyFile = None,
    server: ServerOptions,
) -> None:
    """Send the messages of dead letters again; their attempts count from 1.

    All that nobody has handled, or those that are selected. A redrive
    that was stopped or killed has lost nothing: the same command goes on
    where it ended, and sends nothing twice. Exit code 1: some could not
    be redriven; they stay. The job has to run; where it has admin keys,
    it needs --admin-key-file.

    popstream dead redrive --group billing --reason '*Timeout*'
    """
    from pipelines.cli.clients.dead_letters import run_redrive
    from pipelines.cli.target import find_target

    selection = selected.selection(letters or ())
    target = find_target(server, admin_key_file)
    run_redrive(target, selection, to=to.value, limit=limit or None, comment=comment, dry_run=dry_run)


@dead.command(epilog=EPILOG)
@takes_options(selected=LetterOptions, server=ServerOptions)
def purge(
    letters: Letters = None,
    *,
    selected: LetterOptions,
    limit: LetterLimit = 0,
    comment: Comment = "",
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="then delete from Kafka what lies before the first letter that nobody has handled"
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    server: ServerOptions,
) -> None:
    """Mark dead letters as handled without sending them: `dead list` no longer shows them.

    All that nobody has handled, or those that are selected. Nothing is
    deleted without --erase, which says what stays behind a letter that
    nobody has handled: Kafka deletes the beginning of a partition only.
    """
    from pipelines.cli.clients.dead_letters import run_purge
    from pipelines.cli.target import find_target

    selection = selected.selection(letters or ())
    run_purge(
        find_target(server), selection, limit=limit or None, comment=comment, erase=erase, dry_run=dry_run, yes=yes
    )
