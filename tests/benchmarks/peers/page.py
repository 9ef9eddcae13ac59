"""The report of `make bench-peers` as one HTML page, which needs nothing from elsewhere: style and charts are in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from tests.benchmarks.peers.contender import BACKLOG
from tests.benchmarks.peers.report import COLD, COLUMNS, details, failures, loads, number_text, rows_of, title

__all__ = ["page"]

_COLOURS = ("#2563a8", "#b4541a", "#3a7d44", "#7a4b9d", "#6b6b6b")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d1d1d; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9em; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left }
svg { width: 100%; height: auto } .failure { color: #a11616; white-space: pre-wrap }
dt { font-weight: 600 } dd { white-space: pre-line }
"""
_LEFT, _WIDTH, _ROW = 300, 560, 26


class Row(msgspec.Struct, frozen=True):
    """One row of a chart.

    Attributes:
        label: Beside it.
        values: One for each round.
        median: Of them.
        colour: Of its marks.
    """

    label: str
    values: list[float]
    median: float
    colour: str


def page(report: Mapping[str, Any]) -> str:
    """The report as an HTML page."""
    machine, options = report["machine"], report["options"]
    failed = "".join(f'<p class="failure">{escape(line)}</p>' for line in failures(report))
    durability = {entry["label"]: entry["durability"] for entry in report["contenders"].values()}
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>popstream and its peers</title><style>{_STYLE}</style></head><body>
<h1>popstream and its peers</h1>
<p>Each contender in turn on the same {machine["cores"]} cores of one machine, servers and client;
{options["rounds"]} rounds; messages of {options["message_bytes"]} bytes in {options["queues"]} queues.
A small mark is a round, a large one the median.
Axes are logarithmic. CPU is that of all processes of a contender: client, broker, job, JVMs. To sync a few bytes takes
this disk {machine["sync_ms"]["p50"]} ms (p50; p99 {machine["sync_ms"]["p99"]} ms).
{escape(machine["system"])}, Python {escape(machine["python"])}, popstream's kernel {machine["popstream_kernel"]}.</p>
{failed}{"".join(_section(report, workload) for workload in options["workloads"])}
<p>{escape(COLD)}</p>
<h2>What a crash loses of what was confirmed</h2>
{_list(durability)}
<h2>How busy the machine was</h2>
<p>The load average at the start of each turn, and the cores that other processes used during each workload.</p>
{_list(loads(report))}
</body></html>
"""


def _section(report: Mapping[str, Any], workload: str) -> str:
    head, *rows = rows_of(report, workload)
    cells = ["<tr>" + "".join(f"<th>{escape(text)}</th>" for text in head) + "</tr>"]
    cells += ["<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows]
    is_rate = workload in BACKLOG
    first = [column for column in COLUMNS[workload] if column[0].endswith("_per_s" if is_rate else "_ms")]
    charts = [
        _chart("Messages a second" if is_rate else "Milliseconds", _rows(report, workload, first)),
        _chart("Microseconds of CPU a message", _rows(report, workload, [("cpu_us_per_message", "")])),
    ]
    heading, table = escape(title(report, workload)), "".join(cells)
    return f"<h2>{heading}</h2>{''.join(charts)}<table>{table}</table>{_list(details(report, workload))}"


def _rows(report: Mapping[str, Any], workload: str, columns: Sequence[tuple[str, str]]) -> list[Row]:
    rows = []
    for index, entry in enumerate(report["contenders"].values()):
        for name, text in columns:
            results = [turn["results"].get(workload, {}) for turn in entry["turns"]]
            values = [result[name] for result in results if name in result and "failure" not in result]
            median = entry["summary"].get(workload, {}).get(name, {}).get("median", 0.0)
            label = entry["label"] if len(columns) == 1 else f"{entry['label']}, {text}"
            rows.append(Row(label, values, median, _COLOURS[index % len(_COLOURS)]))
    return rows


def _chart(heading: str, rows: Sequence[Row]) -> str:
    """A dot plot on a logarithmic axis; a row without a value says so."""
    known = [value for row in rows for value in row.values if value > 0]
    low = math.floor(math.log10(min(known))) if known else 0
    high = max(low + 1, math.ceil(math.log10(max(known)))) if known else 1
    bottom = _ROW * len(rows) + 4

    def x(value: float) -> float:
        return _LEFT + _WIDTH * (math.log10(value) - low) / (high - low)

    parts = []
    for power in range(low, high + 1):
        at, text = x(10.0**power), number_text(10.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle" fill="#555">{text}</text>')
    for index, row in enumerate(rows):
        y = index * _ROW + 16
        parts.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(row.label)}</text>')
        values = [value for value in row.values if value > 0]
        if not values:
            parts.append(f'<text x="{_LEFT + 6}" y="{y + 4}" fill="#a11616">no result</text>')
            continue
        ends = f'x1="{x(min(values)):.1f}" x2="{x(max(values)):.1f}"'
        parts.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{row.colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(value):.1f}" cy="{y}" r="3" fill="{row.colour}"/>' for value in values]
        parts.append(f'<circle cx="{x(row.median):.1f}" cy="{y}" r="6" fill="{row.colour}"/>')
        parts.append(f'<text x="{x(max(values)) + 12:.1f}" y="{y + 4}">{number_text(row.median)}</text>')
    box = f"0 0 {_LEFT + _WIDTH + 90} {bottom + 22}"
    image = f'<svg viewBox="{box}" role="img" aria-label="{escape(heading)}" font-size="13">{"".join(parts)}</svg>'
    return f"<h3>{escape(heading)}</h3>{image}"


def _list(texts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in texts.items()) + "</dl>"
