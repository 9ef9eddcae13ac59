"""The page of a report in a real browser: nothing sticks out, overlaps or is too pale, on a desk and on a phone."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.explain.story import story_of
from pipelines.explain.timeline import timeline_svg
from pipelines.report.page import report_page
from pipelines.report.read_report import read_report
from pipelines.report.report_data import Lane, Scope
from pipelines.report.report_tables import open_tables
from tests.support.busy_scene import BusyScene
from tests.support.kernel_history import NOON_MS, KernelHistory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
SCREENSHOTS = Path("var/browser")
"""To be looked at."""

STICKING_OUT = """() => [...document.querySelectorAll("body *, svg text")].filter(each => {
    const box = each.getBoundingClientRect();
    const unseen = each.closest("details, thead");  // of tables that scroll; and of the heads that phones do not show
    return !unseen && box.width > 0 && (box.left < -1 || box.right > document.documentElement.clientWidth + 1);
}).map(each => each.tagName + " " + each.textContent.trim().slice(0, 60))"""

OVERLAPPING = """() => [...document.querySelectorAll("svg.plot, svg.leases")].flatMap(chart => {
    const boxes = [...chart.querySelectorAll("text")].map(each => [each.getBoundingClientRect(), each.textContent]);
    return boxes.flatMap(([one, text], at) => boxes.slice(at + 1)
        .filter(([other]) => one.left < other.right - 1 && other.left < one.right - 1
                             && one.top < other.bottom - 2 && other.top < one.bottom - 2)
        .map(([_, other]) => text + " / " + other));
})"""

# The contrast of each text with the first opaque background behind it, by the formula of WCAG 2.
PALE = """() => {
    const parsed = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => {
        const [r, g, b] = parsed(colour).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = each => {
        for (let at = each; at; at = at.parentElement) {
            const [,,, opacity = 1] = parsed(getComputedStyle(at).backgroundColor);
            if (opacity === 1) return getComputedStyle(at).backgroundColor;
        }
        return "rgb(255, 255, 255)";
    };
    return [...document.querySelectorAll("body *")].filter(each => [...each.childNodes].some(
        child => child.nodeType === 3 && child.textContent.trim()) && each.tagName !== "title").map(each => {
        const style = getComputedStyle(each);
        const colour = each instanceof SVGElement ? style.fill : style.color;
        const [one, other] = [light(colour), light(behind(each))].sort((a, b) => b - a);
        return [(one + 0.05) / (other + 0.05), each.tagName + " " + each.textContent.trim().slice(0, 60)];
    }).filter(([contrast]) => contrast < 4.5);
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    BusyScene(minutes=30).save(folder / "delta")
    with open_tables(folder / "delta", Scope(lane=Lane("billing", "payments", 0))) as tables:
        report = read_report(tables, "/data/job", NOON_MS + 3_600_000, UTC)
    made = folder / "report.html"
    made.write_text(report_page(report, UTC), encoding="utf-8")
    return made


@pytest.fixture(
    params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=lambda each: f"{each[0]}-{each[1]}"
)
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Any]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened: Any = context.new_page()
    opened.name = f"{width}-{scheme}"
    opened.said = []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda request: opened.said.append(request.url))
    yield opened
    context.close()


def test_a_report_looks_right(page: Any, page_file: Path) -> None:
    page.goto(page_file.as_uri())
    page.screenshot(path=SCREENSHOTS / f"report-{page.name}.png", full_page=True)
    assert page.said == [page_file.as_uri()], "it asks for nothing else, and says nothing"
    assert page.evaluate(STICKING_OUT) == []
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate(PALE) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(13, 17, 23)") == page.name.endswith("dark")


def test_values_are_there_without_a_script(browser: Browser, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 900})
    opened: Any = context.new_page()
    opened.goto(page_file.as_uri())
    table = opened.get_by_role("table", name="Throughput, by 30 s")
    assert not table.is_visible()
    opened.locator("figure", has=opened.get_by_role("heading", name="Throughput")).locator("summary").click()
    assert table.is_visible()
    assert table.get_by_role("row").count() == 61
    opened.get_by_role("link", name="Dead letters").click()
    assert opened.get_by_role("img", name="In flight").is_visible()
    context.close()


def test_the_time_line_of_a_message_looks_right(page: Any, tmp_path: Path) -> None:
    history = KernelHistory()
    slow, other = history.pop(1, "a-client-with-quite-a-long-name@host-17"), history.pop(31, "b")
    history.ack(45, "a-client-with-quite-a-long-name@host-17", slow)
    history.ack(52, "b", other)
    made = tmp_path / "life.svg"
    made.write_text(timeline_svg(story_of(history.rows(), None, NOON_MS + 600_000, UTC), UTC), encoding="utf-8")
    page.goto(made.as_uri())
    page.screenshot(path=SCREENSHOTS / f"time-line-{page.name}.png")
    out = page.evaluate(
        """() => [...document.querySelectorAll("text, rect.lease")].map(each => each.getBoundingClientRect())
        .filter(box => box.left < 0 || box.right > window.innerWidth || box.height > 20).length"""
    )
    assert out == 0
