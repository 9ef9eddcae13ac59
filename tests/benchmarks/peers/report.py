"""The report of `make bench-peers` in figures: medians and spread of the rounds, and tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.peers.contender import BACKLOG, WORKLOADS

__all__ = ["COLD", "COLUMNS", "details", "failures", "loads", "number_text", "rows_of", "summary", "table", "title"]

_TITLES = {
    "loop": "loop: one worker takes up to 32 messages, acks each, and waits for all of these acks before it takes more",
    "each": "each: each message is handled and acked alone, and more are taken meanwhile",
    "bulk": "bulk: each client in its own best form",
    "paced": "paced: {rate} messages a second; milliseconds from the time at which a message was due to be sent",
}
_CPU = ("cpu_us_per_message", "CPU us/message")
_RATE = (
    ("messages_per_s", "messages/s"),
    _CPU,
    ("load_cpu_us_per_message", "of it the client"),
    ("take_mean", "messages/take"),
)
_LATENCY = tuple(
    (f"{event}_{name}_ms", f"{event} {name}") for event in ("received", "acked") for name in ("p50", "p99")
)
COLUMNS = {workload: _RATE if workload in BACKLOG else (*_LATENCY, _CPU) for workload in WORKLOADS}
COLD = "* in some round too little was left after the warm-up: all is measured, from the first delivery on"


def summary(turns: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Median, min and max of each number, by workload; of the turns in which the workload did not fail."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload in WORKLOADS:
        results = _results(turns, workload)
        for name in dict.fromkeys(name for result in results for name in result):
            values = [result[name] for result in results if name in result]
            if type(values[0]) in {int, float}:
                spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
                found.setdefault(workload, {})[name] = spread
    return found


def failures(report: Mapping[str, Any]) -> list[str]:
    """A line for each contender that was not measured, and for each turn or workload that failed."""
    lines = []
    for entry in report["contenders"].values():
        if "not_measured" in entry:
            lines.append(f"{entry['label']}: not measured: {entry['not_measured']}")
        for turn in entry["turns"]:
            where = f"{entry['label']}, round {turn['round']}"
            failed = {name: result for name, result in turn["results"].items() if "failure" in result}
            lines += [f"{where}, {workload} failed: {result['failure']}" for workload, result in failed.items()]
            lines += [f"{where} failed: {turn['failure']}"] if "failure" in turn else []
    return lines


def title(report: Mapping[str, Any], workload: str) -> str:
    """What a workload does."""
    return _TITLES[workload].format(**report["options"])


def rows_of(report: Mapping[str, Any], workload: str) -> list[list[str]]:
    """The table of a workload: its head, and a row for each contender."""
    rows = [["", *(text for _, text in COLUMNS[workload])]]
    for entry in report["contenders"].values():
        numbers = entry["summary"].get(workload, {})
        texts = [_spread_text(numbers.get(name)) for name, _ in COLUMNS[workload]]
        if not all(result["is_warm"] for result in _results(entry["turns"], workload)):
            texts[0] += " *"
        rows.append([entry["label"], *texts])
    return rows


def details(report: Mapping[str, Any], workload: str) -> dict[str, str]:
    """By contender, a line on how it does a workload, and one on what became of its messages in all rounds."""
    found = {}
    for entry in report["contenders"].values():
        results = [turn["results"][workload] for turn in entry["turns"] if workload in turn["results"]]
        total = {name: sum(result["account"][name] for result in results) for name in _ACCOUNT}
        account = ", ".join(f"{count:,} {name}" for name, count in total.items())
        found[entry["label"]] = f"{entry['forms'][workload]}\n{account}"
    return found


_ACCOUNT = ("sent", "acked", "duplicates", "unacked", "missing", "left")


def loads(report: Mapping[str, Any]) -> dict[str, str]:
    """By contender, the load average at the start of each turn, and the cores that others used in its workloads."""
    found = {}
    for entry in report["contenders"].values():
        turns = []
        for turn in entry["turns"]:
            others = [f"{result['other_cores']:.2f}" for result in turn["results"].values() if "other_cores" in result]
            turns.append(f"{turn['load_average'][0]:.2f} ({', '.join(others) or '-'})")
        found[entry["label"]] = "; ".join(turns) or "-"
    return found


def table(report: Mapping[str, Any]) -> str:
    """The report as lines for a terminal."""
    options, entries = report["options"], report["contenders"].values()
    lines = [f"Medians of {options['rounds']} rounds (min .. max), {report['machine']['cores']} cores"]
    for workload in options["workloads"]:
        rows = rows_of(report, workload)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", title(report, workload)]
        lines += [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines += [f"  {label}: {text}".replace("\n", "\n    ") for label, text in details(report, workload).items()]
    lines += ["", COLD, "", "What a crash loses of what was confirmed"]
    lines += [f"  {entry['label']}: {entry['durability']}" for entry in entries]
    lines += ["", "Load average at the start of each turn (cores that other processes used during each workload)"]
    lines += [f"  {label}: {text}" for label, text in loads(report).items()]
    return "\n".join([*lines, "", *failures(report)]).rstrip()


def number_text(value: float) -> str:
    """A number with three digits at least, and no more than tell something.

    >>> [number_text(value) for value in (1234567.8, 45.67, 4.567, 0.4567)]
    ['1,234,568', '45.7', '4.57', '0.457']
    """
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _results(turns: Sequence[Mapping[str, Any]], workload: str) -> list[Mapping[str, Any]]:
    """The results of a workload that count."""
    results = [turn["results"][workload] for turn in turns if workload in turn["results"]]
    return [result for result in results if "failure" not in result]


def _spread_text(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    if value["min"] == value["max"]:
        return number_text(value["median"])
    return f"{number_text(value['median'])} ({number_text(value['min'])} .. {number_text(value['max'])})"
