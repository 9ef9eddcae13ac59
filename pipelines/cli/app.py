"""The command line: all commands, and its entry.

The functions of a command's options are light; each imports the code of the command when it is called, so that `--help`
starts no Spark.
"""

import signal
from typing import Annotated

import typer

from pipelines.cli.clients.dead_commands import dead
from pipelines.cli.clients.group_commands import group, policy
from pipelines.cli.clients.message_commands import consume, ops, perf, release, send
from pipelines.cli.cluster.state_commands import migrate, rescale
from pipelines.cli.cluster.submit_commands import package, submit
from pipelines.cli.exits import EPILOG, Group, interrupt
from pipelines.cli.history import history
from pipelines.cli.job_commands import demo, up
from pipelines.cli.state.state_commands import queue, restore, snapshot, status, verify
from pipelines.cli.tables.table_commands import check, erase, maintain, query, report, why
from pipelines.cli.tuning_commands import recommend, what_if
from pipelines.process.logs import configure_logs

__all__ = ["app", "main"]

app = typer.Typer(
    name="popstream",
    cls=Group,
    help="Leases, acks, retries and dead letters for plain Kafka topics.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS = (
    *(up, demo),
    *(package, submit, rescale),
    *(ops, send, consume, perf, release),
    *(status, queue, policy, snapshot, restore, verify),
    *(query, why, report, maintain, erase, check),
    *(what_if, recommend),
)
for command in COMMANDS:
    app.command(epilog=EPILOG)(command)
app.add_typer(group)
app.add_typer(dead)
app.add_typer(history)
app.add_typer(migrate)


@app.callback()
def show_version(
    _: Annotated[bool, typer.Option("--version", help="print the version and exit", is_eager=True)] = False,  # noqa: FBT002 - an option
) -> None:
    """Declare `--version` for the help: popstream/cli.py answers it before anything is imported."""


def main() -> None:
    """Run the command line."""
    # SIGTERM unwinds the stack like Ctrl-C, so that every command closes what it has open.
    signal.signal(signal.SIGTERM, interrupt)
    # Standard output is for results. `up` configures its own log.
    configure_logs("warning", tracebacks=False)
    app()
