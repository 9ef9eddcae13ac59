"""Charts over the intervals of a period: lines and stacked columns, each with its values as a table.

Coordinates are shares of the width, so that a chart fits any screen; curves lie in an inner picture that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from pipelines.drawing.svg import Scale, add, percent
from pipelines.report.axes import durations, moments, number_text, round_steps
from pipelines.report.html import Column, element, table
from pipelines.report.period import Period
from pipelines.times import duration_text, moment_text

__all__ = ["Chart", "Series", "draw_time_axis", "figure"]

HEIGHT: Final = 180
AXIS: Final = 24
_TOP: Final = 8
_INNER: Final = 1_000
_AT_EDGE: Final = 0.05


class Series(NamedTuple):
    """Values by interval; None: there is none. `kind` is the class of its curve or columns, as in report.css."""

    name: str
    kind: str
    values: Sequence[float | None]


class Chart(NamedTuple):
    """What a chart shows.

    Attributes:
        key: Its id in the page.
        title: Its heading.
        note: What it shows, in a sentence.
        series: One curve each, or one part of each column.
        text: Writes a value.
        is_stacked: Columns instead of curves.
        is_logarithmic: Durations, on a logarithmic axis.
    """

    key: str
    title: str
    note: str
    series: Sequence[Series]
    text: Callable[[float], str] = number_text
    is_stacked: bool = False
    is_logarithmic: bool = False


class _Axis(NamedTuple):
    """Places values from the bottom up, in pixels from the top."""

    steps: Sequence[float]
    is_logarithmic: bool

    def y(self, value: float) -> float:
        least, greatest = self.steps[0], self.steps[-1]
        if self.is_logarithmic:
            share = math.log(max(value, least) / least) / math.log(greatest / least)
        else:
            share = value / greatest
        return round(_TOP + (HEIGHT - _TOP) * (1 - share), 1)


def figure(chart: Chart, period: Period, zone: tzinfo) -> ET.Element:
    """Return a chart with its legend, and its values as a table."""
    values = [value for each in chart.series for value in each.values if value is not None]
    parts = [
        element("h3", chart.title, id=f"{chart.key}-title"),
        element("p", chart.note, kind="dim small", id=f"{chart.key}-note"),
    ]
    if not any(values):
        nothing = element("p", "Nothing of this in the period.", kind="nothing dim")
        return element("figure", *parts, nothing, kind="card")
    if len(chart.series) > 1:
        parts.append(_legend(chart))
    axis = _axis(chart, values)
    parts += [_drawing(chart, axis, period, zone), _data(chart, period, zone)]
    return element("figure", *parts, kind="card")


def draw_time_axis(
    parent: ET.Element, scale: Scale, bottom: float, zone: tzinfo, *, above: float | None = None
) -> None:
    """Draw a line down to `bottom` for each round moment, with its text below it, and above `above` where that is."""
    for at_ms, text in moments(scale.begin_ms, scale.end_ms, zone):
        x, share = scale.x(at_ms), scale.share(at_ms)
        add(parent, "line", "grid", x1=x, y1=above or 0, x2=x, y2=bottom)
        anchor = "start" if share < _AT_EDGE else "end" if share > 1 - _AT_EDGE else "middle"
        for y in (bottom + 16, *(() if above is None else (above - 6,))):
            add(parent, "text", x=x, y=y, text_anchor=anchor).text = text


def _axis(chart: Chart, values: Sequence[float]) -> _Axis:
    if chart.is_logarithmic:
        positive = [max(value, 1.0) for value in values]
        return _Axis(durations(min(positive), max(positive)), is_logarithmic=True)
    sums = [sum(value or 0 for value in column) for column in zip(*(each.values for each in chart.series), strict=True)]
    return _Axis(round_steps(max(sums) if chart.is_stacked else max(values)), is_logarithmic=False)


def _legend(chart: Chart) -> ET.Element:
    items = []
    for each in chart.series:
        key = element("svg", kind=f"key {each.kind}", width="18", height="10", role="presentation")
        add(key, "line", "curve", x1=0, y1=5, x2=18, y2=5)
        add(key, "rect", "column", x=3, y=0, width=12, height=10)
        items.append(element("li", key, each.name))
    return element("ul", *items, kind="legend columns" if chart.is_stacked else "legend")


def _drawing(chart: Chart, axis: _Axis, period: Period, zone: tzinfo) -> ET.Element:
    attributes = {"role": "img", "aria-labelledby": f"{chart.key}-title {chart.key}-note"}
    root = ET.Element("svg", {"class": "chart plot", "width": "100%", "height": str(HEIGHT + AXIS), **attributes})
    steps = axis.steps[:: max(1, -(-len(axis.steps) // 6))]
    for step in steps:
        y = axis.y(step)
        add(root, "line", "grid", x1=0, y1=y, x2="100%", y2=y)
        add(root, "text", x=-8, y=y + 4, text_anchor="end").text = chart.text(step)
    scale = Scale(period.begin_ms, period.start_ms(period.intervals))
    draw_time_axis(root, scale, HEIGHT, zone)
    if chart.is_stacked:
        _draw_columns(root, chart.series, axis)
    else:
        box = f"0 0 {_INNER} {HEIGHT}"
        inner = add(root, "svg", viewBox=box, preserveAspectRatio="none", width="100%", height=HEIGHT)
        for each in chart.series:
            group = add(inner, "g", each.kind)
            if len(chart.series) == 1 and not chart.is_logarithmic:
                add(group, "path", "area", d=f"{_curve(each.values, axis, is_area=True)}")
            add(group, "path", "curve", d=_curve(each.values, axis))
    _draw_titles(root, chart, period, zone)
    return element("div", root, kind="plot-box")


def _curve(values: Sequence[float | None], axis: _Axis, *, is_area: bool = False) -> str:
    """Return the path through the middles of the intervals, with gaps where there is no value."""
    width, parts, begun = _INNER / len(values), [], None
    for number, value in enumerate([*values, None]):
        x = round((number + 0.5) * width, 1)
        if value is not None:
            parts.append(f"{'M' if begun is None else 'L'}{x:g},{axis.y(value):g}")
            begun = x if begun is None else begun
        elif begun is not None:
            last = round((number - 0.5) * width, 1)
            parts.append(f"L{last:g},{HEIGHT} L{begun:g},{HEIGHT} Z" if is_area else "h0")
            begun = None
    return " ".join(parts)


def _draw_columns(root: ET.Element, series: Sequence[Series], axis: _Axis) -> None:
    count = len(series[0].values)
    below = [0.0] * count
    for each in series:
        group = add(root, "g", each.kind)
        for number, value in enumerate(each.values):
            if value:
                top, bottom = axis.y(below[number] + value), axis.y(below[number])
                x, width = percent((number + 0.1) / count), percent(0.8 / count)
                add(group, "rect", "column", x=x, y=top, width=width, height=round(bottom - top, 1))
                below[number] += value


def _draw_titles(root: ET.Element, chart: Chart, period: Period, zone: tzinfo) -> None:
    """Let the values of an interval appear where a pointer rests."""
    for number, texts in enumerate(zip(*_texts(chart), strict=True)):
        named = [f"{each.name}: {text}" for each, text in zip(chart.series, texts, strict=True) if text]
        if named:
            title = "\n".join([moment_text(period.start_ms(number), zone), *named])
            x, width = percent(number / period.intervals), percent(1 / period.intervals)
            add(root, "rect", "pointed", title, x=x, y=0, width=width, height=HEIGHT)


def _texts(chart: Chart) -> list[list[str]]:
    return [["" if value is None else chart.text(value) for value in each.values] for each in chart.series]


def _data(chart: Chart, period: Period, zone: tzinfo) -> ET.Element:
    columns = [Column("from"), *(Column(each.name, is_number=True) for each in chart.series)]
    rows = []
    for number, texts in enumerate(zip(*_texts(chart), strict=True)):
        at_ms = period.start_ms(number)
        rows.append([moment_text(at_ms, zone), *texts])
    caption = f"{chart.title}, by {duration_text(period.width_ms)}"
    return element("details", element("summary", "Values as a table"), table(caption, columns, rows, kind="values"))
