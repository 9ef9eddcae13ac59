"""`popstream package` and `popstream submit`: a job on a Spark cluster."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import msgspec
import typer

from connectors.jars.resolve import s3_jars, spark_jars
from connectors.spark_cluster.packed_environment import pack, read_facts, this_python
from connectors.spark_cluster.spark_home import chosen_spark_home
from connectors.spark_cluster.storage import is_on_s3
from connectors.spark_cluster.submission import (
    UNPACKED,
    DeployMode,
    Submission,
    plain_line,
    require_submittable,
    submit_command,
)
from pipelines.cli.cluster.spark_submit_process import run_spark_submit
from pipelines.cli.cluster.submit_commands import DEFAULT_ENVIRONMENT
from pipelines.cli.cluster.unused_settings import require_place_of_tables, unused_settings
from pipelines.cli.exits import say
from pipelines.cli.options import DEFAULT_VAR, load_settings
from pipelines.cli.printing import print_facts, standard_output
from pipelines.job_settings import OTHER_VARIABLES, PREFIX, JobSettings
from popstream import __version__
from popstream.cli import JOB_CODE
from popstream.wire.base_errors import Invalid

__all__ = ["DRIVER_MODULE", "SubmitOptions", "run_package", "run_submit"]

DRIVER_MODULE: Final = "pipelines.cli.cluster.run_on_cluster"
MIB = 1024 * 1024


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command; its help describes them."""

    master: str
    checkpoint: str
    tables: str | None
    take_over: bool
    environment: str
    deploy_mode: DeployMode
    python: str | None
    settings_file: Path | None
    driver_settings: str | None
    only_print: bool
    var: Path


def run_package(out: Path, *, wheel: Path | None, wheels: Path) -> None:
    """Write a packed environment, and say what is in it.

    Raises:
        Invalid: pip is missing, the wheel is none, or there is no checkout.
        Unavailable: A package could not be downloaded.
    """
    facts = pack(out, wheels=wheels, own=wheel or JOB_CODE)
    content = out.read_bytes()
    print_facts(
        standard_output(),
        {
            "file": f"{out}, {len(content) / MIB:,.0f} MiB",
            "sha256": hashlib.sha256(content).hexdigest(),
            "popstream": f"{facts.popstream}, its kernel {facts.kernel}",
            "for": f"Python {facts.python} on {sys.platform} ({os.uname().machine})",
        },
    )


def run_submit(options: SubmitOptions) -> None:
    """Run `spark-submit`, or print its line.

    Raises:
        typer.Exit: With the exit code of the driver.
        Invalid: An option, a setting or a variable is wrong, or Spark or the packed environment is another one.
        JarError: A jar is missing.
    """
    settings = load_settings(options.settings_file)
    submission = _submission(options, settings)
    require_submittable(submission, {"--checkpoint": options.checkpoint, "--tables": options.tables})
    require_place_of_tables(settings, options.tables)
    _require_reachable_settings(options, settings)
    _require_fitting_environment(options)
    for line in unused_settings(settings):
        say(line)
    command = submit_command(submission, chosen_spark_home() / "bin" / "spark-submit")
    variables = {"PYTHONPATH": str(JOB_CODE)} if options.deploy_mode == DeployMode.CLIENT else {}
    if options.only_print:
        print(plain_line(command, variables))
        return
    raise typer.Exit(run_spark_submit(command, {**os.environ, **variables}))


def _submission(options: SubmitOptions, settings: JobSettings) -> Submission:
    file = options.settings_file
    is_here = options.deploy_mode == DeployMode.CLIENT
    travels = file is not None and not is_here and options.driver_settings is None
    found_at = options.driver_settings or (file and (str(file.absolute()) if is_here else file.name))
    jars = spark_jars(options.var)
    if is_on_s3(options.checkpoint) or is_on_s3(options.tables or ""):
        jars += s3_jars(options.var)
    return Submission(
        master=options.master,
        deploy_mode=options.deploy_mode,
        name=f"popstream {settings.topic_prefix}",
        module=[
            *(DRIVER_MODULE, "--checkpoint", options.checkpoint),
            *(("--tables", options.tables) if options.tables else ()),
            *(("--settings", str(found_at)) if found_at else ()),
            *(("--take-over",) if options.take_over else ()),
            *_repeated(options),
        ],
        environment=options.environment,
        python=options.python or f"python{this_python()}",
        jars=[jar.absolute() for jar in jars],
        files=[file.absolute()] if file is not None and travels else [],
        driver_memory=settings.driver_memory,
        executors=settings.executors,
        executor_cores=settings.executor_cores,
        executor_memory=settings.executor_memory,
        spark_conf=settings.spark_conf,
    )


def _repeated(options: SubmitOptions) -> list[str]:
    """Return the options that the driver does not need, and repeats in the commands that its messages name."""
    environment = options.environment
    if not environment.startswith(UNPACKED):
        environment = str(Path(environment).absolute())
    return [
        *(("--environment", environment) if options.environment != str(DEFAULT_ENVIRONMENT) else ()),
        *(("--python", options.python) if options.python else ()),
        *(("--var", str(options.var.absolute())) if options.var != DEFAULT_VAR else ()),
    ]


def _require_reachable_settings(options: SubmitOptions, settings: JobSettings) -> None:
    """Check that the driver has the settings that were checked here.

    Raises:
        Invalid: No Kafka is named, or settings come from where a driver on a node does not see them.
    """
    if settings.connection is None:
        message = "a job on a cluster needs an existing Kafka: name it with the setting bootstrap_servers"
        raise Invalid(message, subject="bootstrap_servers")
    if options.deploy_mode == DeployMode.CLIENT:
        return
    own = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES)
    if own:
        message = "variables do not reach a driver on a node; put these into the settings file:"
        raise Invalid(message, details=own)


def _require_fitting_environment(options: SubmitOptions) -> None:
    """Check that the nodes get this popstream.

    Raises:
        Invalid: The packed environment is missing, or is that of another popstream or Python.
    """
    if options.environment.startswith(UNPACKED):
        return
    file = Path(options.environment)
    facts = read_facts(file)
    wanted, wrong = this_python(), []
    if facts.popstream != __version__:
        wrong.append(f"it holds popstream {facts.popstream}, this is {__version__}")
    if facts.python != wanted:
        wrong.append(f"it is for Python {facts.python}, this is {wanted}")
    if wrong:
        message = f"{file} does not fit: make it again with `popstream package --out {file}`"
        raise Invalid(message, subject=str(file), details=wrong)
