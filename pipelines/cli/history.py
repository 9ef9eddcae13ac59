"""`popstream history`: check what clients recorded of their operations."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pipelines.cli.exits import EPILOG, Exit, command_group
from pipelines.cli.options import JsonOutput

if TYPE_CHECKING:
    from popstream.history.check import Report

__all__ = ["history"]

history = command_group("history", "Check the histories that clients record with the setting `history_file`.")


@history.callback()
def _is_a_group() -> None:
    """Make typer keep the name `check` although it is the only command."""


@history.command(epilog=EPILOG)
def check(
    files: Annotated[list[Path], typer.Argument(help="histories to check together", metavar="FILE...")],
    *,
    drained: Annotated[
        bool, typer.Option("--drained", help="every group had consumed everything: also report lost messages")
    ] = False,
    as_json: JsonOutput = False,
) -> None:
    """Report what the clients saw that must not happen. Exit code 1: there is a violation.

    Pass the histories of all clients and administrators of the groups at
    once: the operations of one client explain what another one saw.
    """
    from popstream.history.check import check_history
    from popstream.history.recorder import read_history

    report = check_history(read_history(*files), drained=drained)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report)
    if report.violations:
        raise typer.Exit(Exit.NOT_AS_ASKED)


def _print(report: "Report") -> None:
    for violation in report.violations:
        typer.echo(str(violation))
    typer.echo(
        f"{report.event_count:,} events, {report.operation_count:,} operations of which {report.unknown_count:,} have"
        f" an unknown outcome, {report.delivery_count:,} deliveries"
    )
    if report.unjudged_lane_count:
        typer.echo(f"{report.unjudged_lane_count} lanes are not checked: their mode was changed")
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.counts.items())
    typer.echo(f"{len(report.violations)} violations in {report.lane_count} lanes{f': {kinds}' if kinds else ''}")
