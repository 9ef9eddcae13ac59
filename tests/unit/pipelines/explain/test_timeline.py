"""The drawing of a story: everything is inside the picture, and nothing is fetched."""

from __future__ import annotations

import re
from datetime import UTC
from xml.etree import ElementTree as ET

from pipelines.explain.story import story_of
from pipelines.explain.timeline import timeline_svg
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
    # From noon until the last ack, which is refused: 61 s on 94 % of the width. Then the second lease would have ended.
    assert (first.get("x"), first.get("width")) == ("4.54%", "46.23%")
    assert (second.get("x"), second.get("width")) == ("50.77%", "30.82%")
    (rest,) = of_class(svg, "ended")
    assert (rest.get("x"), rest.get("width")) == ("81.59%", "15.41%")
    assert [each.get("cx") for each in of_class(svg, "ack")] == ["81.59%"]
    assert (len(of_class(svg, "refused")), len(of_class(svg, "after"))) == (2, 1)


def test_a_client_with_control_characters_leaves_the_picture_readable() -> None:
    history = KernelHistory()
    history.pop(1, "a\x1b[31m\x00")
    assert "a\ufffd[31m\ufffd" in "".join(drawn(history).itertext())


def test_it_fits_any_width_and_follows_the_colours_of_the_system() -> None:
    svg = drawn(slow_then_done())
    assert (svg.get("width"), svg.get("viewBox")) == ("100%", None)
    style = svg.findtext(f"{SVG}style") or ""
    assert "@media (prefers-color-scheme: dark)" in style
    for shape in list(svg.iter())[1:]:
        x, width = (shape.get(name, "0%") for name in ("x", "width"))
        assert {x[-1], width[-1]} == {"%"}
        assert float(x[:-1]) + float(width[:-1]) <= 97.01
        assert float(shape.get("y", 0)) + float(shape.get("height", 0)) <= float(svg.get("height", 0))
    assert max(len(text.text or "") for text in svg.iter(f"{SVG}text")) <= 56


def test_dead_letters_and_released_messages_have_marks_of_their_own() -> None:
    history = KernelHistory()
    history.change(2, "a", history.pop(1, "a"), 0)
    history.reject(5, "b", history.pop(4, "b"))
    svg = drawn(history)
    assert (len(of_class(svg, "released")), len(of_class(svg, "dead"))) == (1, 1)


def test_a_message_that_nobody_got_has_a_picture_too() -> None:
    assert of_class(drawn(KernelHistory()), "lease") == []
