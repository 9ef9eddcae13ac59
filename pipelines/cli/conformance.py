"""`popstream conformance`: a line for each vector or history, and the sum."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, Group
from pipelines.conformance import Outcome, Verdict, run_histories, run_vectors

__all__ = ["conformance"]

conformance = typer.Typer(
    name="conformance",
    cls=Group,
    help="Compare the kernel with RocketMQ: vectors, or histories recorded from a real broker.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Files = Annotated[list[Path], typer.Argument(help="files to run", metavar="FILE...", show_default=False)]


@conformance.command(epilog=EPILOG)
def vectors(files: Files) -> None:
    """Run differential vectors; exit code 1 when one fails."""
    _report(verdict for file in files for verdict in run_vectors(file))


@conformance.command(epilog=EPILOG)
def histories(files: Files) -> None:
    """Replay recorded histories with their recorded times; exit code 1 when one fails."""
    _report(verdict for file in files for verdict in run_histories(file))


def _report(verdicts: Iterable[Verdict]) -> None:
    counts: Counter[Outcome] = Counter()
    for verdict in verdicts:
        counts[verdict.outcome] += 1
        typer.echo(str(verdict))
    differ, elsewhere = counts[Outcome.DIFFERS], counts[Outcome.NOT_APPLICABLE]
    typer.echo(f"{differ} differ by a rule (docs/differences.md), {elsewhere} not applicable")
    typer.echo(f"{counts[Outcome.PASS] + differ} passed, {counts[Outcome.FAIL]} failed")
    if counts[Outcome.FAIL]:
        raise typer.Exit(1)
