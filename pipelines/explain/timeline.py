"""The deliveries of a message over time as an SVG: self-contained, readable on a phone, in light and dark."""

import textwrap
from collections.abc import Sequence
from datetime import tzinfo
from xml.etree import ElementTree as ET

from pipelines.explain.clock import clock_text, day_text, duration_text, zone_text
from pipelines.explain.leases import Lease, leases_of
from pipelines.explain.message_events import EventKind
from pipelines.explain.story import GroupStory, MessageStory

__all__ = ["timeline_svg"]

WIDTH = 390
MARGIN = 12
ROW = 44
TITLE = 46
LINE = 16
AXIS = 40
LINE_CHARACTERS = 56
"""In a wide font."""
VERDICT_LINES_MAX = 5

STYLE = """
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
text { fill: #1f2328; } .dim { fill: #59636e; } .title { font-weight: 600; }
.lease { fill: #54aeff; } .ended { fill: #d0d7de; } .after { fill: none; stroke: #59636e; stroke-dasharray: 3 3; }
.ack { fill: #1a7f37; } .refused { stroke: #cf222e; stroke-width: 2; } .dead { fill: #cf222e; } .back { fill: #9a6700; }
.axis { stroke: #59636e; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #f0f6fc; } .dim { fill: #9198a1; }
  .lease { fill: #1f6feb; } .ended { fill: #3d444d; } .after, .axis { stroke: #9198a1; }
  .ack { fill: #3fb950; } .refused { stroke: #f85149; } .dead { fill: #f85149; } .back { fill: #d29922; }
}
"""


def timeline_svg(story: MessageStory, zone: tzinfo) -> str:
    """Return the deliveries to each group: a bar from a lease's beginning to its end, and what was asked for it.

    A full circle is an ack, a half one a message that was given back, a square a dead letter, a cross a refusal. The
    pale part of a bar is a lease that ended before its deadline; a dashed line joins a lease with what came too late.
    """
    by_group = [(group, leases_of(group.events)) for group in story.groups]
    moments = [moment for _, leases in by_group for lease in leases for moment in _moments(lease)]
    moments += [event.at_ms for event in story.events] or [0]
    begin_ms, end_ms = min(moments), max(*moments, min(moments) + 1)
    heights = [_header(group) + ROW * len(leases) for group, leases in by_group]
    height = AXIS + TITLE + sum(heights)
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": "100%",
            "role": "img",
            "aria-label": f"deliveries of {story.topic}/{story.queue_id}/{story.queue_offset}",
        },
    )
    ET.SubElement(root, "style").text = STYLE
    draw = _Drawing(root, begin_ms, end_ms)
    draw.text(MARGIN, 20, f"{story.topic}/{story.queue_id}/{story.queue_offset}", "title")
    draw.text(MARGIN, 36, f"{day_text(begin_ms, zone)}, times in {zone_text(begin_ms, zone)}", "dim")
    y = TITLE
    for (group, leases), used in zip(by_group, heights, strict=True):
        _draw_group(draw, group, leases, y, zone)
        y += used
    draw.line(MARGIN, y + 4, WIDTH - MARGIN, y + 4, "axis")
    draw.text(MARGIN, y + 20, clock_text(begin_ms, zone), "dim")
    draw.text(WIDTH // 2, y + 20, duration_text(end_ms - begin_ms), "dim", anchor="middle")
    draw.text(WIDTH - MARGIN, y + 20, clock_text(end_ms, zone), "dim", anchor="end")
    return ET.tostring(root, encoding="unicode")


class _Drawing:
    """Draws at moments, of which the first is at the left and the last at the right."""

    def __init__(self, root: ET.Element, begin_ms: int, end_ms: int) -> None:
        self._root, self._begin_ms, self._length_ms = root, begin_ms, end_ms - begin_ms

    def x(self, at_ms: int) -> float:
        """Return the place of a moment; what comes after the last one is at the right edge."""
        share = min(1.0, (at_ms - self._begin_ms) / self._length_ms)
        return round(MARGIN + (WIDTH - 2 * MARGIN) * share, 1)

    def add(self, name: str, kind: str, title: str = "", **places: float | str) -> None:
        """Add a shape, with a text that shows where a pointer rests."""
        shape = ET.SubElement(self._root, name, {"class": kind, **{key: str(place) for key, place in places.items()}})
        if title:
            ET.SubElement(shape, "title").text = title

    def text(self, x: float, y: float, text: str, kind: str, anchor: str = "start") -> None:
        """Add a text, cut where it does not fit."""
        cut = text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + "…"
        found = ET.SubElement(self._root, "text", {"x": str(x), "y": str(y), "class": kind, "text-anchor": anchor})
        found.text = cut

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Add a line."""
        self.add("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)


def _draw_group(draw: _Drawing, group: GroupStory, leases: Sequence[Lease], y: int, zone: tzinfo) -> None:
    draw.text(MARGIN, y + 20, f"group {group.group}: {group.state}", "title")
    for number, line in enumerate(_verdict_lines(group)):
        draw.text(MARGIN, y + 36 + LINE * number, line, "dim")
    for number, lease in enumerate(leases):
        _draw_lease(draw, lease, y + _header(group) + ROW * number, zone)


def _header(group: GroupStory) -> int:
    return 30 + LINE * len(_verdict_lines(group))


def _verdict_lines(group: GroupStory) -> list[str]:
    return textwrap.wrap(group.verdict, LINE_CHARACTERS, max_lines=VERDICT_LINES_MAX, placeholder=" …")


def _draw_lease(draw: _Drawing, lease: Lease, y: int, zone: tzinfo) -> None:
    end = lease.end
    ended_ms = lease.until_ms if end is None else end.at_ms
    began, ended, until = draw.x(lease.began_ms), draw.x(ended_ms), draw.x(lease.until_ms)
    middle = y + 28
    length = duration_text(lease.until_ms - lease.began_ms)
    how = "held" if end is None else end.kind.replace("_", " ")
    draw.text(MARGIN, y + 12, f"{lease.number}  {lease.holder}, lease of {length}, {how}", "label")
    if until > ended:
        draw.add("rect", "ended", x=ended, y=y + 20, width=round(until - ended, 1), height=16)
    title = f"{clock_text(lease.began_ms, zone)} to {clock_text(ended_ms, zone)}: {how}"
    draw.add("rect", "lease", title, x=began, y=y + 20, width=max(2.0, round(ended - began, 1)), height=16)
    last = max([ended_ms, *(event.at_ms for event in lease.late)])
    if last > ended_ms:
        draw.line(ended, middle, draw.x(last), middle, "after")
    if end is not None and end.kind is EventKind.ACKED:
        draw.add("circle", "ack", f"acked {clock_text(end.at_ms, zone)}", cx=ended, cy=middle, r=6)
    elif end is not None and end.kind is EventKind.DEAD_LETTERED:
        draw.add(
            "rect", "dead", f"dead letter {clock_text(end.at_ms, zone)}", x=ended - 6, y=y + 22, width=12, height=12
        )
    elif end is not None and end.kind is EventKind.GIVEN_BACK:
        draw.add("path", "back", f"given back {clock_text(end.at_ms, zone)}", d=f"M{ended},{y + 22} a6,6 0 0 0 0,12 z")
    for event in lease.late:
        x = draw.x(event.at_ms)
        title = f"{event.operation} refused {clock_text(event.at_ms, zone)}: {event.reason}"
        draw.add("path", "refused", title, d=f"M{x - 5},{middle - 5} l10,10 M{x + 5},{middle - 5} l-10,10")


def _moments(lease: Lease) -> list[int]:
    """Return what the time line spans: not a deadline that was never reached, which would squeeze the rest."""
    ended_ms = lease.until_ms if lease.end is None else lease.end.at_ms
    return [lease.began_ms, ended_ms, *(event.at_ms for event in lease.late)]
