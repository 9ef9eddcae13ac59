"""Elements of HTML, of which the text is escaped where they are written out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from pipelines.drawing.svg import serialized

__all__ = ["Cell", "Column", "Row", "document", "element", "table"]

Child = ET.Element | str


class Column(NamedTuple):
    """A column of a table: its heading, and whether it has numbers."""

    heading: str
    is_number: bool = False


class Cell(NamedTuple):
    """A cell that is more than a text."""

    content: Sequence[Child]
    kind: str = ""


Row = Sequence[str | Cell]
"""The cells of a row of a table."""


def element(tag: str, *children: Child, kind: str = "", **attributes: str) -> ET.Element:
    """Return an element with texts and elements inside. `aria_label="x"` is the attribute `aria-label`.

    >>> ET.tostring(element("p", "1 < 2, ", element("b", "yes"), "!", kind="dim"), encoding="unicode")
    '<p class="dim">1 &lt; 2, <b>yes</b>!</p>'
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    made = ET.Element(tag, ({"class": kind} if kind else {}) | named)
    for child in children:
        if not isinstance(child, str):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def table(caption: str, columns: Sequence[Column], rows: Iterable[Row], *, kind: str = "blocks") -> ET.Element:
    """Return a table; one of the kind `blocks` has its rows as blocks on a phone."""
    head = element("tr", *(element("th", column.heading, kind=_number(column), scope="col") for column in columns))
    body = element("tbody")
    for row in rows:
        body.append(element("tr", *(_cell(column, cell) for column, cell in zip(columns, row, strict=True))))
    made = element("table", element("caption", caption), element("thead", head), body, kind=kind)
    return element("div", made, kind="scroll", role="region", aria_label=caption, tabindex="0")


def _cell(column: Column, cell: str | Cell) -> ET.Element:
    found = Cell([cell] if cell else []) if isinstance(cell, str) else cell
    kind = " ".join(filter(None, (_number(column), found.kind)))
    return element("td", *found.content, kind=kind, data_label=column.heading)


def _number(column: Column) -> str:
    return "num" if column.is_number else ""


def document(title: str, style: str, body: ET.Element) -> str:
    """Return a page that needs nothing from elsewhere, and may run nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    page = element("html", head, element("body", body), lang="en")
    return "<!DOCTYPE html>\n" + serialized(page, "html") + "\n"
