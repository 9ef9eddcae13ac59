"""Gives each contender its turn, round after round, so that a busy minute of the machine meets all of them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker_state import KERNEL_FORM
from connectors.jars.resolve import JarError
from pipelines.cli.clients.perf.ledger import quantiles_of
from tests.benchmarks.peers.contender import MESSAGE_BYTES, QUEUES, Contender, PeerError, PeerOptions
from tests.benchmarks.peers.page import page
from tests.benchmarks.peers.report import summary
from tests.benchmarks.peers.turn import load_arguments, run_load
from tests.support.time_limit import time_limit

__all__ = ["run_rounds"]

SYNCS = 200
SYNCED_BYTES = 128
_REPORTED = ("rounds", "workloads", "messages", "warm_up_s", "window_s", "paced_s", "rate", "stall_s", "turn_limit_s")


def run_rounds(contenders: Sequence[Contender], options: PeerOptions) -> tuple[Path, dict[str, Any]]:
    """Measure the contenders; write the report anew, as JSON and as a page, after each turn.

    A contender that cannot be measured is in the report with the reason. So is a turn that fails, or takes longer than
    its limit; it keeps the results that it had by then, and the others follow.

    Returns:
        The JSON file, beside which the page is, and the report.
    """
    folder = options.var / "bench" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    given = {name: getattr(options, name) for name in _REPORTED}
    report: dict[str, Any] = {
        "machine": _machine(options.work),
        "options": {**given, "message_bytes": MESSAGE_BYTES, "queues": QUEUES},
        "contenders": {each.name: _described(each) for each in contenders},
    }

    def write() -> None:
        file.write_text(json.dumps(report, indent=2))
        file.with_suffix(".html").write_text(page(report), encoding="utf-8")

    ready = []
    for contender in contenders:
        try:
            contender.prepare(options)
            ready.append(contender)
        except (PeerError, JarError) as error:
            report["contenders"][contender.name]["not_measured"] = str(error)
            options.on_progress(f"{contender.label}: not measured: {error}")
    write()
    for number in range(options.rounds):
        # Each round begins with another one, so that the neighbours of a turn are not always the same.
        first = number % max(1, len(ready))
        for contender in ready[first:] + ready[:first]:
            options.on_progress(f"round {number + 1} of {options.rounds}: {contender.label}")
            entry = report["contenders"][contender.name]
            entry["turns"].append(_turn(contender, options, number + 1))
            entry["summary"] = summary(entry["turns"])
            write()
    return file, report


def _turn(contender: Contender, options: PeerOptions, number: int) -> dict[str, Any]:
    folder = options.work / f"{contender.name}-{number}"
    folder.mkdir()
    load_average = [round(each, 2) for each in os.getloadavg()]
    turn: dict[str, Any] = {"round": number, "load_average": load_average, "results": {}}
    began_s = time.perf_counter()
    try:
        with (
            time_limit(options.turn_limit_s, TimeoutError(f"its turn took longer than {options.turn_limit_s:g} s")),
            contender.serve(options, folder) as command,
        ):
            arguments = load_arguments(options, folder, options.messages or contender.messages)
            run_load([*command, *arguments], folder, options, turn["results"])
    except Exception as error:  # noqa: BLE001 - one contender must not cost the results of the others
        turn["failure"] = f"{type(error).__name__}: {error}"
        options.on_progress(f"  failed: {turn['failure']}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    turn["took_s"] = round(time.perf_counter() - began_s)
    return turn


def _described(contender: Contender) -> dict[str, Any]:
    fields = {name: getattr(contender, name) for name in ("label", "forms", "durability", "messages")}
    return {**fields, "turns": [], "summary": {}}


def _machine(folder: Path) -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "popstream_kernel": KERNEL_FORM,
        "sync_ms": _sync_ms(folder),
    }


def _sync_ms(folder: Path) -> dict[str, float] | None:
    """How long the disk takes to keep a few bytes: what a contender that syncs its decisions pays each time."""
    took_ms = []
    with (folder / "synced").open("wb") as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNCED_BYTES))
            file.flush()
            began_s = time.perf_counter()
            os.fsync(file.fileno())
            took_ms.append((time.perf_counter() - began_s) * 1e3)
    return quantiles_of(took_ms)
