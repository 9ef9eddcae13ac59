"""Spark sessions of commands, which end with them; a job may run at the same time."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from connectors.delta.session import build_session
from connectors.delta.spark_errors import spark_errors_kept
from connectors.jars.resolve import spark_jars
from pipelines.cli.printing import new_console
from pipelines.process.jvm import ended_jvm, output_in, silence_query_errors
from pipelines.process.signals import held_signals

__all__ = ["reading_session", "session_of_command", "working"]


@contextlib.contextmanager
def reading_session(
    var: Path, *, driver_memory: str = "1g", java_options: Sequence[str] = ()
) -> Iterator[SparkSession]:
    """Start Spark for a command that reads tables, and stop it at the exit.

    Raises:
        SparkError: Spark failed, in the block too.
    """
    jars = spark_jars(var.absolute())

    def started(conf: dict[str, str]) -> SparkSession:
        return build_session("popstream-read", jars, driver_memory=driver_memory, java_options=java_options, conf=conf)

    with session_of_command(started) as session:
        yield session


@contextlib.contextmanager
def session_of_command(start: Callable[[dict[str, str]], SparkSession]) -> Iterator[SparkSession]:
    """Start Spark, and stop it with its JVM at the exit. The output of the JVM is discarded: errors are exceptions.

    Args:
        start: Returns the session; gets the settings that keep its files in a temporary folder.

    Raises:
        SparkError: Spark failed, in the block too.
    """
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch, ended_jvm():
        conf = {"spark.sql.warehouse.dir": str(Path(scratch, "warehouse")), "spark.local.dir": scratch}
        with spark_errors_kept(), working("starting Spark"), held_signals(), output_in(Path(os.devnull)):
            session = start(conf)
        silence_query_errors()
        try:
            with spark_errors_kept():
                yield session
        finally:
            session.stop()


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner on standard error if it is a terminal."""
    # On a copy: `output_in` may redirect descriptor 2 meanwhile.
    with os.fdopen(os.dup(2), "w") as stderr:
        console = new_console(file=stderr)
        with console.status(text) if console.is_terminal else contextlib.nullcontext():
            yield
