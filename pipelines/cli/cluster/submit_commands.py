"""The commands for jobs on a Spark cluster: `package` and `submit`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from connectors.spark_cluster.submission import DeployMode
from pipelines.cli.options import DEFAULT_VAR, SettingsFile, Var

__all__ = ["DEFAULT_ENVIRONMENT", "package", "submit"]

DEFAULT_ENVIRONMENT = Path("popstream-environment.zip")


def package(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the file to write")] = DEFAULT_ENVIRONMENT,
    wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the wheel of popstream; by default it is built from this checkout"),
    ] = None,
    wheels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="folder of the packages' wheels, where missing ones are downloaded to",
            show_default="wheels in that of --var",
        ),
    ] = None,
    var: Var = DEFAULT_VAR,
) -> None:
    """Pack what a job needs on the nodes of a Spark cluster: popstream, and the packages that it imports.

    The packages are the locked ones. With their wheels in place no network is needed, and the same wheels give the same
    bytes.
    """
    from pipelines.cli.cluster.submit import run_package

    run_package(out, wheel=wheel, wheels=wheels or var / "wheels")


def submit(
    master: Annotated[str, typer.Option(metavar="URL", help="spark://host:port, yarn, or k8s://host:port")],
    checkpoint: Annotated[
        str,
        typer.Option(metavar="URL", help="where the state is kept: a path that all nodes share, s3a://, hdfs:// ..."),
    ],
    tables: Annotated[
        str | None,
        typer.Option(metavar="URL", help="where the Delta tables are", show_default="tables in that of the state"),
    ] = None,
    environment: Annotated[
        str,
        typer.Option(
            metavar="FILE|local:FOLDER",
            help="what `popstream package` has written; local: where every node has it unpacked",
        ),
    ] = str(DEFAULT_ENVIRONMENT),
    deploy_mode: Annotated[
        DeployMode, typer.Option(help="where the driver runs: in this process, or on a node of the cluster")
    ] = DeployMode.CLIENT,
    python: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Python of the nodes", show_default="python3.N, of this version"),
    ] = None,
    settings: SettingsFile = None,
    driver_settings: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="where a driver on a node finds the settings; by default the file travels with the job"
        ),
    ] = None,
    take_over: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--take-over", help="take over the prefix from its current owner, which then stops")
    ] = False,
    only_print: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--print", help="print the line for a shell that submits the job, and end")
    ] = False,
    var: Var = DEFAULT_VAR,
) -> None:
    """Run the job on a Spark cluster: by `spark-submit`, whose exit code is that of the driver.

    Settings are those of `popstream up`; a job on a cluster needs an existing Kafka.
    """
    from pipelines.cli.cluster.submit import SubmitOptions, run_submit

    run_submit(
        SubmitOptions(
            master=master,
            checkpoint=checkpoint,
            tables=tables,
            take_over=take_over,
            environment=environment,
            deploy_mode=deploy_mode,
            python=python,
            settings_file=settings,
            driver_settings=driver_settings,
            only_print=only_print,
            var=var,
        )
    )
