"""What `python -m tests.benchmarks` is told: sizes and folders."""

from collections.abc import Callable
from pathlib import Path

import msgspec

__all__ = ["QUEUES", "BenchOptions"]

QUEUES = 8
"""Queues of the topics that are filled before they are drained."""


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every measurement.

    Attributes:
        operations: Operations to drain; the builder gets twice as many messages.
        runs: Repetitions of each measurement of the kernel.
        seconds: Length of each latency run.
        var: Folder with the jars.
        work: Empty folder for the data of the measurements; it is removed afterwards.
        on_progress: Called with a line about the step that begins.
    """

    operations: int
    runs: int
    seconds: int
    var: Path
    work: Path
    on_progress: Callable[[str], None] = print
