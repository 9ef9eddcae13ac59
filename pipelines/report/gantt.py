"""The leases of a lane over time, a row for each pop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from pipelines.drawing.lease_bars import LEASE_ROW, LeaseBar, Mark, MarkKind, draw_lease
from pipelines.drawing.svg import Scale, add
from pipelines.explain.leases import ENDS
from pipelines.explain.message_events import EventKind
from pipelines.explain.timeline import MARKS
from pipelines.report.charts import AXIS, draw_time_axis
from pipelines.report.html import Column, table
from pipelines.report.lane_pops import messages_of
from pipelines.times import duration_text, time_of_day

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from pipelines.report.report_data import LaneLeases, Pop

__all__ = ["gantt", "leases_table"]

_MARKS_MAX: Final = 40
"""Of a pop: more of them would cover each other."""


def gantt(leases: LaneLeases, until_ms: int, zone: tzinfo) -> ET.Element:
    """Return the picture; of a lease that has not ended it shows what was known at `until_ms`."""
    bars = [_bar(pop, until_ms, zone) for pop in leases.pops]
    moments = [at_ms for bar in bars for at_ms in (bar.began_ms, bar.ended_ms, *(mark.at_ms for mark in bar.marks))]
    scale = Scale(min(moments), max(*moments, min(moments) + 1))
    height = LEASE_ROW * len(bars)
    root = ET.Element(
        "svg",
        {
            "class": "chart leases",
            "width": "100%",
            "height": str(height + 2 * AXIS),
            "role": "img",
            "aria-labelledby": "leases-title leases-note",
        },
    )
    draw_time_axis(root, scale, AXIS + height, zone, above=AXIS - 4)
    for number, bar in enumerate(bars):
        y = AXIS + LEASE_ROW * number
        if number:
            add(root, "line", "grid", x1=0, y1=y - 2, x2="100%", y2=y - 2)
        draw_lease(root, scale, bar, y)
    return root


def leases_table(leases: LaneLeases, zone: tzinfo) -> ET.Element:
    """Return the same as a table."""
    columns = [
        Column("messages"),
        Column("client"),
        Column("from"),
        Column("deadline"),
        Column("attempt", is_number=True),
        Column("what became of them"),
    ]
    rows = [
        [
            _offsets(pop),
            pop.client_id or "",
            time_of_day(pop.began_ms, zone),
            time_of_day(pop.until_ms, zone),
            str(pop.attempt),
            _outcome(pop),
        ]
        for pop in leases.pops
    ]
    return table("Pops of the lane", columns, rows)


def _bar(pop: Pop, until_ms: int, zone: tzinfo) -> LeaseBar:
    ends = [event.at_ms for event in pop.events if event.kind in ENDS]
    left = _left(pop)
    ended_ms = max(ends, default=pop.began_ms) if left <= 0 else max(pop.began_ms, min(until_ms, pop.until_ms))
    how = _outcome(pop)
    client = pop.client_id or "a client without an id"
    again = f", attempt {pop.attempt}" if pop.attempt > 1 else ""
    return LeaseBar(
        label=f"{_offsets(pop)}{again} · {how} · {client}",
        title=f"{time_of_day(pop.began_ms, zone)}, for {duration_text(ended_ms - pop.began_ms)}",
        began_ms=pop.began_ms,
        ended_ms=ended_ms,
        until_ms=max(ended_ms, min(until_ms, pop.until_ms)),
        marks=[*_marks(pop, zone)][:_MARKS_MAX],
    )


def _marks(pop: Pop, zone: tzinfo) -> Iterator[Mark]:
    drawn: set[tuple[MarkKind, int]] = set()
    for event in pop.events:
        kind = MARKS.get(event.kind)
        if kind is None or (kind, event.at_ms) in drawn:
            continue
        drawn.add((kind, event.at_ms))
        what = f"{event.operation} refused: {event.reason}" if kind is MarkKind.REFUSED else _named(event.kind)
        yield Mark(kind, event.at_ms, f"{time_of_day(event.at_ms, zone)} {what}")


def _offsets(pop: Pop) -> str:
    if pop.messages == 1:
        return f"{pop.first_offset:,}"
    return f"{pop.first_offset:,} to {pop.last_offset:,}"


def _left(pop: Pop) -> int:
    """Return how many messages of a pop nothing has ended; a dead letter at its attempt limit was ended before."""
    if any(event.kind is EventKind.RESET for event in pop.events):
        return 0
    ended = [event for event in pop.events if event.kind in ENDS and event.cause != "attempt_limit"]
    return pop.messages - sum(messages_of(event) for event in ended)


def _outcome(pop: Pop) -> str:
    """Return what became of the messages: "31 acked, 1 expired"."""
    counts: dict[str, int] = {}
    for event in pop.events:
        if event.kind in ENDS or event.kind is EventKind.REFUSED:
            name = f"{event.operation} refused" if event.kind is EventKind.REFUSED else _named(event.kind)
            counts[name] = counts.get(name, 0) + messages_of(event)
    was_reset = counts.pop(EventKind.RESET, 0) > 0  # its row is about the whole lane
    if (left := _left(pop)) > 0:
        counts["held"] = left
    found = [name if pop.messages == 1 else f"{count:,} {name}" for name, count in counts.items()]
    return ", ".join([*found, *(["ended by a reset"] if was_reset else [])])


def _named(kind: EventKind) -> str:
    return "released by its client" if kind is EventKind.RELEASED_BY_CLIENT else kind.replace("_", " ")
