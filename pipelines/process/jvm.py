"""The JVM that PySpark starts: where what it prints goes, and that it is gone when we are."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import structlog
from pyspark import SparkContext
from pyspark.logger import PySparkLogger

__all__ = ["SIGNALS", "ended_jvm", "held_signals", "jvm_has_ended", "kill_jvm", "output_in", "silence_query_errors"]

_log = structlog.get_logger(__name__)

GRACE_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_jvm() -> Iterator[None]:
    """End the JVM that was started inside, and wait; by itself it would end only some time after this process."""
    try:
        yield
    finally:
        _end_jvm()


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Let signals that come inside take effect at the end, by the handlers from before.

    PySpark must not be interrupted while it launches its JVM: it removes the folder that the JVM is about to write to,
    and the JVM then stays for ever, unknown to anyone. It also leaves a handler of its own for Ctrl-C, which goes too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda which, _: came.append(which))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def output_in(path: Path | None) -> Iterator[None]:
    """Let what is started inside print to `path`, errors too: a JVM says things that no operator asked for."""
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
    """End the JVM at once; calls into it that are under way fail, instead of hanging."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark has no public way to end its JVM
        SparkContext._gateway.proc.kill()  # noqa: SLF001


def jvm_has_ended() -> bool:
    """Whether there was a JVM and it is gone; another one can only serve another process."""
    gateway = SparkContext._gateway  # noqa: SLF001 - as above
    return gateway is not None and gateway.proc.poll() is not None


def silence_query_errors() -> None:
    """Keep PySpark from printing what it raises as well: a page of JSON for a misspelt column."""
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _end_jvm() -> None:
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        gateway.shutdown()
    except Exception as error:  # noqa: BLE001 - py4j raises what it likes; the process is ended all the same
        _log.warning("gateway_shutdown_failed", error=str(error))
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that a later session starts another one
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
