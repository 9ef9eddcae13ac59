"""A Spark session for commands that only read; a job may run at the same time."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from connectors.delta.session import build_session
from connectors.delta.spark_errors import spark_errors_kept
from connectors.jars.resolve import spark_jars
from pipelines.process.jvm import ended_jvm, output_in, silence_query_errors
from pipelines.process.signals import held_signals

__all__ = ["reading_session", "working"]


@contextlib.contextmanager
def reading_session(
    var: Path, *, driver_memory: str = "1g", java_options: Sequence[str] = ()
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the exit. The output of its JVM is discarded: errors come as exceptions.

    Raises:
        SparkError: Spark failed, in the block too.
    """
    jars = spark_jars(var.absolute())
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch, ended_jvm():
        conf = {"spark.sql.warehouse.dir": str(Path(scratch, "warehouse")), "spark.local.dir": scratch}
        with working("starting Spark"), held_signals(), output_in(Path(os.devnull)):
            session = build_session(
                "popstream-read", jars, driver_memory=driver_memory, java_options=java_options, conf=conf
            )
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
        console = Console(file=stderr)
        with console.status(text) if console.is_terminal else contextlib.nullcontext():
            yield
