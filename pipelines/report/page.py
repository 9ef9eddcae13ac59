"""The page of a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.drawing.lease_bars import LEASE_STYLE
from pipelines.report.axes import number_text
from pipelines.report.charts import Chart, Series, figure
from pipelines.report.gantt import gantt, leases_table
from pipelines.report.html import document, element
from pipelines.report.page_tables import dead_letters, lanes, quality, redelivered, refusals, slowest
from pipelines.report.period import Period
from pipelines.times import day_text, duration_text, moment_text, zone_name, zoned_moment_text
from pipelines.web_style import stylesheet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo
    from xml.etree import ElementTree as ET

    from pipelines.report.report_data import Latency, Report

__all__ = ["report_page"]

_STYLE = Path(__file__).with_name("report.css")


def report_page(report: Report, zone: tzinfo) -> str:
    """Return the report as one HTML file: style and pictures are in it, and it needs no script."""
    sections = [*_sections(report, zone)]
    links = [element("a", title, href=f"#{key}") for key, title, _ in sections]
    body = element(
        "div", _header(report, zone), element("nav", *links, aria_label="Parts of the report"), kind="page stack"
    )
    main = element("main", kind="stack")
    for key, title, parts in sections:
        heading = element("h2", title, id=f"{key}-heading")
        main.append(element("section", heading, *parts, kind="stack", id=key, aria_labelledby=f"{key}-heading"))
    body.append(main)
    body.append(_footer(report, zone))
    style = stylesheet() + LEASE_STYLE + _STYLE.read_text(encoding="utf-8")
    return document(f"popstream report, {report.name}, {day_text(report.period.since_ms, zone)}", style, body)


def _header(report: Report, zone: tzinfo) -> ET.Element:
    period, scope = report.period, report.scope
    since, until = (moment_text(at_ms, zone) for at_ms in (period.since_ms, period.until_ms))
    length = duration_text(period.until_ms - period.since_ms)
    badges = [
        element("span", f"{kind} {name}", kind="badge")
        for kind, name in (("group", scope.group), ("topic", scope.topic))
        if name is not None
    ]
    parts = [
        element("h1", "popstream report"),
        element("p", element("b", report.name), *(part for badge in badges for part in (" ", badge))),
        element("p", f"{since} to {until}, {zone_name(period.since_ms, zone)} ({length})", kind="dim"),
    ]
    parts += [element("p", notice, kind="notice warn", role="note") for notice in report.notices]
    return element("header", *parts, kind="stack tight")


def _sections(report: Report, zone: tzinfo) -> Iterator[tuple[str, str, Sequence[ET.Element]]]:
    yield "summary", "Summary", [_figures(report)]
    charts = [figure(chart, report.period, zone) for chart in _charts(report)]
    yield "time", "Over time", [element("div", *charts, kind="charts")]
    yield "lanes", "Lanes by lag", [_card(lanes(report, zone))]
    if report.leases is not None:
        yield "leases", f"Leases of {report.leases.lane.group} in {report.leases.lane.queue}", [_leases(report, zone)]
    yield "messages", "Messages", [_card(slowest(report, zone)), _card(redelivered(report))]
    yield "dead-letters", "Dead letters", [_card(dead_letters(report, zone))]
    yield "refusals", "Refusals", [_card(refusals(report))]
    yield "quality", "Quality of the tables", [_card(quality(report, zone))]


def _card(parts: Sequence[ET.Element]) -> ET.Element:
    return element("div", *parts, kind="card stack tight")


def _figures(report: Report) -> ET.Element:
    traffic, handling = report.traffic, report.handling.whole
    delivered, again, dead = (sum(each) for each in (traffic.delivered, traffic.redelivered, traffic.dead))
    ended = {"expired": sum(traffic.expired), "failed": sum(traffic.failed)}
    held, checked = sum(result.success for result in report.quality), len(report.quality)
    share = f"{100 * again / delivered:.3g} % of the deliveries" if delivered else "nothing was delivered"
    figures = [
        ("Delivered", f"{delivered:,}", _rate(delivered, report.period), ""),
        ("Done", f"{sum(traffic.done):,}", _rate(sum(traffic.done), report.period), ""),
        ("Redelivered", f"{again:,}", share, "warn" if again else ""),
        (
            "Leases expired",
            f"{ended['expired']:,}",
            "messages whose client was too slow or gone",
            "warn" if ended["expired"] else "",
        ),
        ("Handlers failed", f"{ended['failed']:,}", "messages released", "warn" if ended["failed"] else ""),
        ("Dead letters", f"{dead:,}", "messages given up", "bad" if dead else "good"),
        ("With a handler", _duration(handling.p50), f"median; 99 % within {_duration(handling.p99)}", ""),
        ("In flight", f"{traffic.in_flight[-1]:,}", "messages leased at the end", ""),
        ("Lag", f"{report.totals.lag:,}", f"messages, of {report.totals.lanes:,} lanes at the end", ""),
        (
            "Rules that hold",
            f"{held:,} of {checked:,}" if checked else "not checked",
            "of popstream check",
            "" if not checked else "good" if held == checked else "bad",
        ),
    ]
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", name),
                element("dd", value, kind=f"value {kind}".strip()),
                element("dd", note, kind="dim small"),
            )
            for name, value, note, kind in figures
        ),
        kind="figures",
    )


def _rate(count: int, period: Period) -> str:
    return f"{number_text(1000 * count / (period.until_ms - period.since_ms))} messages/s"


def _duration(ms: float | None) -> str:
    return "-" if ms is None else duration_text(round(ms))


def _charts(report: Report) -> Iterator[Chart]:
    traffic, period = report.traffic, report.period

    def rate(name: str, kind: str, counts: Sequence[int]) -> Series:
        return Series(name, kind, [count / period.seconds(number) for number, count in enumerate(counts)])

    every = duration_text(period.width_ms)
    yield Chart(
        "throughput",
        "Throughput",
        f"Messages a second, in means of {every}.",
        (
            rate("poppable", "one", traffic.poppable),
            rate("delivered", "two", traffic.delivered),
            rate("done", "three", traffic.done),
        ),
    )
    yield Chart(
        "in-flight",
        "In flight",
        "Messages that clients hold, at the end of each interval.",
        (Series("in flight", "one", traffic.in_flight),),
    )
    yield Chart(
        "redeliveries",
        "Redeliveries",
        f"Messages that were delivered again, in each {every}.",
        (Series("redelivered", "one", traffic.redelivered),),
    )
    yield Chart(
        "returns",
        "Leases that ended without an ack",
        f"Messages in each {every}, by what ended their lease.",
        (
            Series("expired", "four", traffic.expired),
            Series("handler failed", "two", traffic.failed),
            Series("released by the client", "one", traffic.released_by_client),
            Series("released otherwise", "three", traffic.released_otherwise),
        ),
        is_stacked=True,
    )
    yield Chart(
        "dead",
        "Dead letters",
        f"Messages that were given up, in each {every}.",
        (Series("dead letters", "four", traffic.dead),),
        is_stacked=True,
    )
    yield _latency("waiting", "Time until the first delivery", "From when a message could be popped.", report.waiting)
    yield _latency("handling", "Time with a handler", "From a delivery to its ack.", report.handling)
    yield _latency("total", "Time until done", "From when a message could be popped to its ack.", report.total)


def _latency(key: str, title: str, note: str, latency: Latency) -> Chart:
    return Chart(
        key,
        title,
        f"{note} Median {_duration(latency.whole.p50)}, 99 % within {_duration(latency.whole.p99)}.",
        (
            Series("median", "one", [each.p50 for each in latency.intervals]),
            Series("95 %", "two dashed", [each.p95 for each in latency.intervals]),
            Series("99 %", "four dotted", [each.p99 for each in latency.intervals]),
        ),
        text=lambda ms: duration_text(round(ms)),
        is_logarithmic=True,
    )


def _leases(report: Report, zone: tzinfo) -> ET.Element:
    leases = report.leases
    assert leases is not None
    if not leases.pops:
        text = (
            f"The last of {leases.count:,} pops has more rows than a report reads: choose a shorter period."
            if leases.count
            else "No pop of this lane got a message in the period."
        )
        return _card([element("p", text, kind="dim")])
    shown = "" if len(leases.pops) == leases.count else f" The last {len(leases.pops)} of {leases.count:,} are shown."
    note = (
        "A row for each pop: from its beginning to the end of its last lease, and pale up to the deadline."
        f" Circle: acked; half a circle: released; square: dead letter; cross: refused.{shown}"
    )
    details = element("details", element("summary", "Pops as a table"), leases_table(leases, zone))
    return _card(
        [
            element("h3", "Pops over time", id="leases-title"),
            element("p", note, kind="dim small", id="leases-note"),
            element("div", gantt(leases, report.period.until_ms, zone), kind="leases-box"),
            details,
        ]
    )


def _footer(report: Report, zone: tzinfo) -> ET.Element:
    versions = ", ".join(f"{name} {version:,}" for name, version in report.versions.items())
    made = zoned_moment_text(report.made_ms, zone)
    return element(
        "footer",
        element("p", f"Made at {made} from these versions of the tables: {versions}."),
        element(
            "p",
            "Of messages that were delivered together the first one counts for times since it could be popped.",
        ),
        kind="dim small",
    )
