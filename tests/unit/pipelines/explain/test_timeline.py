"""The drawing of a story: everything is inside the picture, and nothing is fetched."""

from __future__ import annotations

import re
from datetime import UTC
from xml.etree import ElementTree as ET

from pipelines.explain.story import story_of
from pipelines.explain.timeline import WIDTH, timeline_svg
from tests.support.kernel_history import NOON_MS, KernelHistory

SVG = "{http://www.w3.org/2000/svg}"


def drawn(history: KernelHistory) -> ET.Element:
    svg = timeline_svg(story_of(history.rows(), None, NOON_MS + 600_000, UTC), UTC)
    assert re.findall(r"(?:https?:|url\(|href|@import|<script)[^\s\"]*", svg) == ["http://www.w3.org/2000/svg"]
    return ET.fromstring(svg)  # noqa: S314 - our own


def of_class(svg: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in svg.iter() if each.get("class") == name]


def slow_then_done() -> KernelHistory:
    history = KernelHistory()
    first = history.pop(1, "slow <&>")
    second = history.pop(31, "b")
    history.ack(33, "slow <&>", first)
    history.ack(51, "b", second)
    history.ack(61, "b", first)
    return history


def test_each_lease_is_a_bar_and_each_ack_a_mark() -> None:
    svg = drawn(slow_then_done())
    first, second = of_class(svg, "lease")
    # From noon until the last ack, which is refused: 61 s on 366 units. Then the second lease would have ended, too.
    assert (first.get("x"), first.get("width")) == ("18.0", "180.0")
    assert (second.get("x"), second.get("width")) == ("198.0", "120.0")
    (rest,) = of_class(svg, "ended")
    assert (rest.get("x"), rest.get("width")) == ("318.0", "60.0")
    assert [each.get("cx") for each in of_class(svg, "ack")] == ["318.0"]
    assert (len(of_class(svg, "refused")), len(of_class(svg, "after"))) == (2, 1)


def test_it_fits_a_phone_and_follows_the_colours_of_the_system() -> None:
    svg = drawn(slow_then_done())
    assert (svg.get("viewBox") or "").split()[:3] == ["0", "0", str(WIDTH)]
    assert WIDTH == 390
    style = svg.findtext(f"{SVG}style") or ""
    assert "@media (prefers-color-scheme: dark)" in style
    height = float((svg.get("viewBox") or "").split()[3])
    for shape in svg.iter():
        assert float(shape.get("x", 0)) + float(shape.get("width", "0").rstrip("%") if shape is not svg else 0) <= WIDTH
        assert float(shape.get("y", 0)) + float(shape.get("height", 0)) <= height


def test_dead_letters_and_messages_given_back_have_marks_of_their_own() -> None:
    history = KernelHistory()
    history.change(2, "a", history.pop(1, "a"), 0)
    history.reject(5, "b", history.pop(4, "b"))
    svg = drawn(history)
    assert (len(of_class(svg, "back")), len(of_class(svg, "dead"))) == (1, 1)


def test_a_message_that_nobody_got_has_a_picture_too() -> None:
    assert of_class(drawn(KernelHistory()), "lease") == []
