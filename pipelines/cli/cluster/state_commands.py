"""The commands on the state of a job on a cluster: `migrate to-cluster`, `migrate to-folder` and `rescale`."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, command_group
from pipelines.cli.options import DEFAULT_VAR, JsonOutput, RecoveryOptions, Var, takes_options
from pipelines.printed_commands import remembered

__all__ = ["migrate", "rescale"]

migrate = command_group("migrate", "Take the state of a job from one machine to a Spark cluster, and back.")

Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="URL",
        help="path or URL of the state on the cluster, as for `submit`",
        callback=remembered("--checkpoint"),
    ),
]


@migrate.command("to-cluster", epilog=EPILOG)
@takes_options(job=RecoveryOptions)
def to_cluster(
    checkpoint: Checkpoint,
    only: Annotated[
        str | None, typer.Option("--snapshot", metavar="ID", help="take this snapshot, not the state of the folder")
    ] = None,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Write the state of a stopped job, or a snapshot, for a job on a cluster.

    The first start of the job on the cluster takes it over: leases, handles
    and positions stay valid. The folder is only read. Refused if the ops topic
    no longer reaches back to the state. The tables stay where they are.
    """
    from pipelines.cli.cluster.state_on_cluster import run_to_cluster

    run_to_cluster(job.load(), checkpoint, only=only, var=var, as_json=as_json)


@migrate.command("to-folder", epilog=EPILOG)
@takes_options(job=RecoveryOptions)
def to_folder(
    checkpoint: Checkpoint,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Write the state of a stopped job on a cluster to a folder for `up`.

    Leases, handles and positions stay valid. The checkpoint is only read.
    The tables stay where they are, and the folder gets new ones.
    """
    from pipelines.cli.cluster.state_on_cluster import run_to_folder

    run_to_folder(job.load(), checkpoint, var=var, as_json=as_json)


@takes_options(job=RecoveryOptions)
def rescale(
    checkpoint: Checkpoint,
    partitions: Annotated[
        int, typer.Option(help="partitions of the state: as many tasks decide at a time", min=1, max=1024)
    ],
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Change the number of partitions of the state of a stopped job on a cluster.

    What it holds is compared before and after. Numbers that divide 64 spread
    the partitions of the ops topic evenly.
    """
    from pipelines.cli.cluster.state_on_cluster import run_rescale

    run_rescale(job.load(), checkpoint, partitions, var=var, as_json=as_json)
