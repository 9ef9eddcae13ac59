"""Runs a part of the benchmark in a process of its own, of which nothing is left when the part is over."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.local_servers.process_tree import kill_tree
from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["PartError", "measure_with_kafka", "run_apart"]


class PartError(Exception):
    """Why a part has no results."""


def run_apart(measure: Callable[[], Any], limit_s: float) -> Any:
    """Call `measure` in a new process, and return its result as plain values.

    The process and all below it are killed then: a client that hangs must neither hold up nor disturb the next part.

    Args:
        measure: Can be pickled.
        limit_s: How long it may take.

    Raises:
        PartError: It raised or took longer, or its process died.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(measure, sending))
    process.start()
    sending.close()
    is_over, outcome = False, None
    try:
        # A pipe that ends is ready, too.
        is_over = bool(wait([receiving, process.sentinel], limit_s))
        with contextlib.suppress(EOFError):
            outcome = receiving.recv() if receiving.poll() else None
    finally:
        receiving.close()
        assert process.pid is not None
        kill_tree(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also those whose parents have ended
        process.join()
    if not is_over:
        message = f"TimeoutError: it took longer than {limit_s:g} s"
        raise PartError(message)
    if outcome is None:
        message = f"its process ended with exit code {process.exitcode}"
        raise PartError(message)
    result, failure = outcome
    if failure:
        raise PartError(failure)
    return result


def measure_with_kafka(measure: Callable[[BenchOptions, EmbeddedKafka], Any], options: BenchOptions) -> Any:
    """Measure with a broker that nothing has used before."""
    with EmbeddedKafka(options.work / "kafka", jars=kafka_jars(options.var)) as kafka:
        return measure(options, kafka)


def _measure(measure: Callable[[], Any], sending: Connection) -> None:
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = msgspec.to_builtins(measure()), ""
    except Exception as error:  # noqa: BLE001 - one part must not cost the results of the others
        outcome = None, f"{type(error).__name__}: {error}"
    sending.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)
