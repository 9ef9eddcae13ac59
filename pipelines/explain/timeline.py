"""The deliveries of a message over time as an SVG: self-contained, readable on a phone, in light and dark."""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from xml.etree import ElementTree as ET

from pipelines.drawing.lease_bars import LEASE_ROW, LEASE_STYLE, LeaseBar, Mark, MarkKind, cut_to_phone, draw_lease
from pipelines.drawing.svg import Scale, add, serialized
from pipelines.explain.leases import Lease, leases_of
from pipelines.explain.message_events import Event, EventKind
from pipelines.explain.story import GroupStory, MessageStory
from pipelines.times import day_text, duration_text, time_of_day, zone_name

__all__ = ["MARKS", "timeline_svg"]

MARGIN = 0.03
TITLE = 46
LINE = 16
AXIS = 40
LINE_CHARACTERS = 56
"""In a wide font, on 390 pixels."""
VERDICT_LINES_MAX = 5

MARKS = {
    EventKind.ACKED: MarkKind.ACKED,
    EventKind.RELEASED_BY_CLIENT: MarkKind.RELEASED,
    EventKind.DEAD_LETTERED: MarkKind.DEAD,
    EventKind.REFUSED: MarkKind.REFUSED,
}
"""The marks of events on a lease; others have none."""

STYLE = """
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
svg.mark { background: none; }
text { fill: #1f2328; } .dim { fill: #59636e; } .title { font-weight: 600; } .axis { stroke: #59636e; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #f0f6fc; } .dim { fill: #9198a1; } .axis { stroke: #9198a1; }
}
"""


def timeline_svg(story: MessageStory, zone: tzinfo) -> str:
    """Return the deliveries to each group, as `pipelines.drawing.lease_bars` draws leases."""
    by_group = [(group, leases_of(group.events)) for group in story.groups]
    moments = [moment for _, leases in by_group for lease in leases for moment in _moments(lease)]
    moments += [event.at_ms for event in story.events] or [0]
    begin_ms, end_ms = min(moments), max(*moments, min(moments) + 1)
    heights = [_header(group) + LEASE_ROW * len(leases) for group, leases in by_group]
    height = AXIS + TITLE + sum(heights)
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": "100%",
            "height": str(height),
            "role": "img",
            "aria-label": f"deliveries of {story.topic}/{story.queue_id}/{story.queue_offset}",
        },
    )
    ET.SubElement(root, "style").text = STYLE + LEASE_STYLE
    scale = Scale(begin_ms, end_ms, MARGIN)
    left, right = scale.x(begin_ms), scale.x(end_ms)
    _text(root, left, 20, f"{story.topic}/{story.queue_id}/{story.queue_offset}", "title")
    _text(root, left, 36, f"{day_text(begin_ms, zone)}, times in {zone_name(begin_ms, zone)}", "dim")
    y = TITLE
    for (group, leases), used in zip(by_group, heights, strict=True):
        _draw_group(root, scale, group, leases, y, zone)
        y += used
    add(root, "line", "axis", x1=left, y1=y + 4, x2=right, y2=y + 4)
    _text(root, left, y + 20, time_of_day(begin_ms, zone), "dim")
    _text(root, "50%", y + 20, duration_text(end_ms - begin_ms), "dim", anchor="middle")
    _text(root, right, y + 20, time_of_day(end_ms, zone), "dim", anchor="end")
    return serialized(root)


def _text(parent: ET.Element, x: str, y: float, text: str, kind: str, anchor: str = "start") -> None:
    add(parent, "text", kind, x=x, y=y, text_anchor=anchor).text = cut_to_phone(text)


def _draw_group(
    root: ET.Element, scale: Scale, group: GroupStory, leases: Sequence[Lease], y: int, zone: tzinfo
) -> None:
    left = scale.x(scale.begin_ms)
    _text(root, left, y + 20, f"group {group.group}: {group.state}", "title")
    for number, line in enumerate(_verdict_lines(group)):
        _text(root, left, y + 36 + LINE * number, line, "dim")
    for number, lease in enumerate(leases):
        draw_lease(root, scale, _bar(lease, zone), y + _header(group) + LEASE_ROW * number)


def _header(group: GroupStory) -> int:
    return 30 + LINE * len(_verdict_lines(group))


def _verdict_lines(group: GroupStory) -> list[str]:
    return textwrap.wrap(group.verdict, LINE_CHARACTERS, max_lines=VERDICT_LINES_MAX, placeholder=" …")


def _bar(lease: Lease, zone: tzinfo) -> LeaseBar:
    ended_ms = lease.until_ms if lease.end is None else lease.end.at_ms
    length = duration_text(lease.until_ms - lease.began_ms)
    how = "held" if lease.end is None else lease.end.kind.replace("_", " ")
    return LeaseBar(
        label=f"{lease.number}  {lease.holder}, lease of {length}, {how}",
        title=f"{time_of_day(lease.began_ms, zone)} to {time_of_day(ended_ms, zone)}: {how}",
        began_ms=lease.began_ms,
        ended_ms=ended_ms,
        until_ms=lease.until_ms,
        marks=[*_marks(lease, zone)],
    )


def _marks(lease: Lease, zone: tzinfo) -> Iterator[Mark]:
    ends: Sequence[Event] = () if lease.end is None else (lease.end,)
    for event in (*ends, *lease.late):
        kind = MARKS.get(event.kind)
        if kind is MarkKind.REFUSED:
            yield Mark(kind, event.at_ms, f"{event.operation} refused {time_of_day(event.at_ms, zone)}: {event.reason}")
        elif kind is not None:
            yield Mark(kind, event.at_ms, f"{event.kind.replace('_', ' ')} {time_of_day(event.at_ms, zone)}")


def _moments(lease: Lease) -> list[int]:
    """Return what the time line spans: not a deadline that was never reached, which would squeeze the rest."""
    ended_ms = lease.until_ms if lease.end is None else lease.end.at_ms
    return [lease.began_ms, ended_ms, *(event.at_ms for event in lease.late)]
