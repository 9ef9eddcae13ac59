"""The tables of a report's page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from pipelines.drawing.svg import percent
from pipelines.explain.leases import raised_text
from pipelines.report.html import Cell, Column, Row, element, table
from pipelines.times import duration_text, moment_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from pipelines.report.report_data import Lane, Report

__all__ = ["dead_letters", "lanes", "quality", "redelivered", "refusals", "slowest"]

Parts = list[ET.Element]


def lanes(report: Report, zone: tzinfo) -> Parts:
    """Return the lanes with the greatest lag."""
    found = report.lanes
    if not found:
        return [_nothing("No lane has a position or a lease.")]
    columns = [
        Column("lane"),
        Column("lag", is_number=True),
        Column("in flight", is_number=True),
        Column("done up to", is_number=True),
        Column("dead letters", is_number=True),
        Column("position moved"),
        Column("next message written"),
    ]
    greatest = max(lane.lag for lane in found)
    rows: list[Row] = [
        [
            _lane(facts.lane),
            _bar(f"{facts.lag:,}", facts.lag, greatest),
            f"{facts.in_flight:,}",
            "-" if facts.commit_offset is None else f"{facts.commit_offset:,}",
            f"{facts.dead:,}",
            "not yet" if facts.moved_ms is None else moment_text(facts.moved_ms, zone),
            "" if facts.waiting_since_ms is None else moment_text(facts.waiting_since_ms, zone),
        ]
        for facts in found
    ]
    caption = f"At the end of the period{_part(len(found), report.totals.lanes, 'lanes')}"
    return [table(caption, columns, rows)]


def slowest(report: Report, zone: tzinfo) -> Parts:
    """Return what took longest from a delivery to its ack."""
    title = element("h3", "Slowest from a delivery to its ack")
    if not report.slowest:
        return [title, _nothing("Nothing was acked.")]
    columns = [
        Column("messages"),
        Column("group"),
        Column("client"),
        Column("took", is_number=True),
        Column("attempt", is_number=True),
        Column("delivered"),
        Column("acked"),
    ]
    longest = max(lease.acked_ms - lease.began_ms for lease in report.slowest)
    rows: list[Row] = [
        [
            _mono(_range(lease.lane, lease.first_offset, lease.last_offset)),
            lease.lane.group,
            lease.client_id or "-",
            _bar(duration_text(max(0, lease.acked_ms - lease.began_ms)), lease.acked_ms - lease.began_ms, longest),
            str(lease.attempt),
            moment_text(lease.began_ms, zone),
            moment_text(lease.acked_ms, zone),
        ]
        for lease in report.slowest
    ]
    return [title, table("popstream why TOPIC/QUEUE/OFFSET shows the history of one of them", columns, rows)]


def redelivered(report: Report) -> Parts:
    """Return the messages with the most deliveries."""
    title = element("h3", "Most redelivered")
    if not report.redelivered:
        return [title, _nothing("No message came again.")]
    columns = [
        Column("message"),
        Column("group"),
        Column("deliveries", is_number=True),
        Column("why it came again"),
        Column("last step"),
    ]
    rows: list[Row] = [
        [
            _mono(f"{message.lane.queue}/{message.queue_offset}"),
            message.lane.group,
            str(message.attempts),
            _causes(message.causes),
            message.last_step.replace("_", " "),
        ]
        for message in report.redelivered
    ]
    count = report.totals.redelivered
    return [title, table(f"Messages that came again{_part(len(rows), count, 'messages')}", columns, rows)]


def dead_letters(report: Report, zone: tzinfo) -> Parts:
    """Return the dead letters by reason."""
    if not report.dead_letters:
        return [_nothing("No message became a dead letter.")]
    columns = [
        Column("reason"),
        Column("group"),
        Column("messages", is_number=True),
        Column("last"),
        Column("example"),
    ]
    most = max(letters.messages for letters in report.dead_letters)
    rows: list[Row] = [
        [
            _reason(letters.reason, letters.cause),
            letters.group,
            _bar(f"{letters.messages:,}", letters.messages, most),
            moment_text(letters.last_ms, zone),
            _mono(letters.example),
        ]
        for letters in report.dead_letters
    ]
    caption = f"By group and reason{_part(len(rows), report.totals.dead_letter_kinds, 'reasons')}"
    return [table(caption, columns, rows)]


def refusals(report: Report) -> Parts:
    """Return what was refused, and the records that are no operation."""
    rows: list[Row] = [[each.kind, each.reason, f"{each.count:,}"] for each in report.refusals]
    rows += [["unreadable record", reason, f"{count:,}"] for reason, count in (report.rejected or {}).items()]
    if not rows:
        return [_nothing("Nothing was refused.")]
    columns = [Column("operation"), Column("reason"), Column("times", is_number=True)]
    caption = "Operations that were decided against; a pop that found no message is none"
    return [table(f"{caption}{_part(len(rows), report.totals.refusal_kinds, 'kinds')}", columns, rows)]


def quality(report: Report, zone: tzinfo) -> Parts:
    """Return the rules that do not hold, and how many do by table."""
    if not report.quality:
        return [_nothing("The tables were not checked: popstream check does it.")]
    failed = [result for result in report.quality if not result.success]
    run_ms = max(result.run_ms for result in report.quality)
    parts: Parts = []
    if failed:
        columns = [Column("rule"), Column("table"), Column("rows", is_number=True), Column("found")]
        rows: list[Row] = [
            [
                _mono(result.expectation),
                result.suite,
                "not evaluated" if result.unexpected_count < 0 else f"{result.unexpected_count:,}",
                result.observed,
            ]
            for result in failed
        ]
        parts.append(table("Rules that do not hold", columns, rows))
    suites: dict[str, list[bool]] = {}
    for result in report.quality:
        suites.setdefault(result.suite, []).append(result.success)
    columns = [Column("table"), Column("rules that hold", is_number=True), Column("", is_number=False)]
    by_suite: list[Row] = [
        [suite, f"{sum(found)} of {len(found)}", _badge("all hold" if all(found) else "broken", is_good=all(found))]
        for suite, found in sorted(suites.items())
    ]
    parts.append(table(f"Last checked at {moment_text(run_ms, zone)}", columns, by_suite))
    return parts


def _lane(lane: Lane) -> Cell:
    return Cell([element("b", lane.group), " ", element("span", lane.queue, kind="mono")])


def _mono(text: str) -> Cell:
    return Cell([element("span", text, kind="mono")])


def _badge(text: str, *, is_good: bool) -> Cell:
    return Cell([element("span", text, kind=f"badge {'good' if is_good else 'bad'}")])


def _bar(text: str, value: float, greatest: float) -> Cell:
    """Return a number above a bar of its length."""
    share = percent(max(0.0, value) / greatest) if greatest > 0 else "0%"
    bar = element("span", element("span", style=f"width: {share}"), kind="bar", role="presentation")
    return Cell([element("span", text), bar], "with-bar")


def _reason(reason: str, cause: str | None) -> str:
    if reason != "attempt_limit":
        return reason
    if cause is None:
        return "attempt limit"
    return f"attempt limit: {_cause(cause)}"


def _causes(causes: Mapping[str, int]) -> str:
    found = sorted(causes.items(), key=lambda each: (-each[1], each[0]))
    return "; ".join(f"{_cause(cause)} ({count})" for cause, count in found[:3]) or "the tables lack it"


def _cause(cause: str) -> str:
    if cause == "deadline":
        return "its lease expired"
    return raised_text(cause) or {"change_invisible": "its client released it"}.get(cause, cause.replace("_", " "))


def _range(lane: Lane, first: int, last: int) -> str:
    return f"{lane.queue}/{first}" + ("" if first == last else f" … {last}")


def _part(shown: int, count: int, noun: str) -> str:
    return f"; the first {shown} of {count:,} {noun}" if shown < count else ""


def _nothing(text: str) -> ET.Element:
    return element("p", text, kind="dim")
