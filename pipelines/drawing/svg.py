"""Elements of SVG, at shares of the width: a picture fits any width, and its text keeps its size."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple
from xml.etree import ElementTree as ET

__all__ = ["Scale", "add", "add_mark", "percent", "serialized"]

_NOT_ALLOWED: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML does not allow, not even as references, so that texts of others must not have them."""


class Scale(NamedTuple):
    """Places moments from left to right, with a margin on both sides, as a share of the width.

    >>> Scale(0, 1_000).x(250), Scale(0, 1_000, 0.03).x(1_000), Scale(0, 1_000).x(2_000)
    ('25%', '97%', '100%')
    """

    begin_ms: int
    end_ms: int
    margin: float = 0.0

    def share(self, at_ms: float) -> float:
        """Return the place of a moment between 0 and 1; what is outside is at the edge."""
        share = (at_ms - self.begin_ms) / max(1, self.end_ms - self.begin_ms)
        return self.margin + (1 - 2 * self.margin) * min(1.0, max(0.0, share))

    def x(self, at_ms: float) -> str:
        """Return the place of a moment."""
        return percent(self.share(at_ms))

    def width(self, begin_ms: float, end_ms: float) -> str:
        """Return the width of the time between two moments."""
        return percent(self.share(end_ms) - self.share(begin_ms))


def percent(share: float) -> str:
    """Return a share as SVG and CSS write it.

    >>> percent(1 / 3), percent(0.5)
    ('33.33%', '50%')
    """
    return f"{round(100 * share, 2):g}%"


def add(parent: ET.Element, name: str, kind: str = "", title: str = "", **attributes: float | str) -> ET.Element:
    """Add a shape, with a text that shows where a pointer rests. `stroke_width=2` is the attribute `stroke-width`."""
    named = {key.replace("_", "-"): str(value) for key, value in attributes.items()}
    shape = ET.SubElement(parent, name, ({"class": kind} if kind else {}) | named)
    if title:
        ET.SubElement(shape, "title").text = title
    return shape


def add_mark(parent: ET.Element, kind: str, title: str, x: str, y: float, path: str) -> None:
    """Add a small shape of a fixed size at a place: its path begins from there."""
    at = add(parent, "svg", "mark", x=x, y=y, overflow="visible")
    add(at, "path", kind, title, d=path)


def serialized(root: ET.Element, method: Literal["xml", "html"] = "xml") -> str:
    r"""Return a document as text, with a substitute for each character that is not allowed in it.

    >>> root = ET.Element("text"); root.text = "a\x1b[2J<b>"; serialized(root)
    '<text>a�[2J&lt;b&gt;</text>'
    """
    return _NOT_ALLOWED.sub("\ufffd", ET.tostring(root, encoding="unicode", method=method))
