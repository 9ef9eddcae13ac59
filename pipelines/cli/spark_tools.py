"""A Spark session for the commands that only read: beside a running job, gone when they end."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from connectors.delta.session import build_session
from connectors.jars.resolve import spark_jars
from pipelines.process.jvm import ended_jvm, output_in, silence_query_errors
from pipelines.process.signals import held_signals

__all__ = ["reading_session", "working"]


@contextlib.contextmanager
def reading_session(var: Path, *, driver_memory: str = "1g") -> Iterator[SparkSession]:
    """Start Spark, and end it; what its JVM prints on the way is thrown away, errors come as exceptions."""
    jars = spark_jars(var.absolute())
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch, ended_jvm():
        conf = {"spark.sql.warehouse.dir": str(Path(scratch, "warehouse")), "spark.local.dir": scratch}
        with working("starting Spark"), held_signals(), output_in(Path(os.devnull)):
            session = build_session("popstream-read", jars, driver_memory=driver_memory, conf=conf)
        silence_query_errors()
        try:
            yield session
        finally:
            session.stop()


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show that something takes a while, where a person watches; on standard error, so that output stays clean."""
    # Of its own, for descriptor 2 may be elsewhere meanwhile (`output_in`).
    with os.fdopen(os.dup(2), "w") as stderr:
        console = Console(file=stderr)
        with console.status(text) if console.is_terminal else contextlib.nullcontext():
            yield
