"""The JVM that PySpark starts: its output, and its end together with this process."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import structlog
from pyspark import SparkContext
from pyspark.logger import PySparkLogger

__all__ = ["ended_jvm", "jvm_has_ended", "jvm_pid", "kill_jvm", "output_in", "silence_query_errors"]

_log = structlog.get_logger(__name__)

GRACE_S = 10.0


@contextlib.contextmanager
def ended_jvm(grace_s: float = GRACE_S) -> Iterator[None]:
    """End the JVM that was started inside, and wait for it: by itself it would outlive this process for a while.

    After `grace_s` seconds it is killed.
    """
    try:
        yield
    finally:
        _end_jvm(grace_s)


@contextlib.contextmanager
def output_in(path: Path | None) -> Iterator[None]:
    """Send standard output and error of child processes started inside to `path`; None: leave them as they are."""
    if path is None:
        yield
        return
    with (
        path.open("ab") as file,
        _redirected(sys.stdout, 1, file.fileno()),
        _redirected(sys.stderr, 2, file.fileno()),
    ):
        yield


@contextlib.contextmanager
def _redirected(stream: TextIO, descriptor: int, target: int) -> Iterator[None]:
    stream.flush()
    before = os.dup(descriptor)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        stream.flush()
        os.dup2(before, descriptor)
        os.close(before)


def kill_jvm() -> None:
    """Kill the JVM. Calls into it that are in flight fail instead of hanging."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark has no public way to end its JVM
        SparkContext._gateway.proc.kill()  # noqa: SLF001


def jvm_pid() -> int:
    """Return the process id of the JVM; 0 when there is none."""
    gateway = SparkContext._gateway  # noqa: SLF001 - as above
    return 0 if gateway is None else int(gateway.proc.pid)


def jvm_has_ended() -> bool:
    """Return whether the JVM has ended. A process cannot start a second one."""
    gateway = SparkContext._gateway  # noqa: SLF001 - as above
    return gateway is not None and gateway.proc.poll() is not None


def silence_query_errors() -> None:
    """Keep PySpark from also printing the errors that it raises, as a page of JSON."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _end_jvm(grace_s: float) -> None:
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        gateway.shutdown()
    except Exception as error:  # noqa: BLE001 - py4j raises errors of many types; the process is ended anyway
        _log.warning("gateway_shutdown_failed", error=str(error))
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that a later session starts another one
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
