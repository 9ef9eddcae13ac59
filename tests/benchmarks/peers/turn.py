"""One turn of a contender: its load runs beside its servers, and each workload has a result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.peers.accounting import LoadLine, account_of, drain_window, paced_window, read_ledger
from tests.benchmarks.peers.contender import BACKLOG, MESSAGE_BYTES, QUEUES, PeerOptions
from tests.benchmarks.peers.cpu_samples import CpuSamples
from tests.benchmarks.peers.peer_process import PeerProcess

__all__ = ["load_arguments", "result_of", "run_load"]

ROOT = Path(__file__).parents[3]
SAMPLE_S = 0.5
CPU_WINDOW_S_MIN = 2.0
"""A shorter window has too few samples of the CPU."""


def load_arguments(options: PeerOptions, folder: Path, messages: int) -> list[str]:
    """The options that every load has."""
    given = {
        "messages": messages,
        "queues": QUEUES,
        "message-bytes": MESSAGE_BYTES,
        "workloads": ",".join(options.workloads),
        "backlog-limit-s": options.warm_up_s + options.window_s,
        "paced-messages": min(messages, round(options.rate * (options.warm_up_s + options.paced_s))),
        "rate": options.rate,
        "stall-s": options.stall_s,
        "folder": folder,
    }
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def run_load(command: Sequence[str], folder: Path, options: PeerOptions, results: dict[str, Any]) -> None:
    """Run a load in a process; enter the result of each workload when it has ended.

    Raises:
        PeerError: The load ended with an error, or without some result.
    """
    with PeerProcess("load", command, folder, cwd=ROOT) as load:
        cpu = CpuSamples(load.pid)
        is_running = True
        while is_running:
            is_running = load.exit_code is None
            lines = [line for line in load.new_lines() if line.startswith('{"workload"')]
            cpu.take()
            for text in lines:
                line = msgspec.json.decode(text, type=LoadLine)
                result = results[line.workload] = result_of(line, folder, cpu, options)
                options.on_progress(f"  {line.workload}: {_in_short(result)}")
            if is_running:
                time.sleep(SAMPLE_S)
        if load.exit_code:
            raise load.failure(f"ended with {load.exit_code}")
        if missing := [workload for workload in options.workloads if workload not in results]:
            raise load.failure(f"gave no result of {', '.join(missing)}")


def result_of(line: LoadLine, folder: Path, cpu: CpuSamples, options: PeerOptions) -> dict[str, Any]:
    """The result of a workload, as the report has it; one with a `failure` does not count."""
    ledger = read_ledger(folder / f"{line.workload}.ledger", line.messages)
    account = account_of(ledger, queues=QUEUES, is_cut=line.end == "time")
    latencies: dict[str, float] = {}
    if line.workload in BACKLOG:
        window = drain_window(ledger, warm_up_s=options.warm_up_s, window_s=options.window_s)
    else:
        window, latencies = paced_window(ledger, line, warm_up_s=options.warm_up_s)
    result: dict[str, Any] = {
        "end": line.end,
        "account": msgspec.to_builtins(account),
        "take_mean": round(int(ledger.deliveries.sum()) / max(1, line.takes), 1),
        "take_max": line.take_max,
    }
    if window is not None:
        result |= {
            "messages": window.messages,
            "seconds": round(window.seconds, 3),
            "messages_per_s": round(window.messages / window.seconds, 1),
            "is_warm": window.is_warm,
            **latencies,
        }
        if window.seconds >= CPU_WINDOW_S_MIN:
            used_s = cpu.between(window.begin_ns, window.end_ns)
            result |= {
                "cpu_us_per_message": round((used_s["load"] + used_s["servers"]) * 1e6 / window.messages, 2),
                "load_cpu_us_per_message": round(used_s["load"] * 1e6 / window.messages, 2),
                "other_cores": round(used_s["other"] / window.seconds, 2),
            }
    failures = {
        line.failure: bool(line.failure),
        f"nothing moved for {options.stall_s:g} s": line.end == "stalled",
        f"{account.missing} messages are missing, {account.unacked} were not acked": not account.is_balanced,
        "no ack was confirmed": window is None,
    }
    if why := "; ".join(text for text, is_so in failures.items() if is_so):
        result["failure"] = why
    return result


def _in_short(result: dict[str, Any]) -> str:
    if "failure" in result:
        return f"failed: {result['failure']}"
    latencies = f", acked after p50 {result['acked_p50_ms']:,.1f} ms" if "acked_p50_ms" in result else ""
    return f"{result['messages_per_s']:,.0f} messages/s{latencies}"
