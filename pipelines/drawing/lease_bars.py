"""Leases over time: a bar from a lease's beginning to its end, and marks for what was asked for it.

A full circle is an ack, a half one a release, a square a dead letter, a cross a refusal. The pale
part of a bar is a lease that ended before its deadline; a dashed line joins a lease with what came too late.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from pipelines.drawing.svg import Scale, add, add_mark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree import ElementTree as ET

__all__ = ["LEASE_ROW", "LEASE_STYLE", "LeaseBar", "Mark", "MarkKind", "cut_to_phone", "draw_lease"]

LEASE_ROW: Final = 44
"""Height of a lease with its label, in pixels."""

LEASE_STYLE: Final = """
.lease { fill: #54aeff; stroke: #54aeff; } .ended { fill: #d0d7de; }
.after { fill: none; stroke: #59636e; stroke-dasharray: 3 3; }
.ack { fill: #1a7f37; } .refused { stroke: #cf222e; stroke-width: 2; } .dead { fill: #cf222e; }
.released { fill: #9a6700; }
@media (prefers-color-scheme: dark) {
  .lease { fill: #1f6feb; stroke: #1f6feb; } .ended { fill: #3d444d; } .after { stroke: #9198a1; }
  .ack { fill: #3fb950; } .refused { stroke: #f85149; } .dead { fill: #f85149; } .released { fill: #d29922; }
}
"""

_PHONE_CHARACTERS: Final = 56
"""As many fit on 390 pixels, in a wide font."""
_BAR_TOP, _BAR_HEIGHT, _MIDDLE = 20, 16, 28
_RADIUS, _SMALL_RADIUS, _LARGE_MARKS_MAX = 6, 4, 2


class MarkKind(enum.StrEnum):
    """What a mark stands for, and its class in `LEASE_STYLE`."""

    ACKED = "ack"
    RELEASED = "released"
    DEAD = "dead"
    REFUSED = "refused"


class Mark(NamedTuple):
    """Something that was asked for a lease, at a moment; the title says what."""

    kind: MarkKind
    at_ms: int
    title: str


class LeaseBar(NamedTuple):
    """A lease as it is drawn.

    Attributes:
        label: Above the bar.
        title: Where a pointer rests on it.
        began_ms: Its beginning.
        ended_ms: Its end; of one that has not ended, until when it is drawn.
        until_ms: Its deadline.
        marks: On it, and after it.
    """

    label: str
    title: str
    began_ms: int
    ended_ms: int
    until_ms: int
    marks: Sequence[Mark]


def draw_lease(parent: ET.Element, scale: Scale, bar: LeaseBar, y: float) -> None:
    """Draw a lease with its top at `y`, `LEASE_ROW` pixels high."""
    top, middle = y + _BAR_TOP, y + _MIDDLE
    add(parent, "text", "label", x=scale.x(scale.begin_ms), y=y + 12).text = cut_to_phone(bar.label)
    if bar.until_ms > bar.ended_ms:
        width = scale.width(bar.ended_ms, bar.until_ms)
        add(parent, "rect", "ended", x=scale.x(bar.ended_ms), y=top, width=width, height=_BAR_HEIGHT)
    width = scale.width(bar.began_ms, bar.ended_ms)
    add(parent, "rect", "lease", bar.title, x=scale.x(bar.began_ms), y=top, width=width, height=_BAR_HEIGHT)
    last_ms = max([bar.ended_ms, *(mark.at_ms for mark in bar.marks)])
    if last_ms > bar.ended_ms:
        add(parent, "line", "after", x1=scale.x(bar.ended_ms), y1=middle, x2=scale.x(last_ms), y2=middle)
    radius = _RADIUS if len(bar.marks) <= _LARGE_MARKS_MAX else _SMALL_RADIUS
    for mark in bar.marks:
        _draw_mark(parent, mark, scale.x(mark.at_ms), middle, radius)


def cut_to_phone(text: str) -> str:
    """Return a text, cut where it does not fit into a line on a phone."""
    return text if len(text) <= _PHONE_CHARACTERS else text[: _PHONE_CHARACTERS - 1] + "…"


def _draw_mark(parent: ET.Element, mark: Mark, x: str, middle: float, radius: int) -> None:
    match mark.kind:
        case MarkKind.ACKED:
            add(parent, "circle", mark.kind, mark.title, cx=x, cy=middle, r=radius)
        case MarkKind.RELEASED:
            add_mark(parent, mark.kind, mark.title, x, middle, f"M0,{-_RADIUS} a6,6 0 0 0 0,12 z")
        case MarkKind.DEAD:
            add_mark(parent, mark.kind, mark.title, x, middle, "M-6,-6 h12 v12 h-12 z")
        case MarkKind.REFUSED:
            add_mark(parent, mark.kind, mark.title, x, middle, "M-5,-5 l10,10 M5,-5 l-10,10")
