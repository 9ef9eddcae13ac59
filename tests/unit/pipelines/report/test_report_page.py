"""The page of a report: one file that needs nothing from elsewhere, whose texts stay texts, with charts as tables."""

from __future__ import annotations

import re
from datetime import UTC
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec
import pytest

from pipelines.report.axes import moments
from pipelines.report.page import report_page
from pipelines.report.period import Period
from pipelines.report.read_report import read_report
from pipelines.report.report_data import DeadLetters, Lane, Scope
from pipelines.report.report_tables import open_tables
from tests.support.busy_scene import FAILURES, BusyScene
from tests.support.kernel_history import NOON_MS, KernelHistory

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.report.report_data import Report

VOID = {"meta", "link", "br", "img", "input", "hr"}
SCRIPT = "<script>alert(1)</script> & \"more\" 'quotes'"


class Page(HTMLParser):
    """The elements of a page: it raises AssertionError where they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("page") / "delta"
    BusyScene(minutes=6).save(root)
    with open_tables(root, Scope(lane=Lane("billing", "payments", 0))) as tables:
        return read_report(tables, "job", NOON_MS, UTC)


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing(report: Report) -> None:
    text = report_page(report, UTC)
    page = Page(text)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form"})
    assert [name for _, attributes in page.elements for name in attributes if name.startswith("on")] == []
    assert {attributes["href"][0] for attributes in page.of("a")} == {"#"}
    assert re.findall(r"url\(|@import|https?:|src=", text) == []
    (policy,) = [each["content"] for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_links_and_names_lead_to_elements(report: Report) -> None:
    page = Page(report_page(report, UTC))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for attributes in page.of("a")} <= set(ids)
    named = [name for _, each in page.elements for name in each.get("aria-labelledby", "").split()]
    assert len(named) > 10
    assert set(named) <= set(ids)


def test_each_picture_has_a_name_and_its_values_as_a_table(report: Report) -> None:
    page = Page(report_page(report, UTC))
    pictures = [each for each in page.of("svg") if each.get("role") == "img"]
    assert len(pictures) == 9
    assert all("aria-labelledby" in picture for picture in pictures)
    assert len(page.of("details")) == len(pictures)
    # The whole of a column, as the table of the chart has it.
    delivered = [f"{count:,}" for count in report.traffic.redelivered]
    start = page.texts.index("Redeliveries, by 5 s")
    cells = [text.strip() for text in page.texts[start : start + 3 * len(delivered) + 10]]
    assert [text for text in cells if re.fullmatch(r"[\d,]+", text)][: len(delivered)] == delivered


def test_texts_of_others_stay_texts(report: Report) -> None:
    letters = DeadLetters(group=SCRIPT, reason=SCRIPT, cause=None, messages=1, last_ms=NOON_MS, example=SCRIPT)
    assert report.leases is not None
    pops = [msgspec.structs.replace(pop, client_id=SCRIPT) for pop in report.leases.pops]
    changed = msgspec.structs.replace(
        report,
        name=SCRIPT,
        dead_letters=[letters],
        scope=Scope(group=SCRIPT),
        notices=[SCRIPT],
        leases=msgspec.structs.replace(report.leases, pops=pops),
    )
    text = report_page(changed, UTC)
    page = Page(text)
    assert "<script" not in text
    assert page.of("script") == []
    assert sum(SCRIPT in each for each in page.texts) > 5
    assert any(FAILURES[2] in each for each in page.texts)


def test_characters_that_a_page_may_not_have_are_replaced(report: Report) -> None:
    text = report_page(msgspec.structs.replace(report, name="a\x1b]0;b\x07"), UTC)
    assert "a\ufffd]0;b\ufffd" in text
    assert not {"\x1b", "\x07"} & {*text}


def test_numbers_of_the_summary_are_those_of_the_report(report: Report) -> None:
    texts = Page(report_page(report, UTC)).texts
    found = {texts[number]: texts[number + 1] for number in reversed(range(len(texts) - 1))}
    assert found["Delivered"] == f"{sum(report.traffic.delivered):,}"
    assert found["Leases expired"] == f"{sum(report.traffic.expired):,}"
    assert found["Rules that hold"] == "4 of 5"


def test_a_job_without_deliveries_has_a_page(tmp_path: Path) -> None:
    from tests.unit.pipelines.report.test_read_report import saved  # noqa: PLC0415 - of the tests beside

    with open_tables(saved(tmp_path, KernelHistory()), Scope()) as tables:
        text = report_page(read_report(tables, "job", NOON_MS, UTC), UTC)
    assert "Nothing of this in the period." in text
    assert "No message became a dead letter." in text
    assert "The tables were not checked" in text


@pytest.mark.parametrize("length_ms", [1, 999, 60_000, 3_600_000, 86_400_000, 40 * 86_400_000, 3_000 * 86_400_000])
def test_a_period_of_any_length_has_a_bounded_number_of_intervals(length_ms: int) -> None:
    period = Period(NOON_MS + 1, NOON_MS + 1 + length_ms)
    assert 1 <= period.intervals <= 121
    assert period.begin_ms <= period.since_ms < period.start_ms(1)
    assert period.start_ms(period.intervals - 1) < period.until_ms <= period.start_ms(period.intervals)
    assert sum(map(period.seconds, range(period.intervals))) == pytest.approx(length_ms / 1000)
    assert len(moments(period.begin_ms, period.start_ms(period.intervals), UTC)) <= 7


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert moments(NOON_MS, 1 << 62, UTC) == [(NOON_MS, f"{NOON_MS} ms since 1970")]
    assert Period(NOON_MS, 1 << 62).intervals <= 121


def test_round_moments_are_those_of_the_zone() -> None:
    found = moments(NOON_MS, NOON_MS + 40 * 3_600_000, ZoneInfo("Asia/Kolkata"))
    assert [text for _, text in found] == ["11-22 00:00", "11-22 12:00", "11-23 00:00"]
