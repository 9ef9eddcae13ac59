"""What every contender is told, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

__all__ = ["BACKLOG", "MESSAGE_BYTES", "QUEUES", "WORKLOADS", "Contender", "PeerError", "PeerOptions"]

QUEUES = 8
MESSAGE_BYTES = 100
BACKLOG = ("loop", "each", "bulk")
"""The workloads that drain a backlog."""
WORKLOADS = (*BACKLOG, "paced")


class PeerError(Exception):
    """A contender cannot be measured, or has failed; the message says why."""


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `python -m tests.benchmarks.peers`.

    Attributes:
        var: Folder with the jars.
        work: Empty folder for the data of the contenders; it is removed afterwards.
        workloads: Which of `WORKLOADS` are run.
        rounds: How often each contender has its turn.
        messages: Size of each backlog, and bound of `paced`; 0: what each contender needs.
        warm_up_s: Seconds from the first ack of a workload until its window begins.
        window_s: Length of the window of a workload with a backlog, unless the backlog is drained earlier.
        paced_s: Seconds for which `paced` sends.
        rate: Messages that `paced` sends a second.
        stall_s: A workload has failed when nothing moves for this time.
        turn_limit_s: A turn has failed when it takes longer.
        on_progress: Called with a line about what begins or has ended.
    """

    var: Path
    work: Path
    workloads: tuple[str, ...] = WORKLOADS
    rounds: int = 3
    messages: int = 0
    warm_up_s: float = 3.0
    window_s: float = 10.0
    paced_s: float = 20.0
    rate: int = 500
    stall_s: float = 30.0
    turn_limit_s: float = 300.0
    on_progress: Callable[[str], None] = print


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A system that is measured, by one client.

    Attributes:
        name: Its key in the report.
        label: What it is called in tables and charts.
        forms: By workload, how its client takes and acks messages.
        durability: What is lost of what it had confirmed when its broker, or the machine, crashes.
        messages: Size of its backlog: about what `bulk` drains until its window ends.
        prepare: Fetches and compiles what is needed. Raises PeerError: it cannot be measured here.
        serve: Runs its servers, with data in a folder; yields the command of its load, to which the options are added.
    """

    name: str
    label: str
    forms: dict[str, str]
    durability: str
    messages: int
    prepare: Callable[[PeerOptions], None]
    serve: Callable[[PeerOptions, Path], AbstractContextManager[list[str]]]
