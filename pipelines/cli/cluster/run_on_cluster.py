"""The driver of a job on a Spark cluster: what `popstream submit` lets Spark run.

It ends with the exit codes of `popstream up`, so that a supervisor (`spark-submit --supervise`, YARN's attempts, a
Kubernetes restart policy) can tell what a new start may heal.
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from kafka.errors import KafkaError

from connectors.delta.spark_errors import SPARK_ERRORS, spark_text
from connectors.spark_cluster.storage import canonical_place, checkpoint_conf, tables_conf
from pipelines.cli.exits import Exit, error_text, exit_code, interrupt, say
from pipelines.cli.options import load_settings
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings, look_early
from pipelines.cluster.session import cluster_session
from pipelines.printed_commands import remember_job, remembered
from pipelines.process.logs import configure_logs
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the job until a signal or a failure; return the exit code."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return _run(options)
    except KeyboardInterrupt:
        say("stopped; everything that was decided is kept")
        return Exit.OK
    except PopstreamError as error:
        say(error_text(error))
        return exit_code(error)


def _run(options: argparse.Namespace) -> int:
    settings = load_settings(options.settings)
    configure_logs(settings.log_level, log_format=settings.log_format)
    connection = settings.connection
    if connection is None:
        message = "a job on a cluster needs a Kafka that all nodes reach: set `bootstrap_servers`"
        raise Invalid(message)
    cluster = ClusterSettings(
        checkpoint=(checkpoint := canonical_place(options.checkpoint)),
        tables=canonical_place(options.tables or f"{checkpoint}/tables"),
        tasks=settings.executors * settings.executor_cores,
    )
    remember_job(settings, options.settings)
    remembered("--checkpoint")(cluster.checkpoint)
    for option in ("tables", "environment", "python", "var"):
        remembered(f"--{option}")(getattr(options, option))
    places = {**checkpoint_conf(cluster.checkpoint, settings.hadoop_conf), **tables_conf(cluster.tables)}
    conf = {**places, **settings.session_conf}
    early_look = look_early(connection, settings.topic_prefix)
    with services_named():
        spark = cluster_session(f"popstream {settings.topic_prefix}", cluster.tasks, conf)
    remembered("--master")(spark.sparkContext.master)
    remembered("--deploy-mode", "client")(spark.conf.get("spark.submit.deployMode", "client"))
    try:
        job = ClusterJob(settings, cluster, connection, spark, take_over=options.take_over, early_look=early_look)
        with services_named():
            job.start()
        try:
            say(f"ready: {settings.topic_prefix} on {spark.sparkContext.master}, state in {cluster.checkpoint}")
            job.wait()
        finally:
            job.stop()
        if job.failure is not None:
            say(f"the job ended: {error_text(job.failure)}")
            return exit_code(job.failure)
        return Exit.OK
    finally:
        with contextlib.suppress(*SPARK_ERRORS):  # a JVM that has ended cannot be stopped
            spark.stop()


@contextlib.contextmanager
def services_named() -> Iterator[None]:
    """Name the service behind an error that Spark or Kafka's client raises in the block.

    Raises:
        Unavailable: With the first line of what it says. A new start may help.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        message = f"the job cannot start: {spark_text(error)}"
        raise Unavailable(message, subject="Spark") from error
    except KafkaError as error:
        message = f"the job cannot start: Kafka does not do what is asked ({error_text(error)})"
        raise Unavailable(message, subject="Kafka") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run_on_cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=Path, help="settings file, as for `popstream up`")
    parser.add_argument("--checkpoint", required=True, help="path or URL of the state; all nodes must reach it")
    parser.add_argument("--tables", help="path or URL of the Delta tables; default: `tables` in that of the state")
    parser.add_argument("--take-over", action="store_true", help="take over the prefix from its current owner")
    for option in ("environment", "python", "var"):
        parser.add_argument(f"--{option}", help="that of `popstream submit`, for the commands that messages name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
