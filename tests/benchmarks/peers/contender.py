"""What every contender is given, and what it gives back."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

__all__ = [
    "LATENCY",
    "MESSAGE_BYTES",
    "QUEUES",
    "RATES",
    "ROOT",
    "WORKLOADS",
    "Contender",
    "PeerError",
    "PeerOptions",
    "Result",
    "load_arguments",
    "python_load",
    "run_load",
]

ROOT = Path(__file__).parents[3]
QUEUES = 8
MESSAGE_BYTES = 100
RATES = ("each", "together")
LATENCY = "latency"
WORKLOADS = (*RATES, LATENCY)
OUTPUT_LINES_SHOWN = 12

Result = dict[str, float]
"""Of `each` and `together`: `messages`, `seconds`, `messages_per_s`. Of `latency`: `delivery_p50_ms`,
`delivery_p99_ms`, `ack_p50_ms`, `ack_p99_ms`. There may be more."""


class PeerError(Exception):
    """A contender has no result; the message says why."""


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `python -m tests.benchmarks.peers`.

    Attributes:
        var: Folder with the jars.
        work: Empty folder for the data of the contenders; it is removed afterwards.
        rounds: How often each contender has its turn.
        window_s: Seconds that are measured of a workload, unless a backlog or a load of a fixed size is done earlier.
        warm_s: Seconds before them.
        messages: Size of a backlog; 0: as large as the contender's speed needs.
        limit_s: Seconds until a turn has failed.
        on_progress: Called with a line about the step that begins.
    """

    var: Path
    work: Path
    rounds: int = 3
    window_s: float = 5.0
    warm_s: float = 2.0
    messages: int = 0
    limit_s: float = 900.0
    on_progress: Callable[[str], None] = print


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A system that is measured.

    Attributes:
        name: Its key in the report.
        label: What it is called in tables and charts.
        measure: Starts its server with data in the folder, measures, stops the server; enters each workload's result as
            it ends, so that a failure costs only what follows. Raises an error of any kind.
        needs_jdk: Whether its load is compiled first.
    """

    name: str
    label: str
    measure: Callable[[PeerOptions, Path, dict[str, Result]], None]
    needs_jdk: bool = False


def run_load(command: Sequence[str | Path], folder: Path, limit_s: float, results: dict[str, Result]) -> None:
    """Run a load in a process, and enter the results that it prints: a JSON object a line, with its `workload`.

    Args:
        command: The load.
        folder: Gets its errors, in `load.log`.
        limit_s: Seconds until it is killed.
        results: Gets the results.

    Raises:
        PeerError: It did not end in time, or not with 0; or a workload is missing, has errors or no message.
    """
    log = folder / "load.log"
    failure = ""
    with log.open("w+") as errors:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=limit_s, check=False, cwd=ROOT
            )
            output = done.stdout
            failure = f"the load ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            failure = f"the load did not end within {limit_s:g} s"
    for line in output.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            errors_count, last_error = found.pop("errors", 0), found.pop("last_error", "")
            workload = found.pop("workload")
            if errors_count or not found["messages"]:
                failure = failure or f"{workload}: {found['messages']} messages, {errors_count} errors, {last_error}"
            else:
                results[workload] = found
    missing = [workload for workload in WORKLOADS if workload not in results]
    if failure or missing:
        why = failure or f"no result of {', '.join(missing)}"
        raise PeerError("\n".join([why, *log.read_text(errors="replace").splitlines()[-OUTPUT_LINES_SHOWN:]]))


def load_arguments(options: PeerOptions, messages: int) -> list[str]:
    """The options that all loads of the peers have."""
    given = {
        "messages": options.messages or messages,
        "queues": QUEUES,
        "message-bytes": MESSAGE_BYTES,
        "warm-s": options.warm_s,
        "window-s": options.window_s,
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def python_load(module: str) -> list[str]:
    """The command that runs a module of this package in a process of its own."""
    return [sys.executable, "-m", f"tests.benchmarks.peers.{module}"]
