"""The report of `make bench-peers`: medians and spread, a table for the terminal, and a page with bar charts.

The page needs nothing from elsewhere: its style and its charts, which are SVG, are in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from tests.benchmarks.peers.contender import LATENCY, RATES, WORKLOADS

__all__ = ["failures", "page", "summary", "table"]

_TITLES = {
    "each": "Each message acked alone: messages a second",
    "together": "What one pop brought acked together: messages a second",
}
_LATENCIES = {
    "delivery_p50_ms": "send to delivery, p50",
    "delivery_p99_ms": "send to delivery, p99",
    "ack_p50_ms": "ack to its answer, p50",
    "ack_p99_ms": "ack to its answer, p99",
}
_COLOURS = ("#2563a8", "#b4541a", "#3a7d44", "#7a4b9d", "#6b6b6b")
_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; color: #1d1d1d; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd }
td { text-align: right } td:first-child, th, td.text { text-align: left } svg { width: 100%; height: auto }
.failure { color: #a11616; white-space: pre-wrap }
"""


class Bar(msgspec.Struct, frozen=True):
    """One bar of a chart.

    Attributes:
        label: Beside it.
        median: Its length.
        least: Begin of its spread.
        greatest: End of its spread.
        colour: Of the bar.
    """

    label: str
    median: float
    least: float
    greatest: float
    colour: str


def summary(turns: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Median, least and greatest of each number, by workload; of the turns that have it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload in WORKLOADS:
        results = [turn["results"][workload] for turn in turns if workload in turn["results"]]
        names = results[0] if results else ()
        values_by_name = {name: [result[name] for result in results if name in result] for name in names}
        if values_by_name:
            found[workload] = {
                name: {"median": statistics.median(values), "least": min(values), "greatest": max(values)}
                for name, values in values_by_name.items()
            }
    return found


def table(report: Mapping[str, Any]) -> str:
    """The report as lines for a terminal."""
    head = ["", "each: messages/s", "together: messages/s", "delivery p50 / p99 ms", "ack p50 / p99 ms", "load"]
    rows = [head]
    for entry in report["contenders"].values():
        latency = entry["summary"].get(LATENCY, {})
        rows.append(
            [
                entry["label"],
                *(_spread(entry["summary"].get(workload, {}).get("messages_per_s")) for workload in RATES),
                *(
                    " / ".join(_number(latency[name]["median"]) if name in latency else "-" for name in names)
                    for names in (("delivery_p50_ms", "delivery_p99_ms"), ("ack_p50_ms", "ack_p99_ms"))
                ),
                _load(entry["turns"]),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"{label} failed in round {number}: {why}" for label, number, why in failures(report))])


def failures(report: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Contender, round and reason of each turn that failed."""
    return [
        (entry["label"], turn["round"], turn["failure"])
        for entry in report["contenders"].values()
        for turn in entry["turns"]
        if "failure" in turn
    ]


def page(report: Mapping[str, Any]) -> str:
    """The report as an HTML page."""
    machine, options = report["machine"], report["options"]
    charts = [_rates(report, workload) for workload in RATES]
    charts += [_latencies(report, name, title) for name, title in _LATENCIES.items()]
    failed = "".join(
        f'<p class="failure">{escape(label)} failed in round {number}: {escape(why)}</p>'
        for label, number, why in failures(report)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>popstream and its peers</title><style>{_STYLE}</style></head><body>
<h1>popstream and its peers</h1>
<p>The same work on the same {machine["cores"]} cores in one run: messages of {options["message_bytes"]} bytes,
{options["queues"]} queues, medians of {options["rounds"]} rounds. A thin line is the spread from the least to the
greatest round. Axes are logarithmic: each grid line is ten times the one before. Python {escape(machine["python"])},
kernel {escape(machine["kernel"])}. Server and load share the cores.</p>
{failed}{"".join(charts)}
<h2>Turns</h2>
{_turns(report)}
</body></html>
"""


def _rates(report: Mapping[str, Any], workload: str) -> str:
    return _chart(_TITLES[workload], _bars(report, workload, "messages_per_s"))


def _latencies(report: Mapping[str, Any], name: str, title: str) -> str:
    return _chart(f"One message at a time, {title}: milliseconds", _bars(report, LATENCY, name))


def _bars(report: Mapping[str, Any], workload: str, name: str) -> list[Bar]:
    bars = []
    for index, entry in enumerate(report["contenders"].values()):
        value = entry["summary"].get(workload, {}).get(name, {"median": 0.0, "least": 0.0, "greatest": 0.0})
        colour = _COLOURS[index % len(_COLOURS)]
        bars.append(Bar(entry["label"], value["median"], value["least"], value["greatest"], colour))
    return bars


def _chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars on a logarithmic axis; a bar without a value says so."""
    known = [value for bar in bars for value in (bar.least, bar.greatest) if value > 0]
    low = math.floor(math.log10(min(known))) if known else 0
    high = max(low + 1, math.ceil(math.log10(max(known)))) if known else 1
    left, width, row = 270, 520, 34
    bottom = row * len(bars) + 8

    def x(value: float) -> float:
        return left + width * (math.log10(value) - low) / (high - low)

    parts = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        text = _number(10.0**power)
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">{text}</text>')
    for index, bar in enumerate(bars):
        y, label = index * row + 8, escape(bar.label)
        parts.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{label}</text>')
        if bar.median <= 0:
            parts.append(f'<text x="{left + 6}" y="{y + 15}" fill="#a11616">no result</text>')
            continue
        # A median at the left end of the axis still shows.
        length = max(3.0, x(bar.median) - left)
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="20" fill="{bar.colour}"/>')
        parts.append(
            f'<line x1="{x(bar.least):.1f}" y1="{y + 10}" x2="{x(bar.greatest):.1f}" y2="{y + 10}" stroke="#111"/>'
        )
        end = max(left + length, x(bar.greatest)) + 8
        parts.append(f'<text x="{end:.1f}" y="{y + 15}">{_number(bar.median)}</text>')
    box = f"0 0 {left + width + 90} {bottom + 24}"
    image = f'<svg viewBox="{box}" role="img" aria-label="{escape(title)}" font-size="14">{"".join(parts)}</svg>'
    return f"<h2>{escape(title)}</h2>{image}"


def _turns(report: Mapping[str, Any]) -> str:
    head = ("contender", "round", "each", "together", "delivery p50 ms", "load before", "load after", "seconds")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for entry in report["contenders"].values():
        for turn in entry["turns"]:
            results = turn["results"]
            cells = [
                escape(entry["label"]),
                str(turn["round"]),
                *(_number(results[name]["messages_per_s"]) if name in results else "-" for name in RATES),
                _number(results[LATENCY]["delivery_p50_ms"]) if LATENCY in results else "-",
                f"{turn['load_before'][0]:.2f}",
                f"{turn['load_after'][0]:.2f}",
                str(turn["took_s"]),
            ]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def _spread(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{_number(value['median'])} ({_number(value['least'])} - {_number(value['greatest'])})"


def _load(turns: Sequence[Mapping[str, Any]]) -> str:
    """The least and the greatest load average of a minute, before and after turns."""
    loads = [turn[when][0] for turn in turns for when in ("load_before", "load_after")]
    return f"{min(loads):.1f} - {max(loads):.1f}" if loads else "-"


def _number(value: float) -> str:
    """A number with three digits at least, and no more than tell something.

    >>> [_number(value) for value in (1234567.8, 45.67, 4.567, 0.4567)]
    ['1,234,568', '45.7', '4.57', '0.457']
    """
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
