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
from tests.benchmarks.peers.contender import MESSAGE_BYTES, QUEUES, Contender, PeerOptions, Result
from tests.benchmarks.peers.peers_report import page, summary
from tests.support.time_limit import time_limit

__all__ = ["run_rounds"]


def run_rounds(contenders: Sequence[Contender], options: PeerOptions) -> tuple[Path, dict[str, Any]]:
    """Measure the contenders; write the report anew, as JSON and as a page, after each turn.

    A turn that fails, or takes longer than its limit, is in the report as `{"failure": why}`, with the results that it
    had by then, and the others follow.

    Returns:
        The JSON file, beside which the page is, and the report.
    """
    folder = options.var / "bench" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    report: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": KERNEL_FORM},
        "options": {
            "rounds": options.rounds,
            "window_s": options.window_s,
            "warm_s": options.warm_s,
            "messages": options.messages or "as large as each contender needs",
            "message_bytes": MESSAGE_BYTES,
            "queues": QUEUES,
        },
        "contenders": {each.name: {"label": each.label, "turns": [], "summary": {}} for each in contenders},
    }
    for number in range(1, options.rounds + 1):
        for contender in contenders:
            options.on_progress(f"round {number} of {options.rounds}: {contender.label}")
            turn = _turn(contender, options, number)
            if "failure" in turn:
                options.on_progress(f"{contender.label} failed: {turn['failure']}")
            entry = report["contenders"][contender.name]
            entry["turns"].append(turn)
            entry["summary"] = summary(entry["turns"])
            file.write_text(json.dumps(report, indent=2))
            file.with_suffix(".html").write_text(page(report), encoding="utf-8")
    return file, report


def _turn(contender: Contender, options: PeerOptions, number: int) -> dict[str, Any]:
    folder = options.work / f"{contender.name}-{number}"
    folder.mkdir(parents=True)
    results: dict[str, Result] = {}
    load, began_s = os.getloadavg(), time.perf_counter()
    failed = {}
    try:
        with time_limit(options.limit_s, TimeoutError(f"its turn took longer than {options.limit_s:g} s")):
            contender.measure(options, folder, results)
    except Exception as error:  # noqa: BLE001 - one contender must not cost the results of the others
        failed = {"failure": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "round": number,
        "load_before": [round(each, 2) for each in load],
        "load_after": [round(each, 2) for each in os.getloadavg()],
        "took_s": round(time.perf_counter() - began_s),
        "results": results,
        **failed,
    }
