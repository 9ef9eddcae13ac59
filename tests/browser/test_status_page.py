"""Claim: the status page shows the job to who has the token, by keyboard and on a phone, and runs nothing of others.

Method: the real page and server, over a job with a thousand lanes, in a headless Chromium. Screenshots and the
figure of its start are left in var/browser.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from playwright.sync_api import expect

from pipelines.cluster.watch.cluster_answers import ClusterAnswers
from pipelines.control.cluster_report import ClusterReport
from pipelines.control.page_messages import LanesRequest
from popstream.wire.base_errors import Invalid
from tests.browser.status_visit import SCREENSHOTS, Visit
from tests.support.in_process.api_site import TOKEN, ApiSite
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    from pipelines.control.messages import Answer, Request

    Visits = Callable[..., Visit]

VIEWS = {
    "lanes": "#lanes",
    "queues": "#queues",
    "micro-batches": "#micro-batches",
    "message": "#message?topic=orders&queue_id=0&queue_offset=0",
    "letters": "#letters",
}
FILLED = {
    "lanes": "#lanes tbody tr:nth-child(50)",
    "queues": "#queues tbody tr:nth-child(50)",
    "micro-batches": "#micro-batches .curve >> nth=1",
    "message": "#life .badge",
    "letters": "#letters tbody tr:nth-child(50)",
}
REQUESTS_MAX = 30
"""The page, its 12 files, and those of its first looks at the job."""
SENT_BYTES_MAX = 100_000
ELEMENTS_MAX = 1_500

pytestmark = pytest.mark.browser

# The machine may be busy with other things.
expect.set_options(timeout=60_000)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ApiSite]:
    """A job with a thousand lanes, ten minutes of micro-batches, a told message, and dead letters."""
    with ApiSite(tmp_path / "job") as found:
        found.job.fill(1_000)
        found.job.look()
        found.job.write_tables()
        found.decide_for_minutes()
        found.give_up(*(b'{"drink": "latte", "number": %d}' % number for number in range(60)), why="no <b>milk</b>")
        yield found


@pytest.fixture
def visits(browser: Browser, site: ApiSite) -> Iterator[Visits]:
    opened: list[Visit] = []

    def visit(width: int = 1280, scheme: str = "light", at: ApiSite = site) -> Visit:
        opened.append(Visit(browser, at, width, scheme))
        return opened[-1]

    yield visit
    for one in opened:
        one.context.close()


def choose(page: Page, number: int) -> None:
    page.locator("#letters tbody tr").nth(number).get_by_role("checkbox").check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_each_view_fits_its_window_and_nothing_is_complained_of(visits: Visits, width: int, scheme: str) -> None:
    visit = visits(width, scheme)
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for name, place in VIEWS.items():
        page = visit.enter(place)
        expect(page.locator(FILLED[name])).to_be_visible()
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        page.goto("about:blank")
    assert visit.complaints == []
    assert {url for url in asked if not url.startswith(visit.site.url)} <= {"about:blank"}


def test_the_colours_are_those_of_the_reader(visits: Visits) -> None:
    backgrounds = [
        visits(scheme=scheme).enter().evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert backgrounds == ["rgb(246, 248, 250)", "rgb(13, 17, 23)"]


def cpu_ms() -> float:
    """CPU time of this process, which is the server, and of the browser."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(1_000 * sum(process.cpu_times()[:2]) for process in processes)


def test_its_start_with_a_thousand_lanes_takes_few_requests_and_little_work(visits: Visits) -> None:
    """How long that takes depends on what else the machine does, so the figure is left in a file and not compared."""
    took_ms: list[tuple[int, int]] = []
    for _ in range(5):
        visit = visits()
        sizes: list[int] = []
        visit.page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))  # noqa: B023
        before_ms = cpu_ms()
        page = visit.enter()
        page.locator("#lanes tbody tr:nth-child(50) a").wait_for()
        took_ms.append((round(page.evaluate("performance.now()")), round(cpu_ms() - before_ms)))
        page.wait_for_load_state("networkidle")
        assert len(sizes) <= REQUESTS_MAX
        assert sum(sizes) <= SENT_BYTES_MAX
        assert page.locator("*").count() <= ELEMENTS_MAX
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    figures = {
        "lanes": 1_000,
        "interactive_ms": sorted(ms for ms, _ in took_ms),
        "cpu_ms": sorted(ms for _, ms in took_ms),
    }
    (SCREENSHOTS / "interactive.json").write_text(json.dumps(figures))
    print(figures)


def test_it_says_who_owns_the_prefix_since_when_and_from_whom(visits: Visits) -> None:
    page = visits().enter()
    owner = page.locator("#owner")
    expect(owner).to_contain_text("Owned by host-b since")
    expect(owner).to_contain_text("for 2 h 0 min")
    expect(owner).to_contain_text("kernel compiled")
    expect(owner).to_contain_text("Taken over from process 5 on host-a")
    expect(page.locator("#state")).to_have_text("ready")


def test_it_says_what_was_refused_by_reason(visits: Visits) -> None:
    """Operations that may not be sent are no unreadable records."""
    figures = visits().enter().locator("#figures > div")
    expect(figures.filter(has_text="Refused")).to_contain_text("QUOTA_EXCEEDED 8")
    expect(figures.filter(has_text="Rejected")).to_contain_text("NOT_SIGNED 3")


def test_lanes_come_by_the_page_and_are_searched_by_the_job(visits: Visits) -> None:
    page = visits().enter()
    pager = page.locator("#lanes .pager")
    expect(pager).to_contain_text("1 to 50 of 1,000")
    pager.get_by_role("button", name="Next").click()
    expect(pager).to_contain_text("51 to 100 of 1,000")
    page.get_by_label("Topic or group").fill("group-0")
    expect(pager).to_contain_text("1 to 50 of 250")
    page.get_by_label("First").select_option("name")
    first = page.locator("#lanes tbody tr").first
    expect(first).to_contain_text("orders/0 · orderly")
    expect(first).to_contain_text("1 pop: waiting-1")
    expect(first).to_contain_text("batch in flight")
    expect(first).to_contain_text("for 2 min")


def test_a_lane_leads_to_the_message_that_it_waits_for(visits: Visits) -> None:
    page = visits().enter()
    page.get_by_label("Topic or group").fill("group-1")
    page.get_by_label("First").select_option("name")
    expect(page.locator("#lanes tbody tr").first).to_contain_text("orders/0")
    page.locator("#lanes tbody a").first.click()
    expect(page.locator("#message")).to_be_visible()
    expect(page.get_by_label("Group", exact=True).first).to_have_value("group-1")
    expect(page.locator("#life")).to_contain_text("the group group-1 has never read orders/0")
    page.locator("#message [name=group]").fill("")
    page.get_by_role("button", name="Tell").click()
    expect(page.locator("#life")).to_contain_text("leased to slow until 13:00:31")
    expect(page.locator("#life .notice")).to_contain_text("delivered twice")


def test_it_works_by_keyboard_and_keeps_the_focus(visits: Visits) -> None:
    page = visits().enter()
    expect(page.locator("#lanes tbody tr:nth-child(50)")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert reached[:6] == ["Pause", "Lanes", "Queues", "Micro-batches", "Message", "Dead letters"]
    link = page.locator("#lanes tbody a").nth(3)
    link.focus()
    before = page.locator("#age").inner_text()
    expect(page.locator("#age")).not_to_have_text(before)
    expect(link).to_be_focused()
    page.locator("#views a", has_text="Dead letters").focus()
    page.keyboard.press("Enter")
    opener = page.locator("#letters tbody button").first
    expect(opener).to_be_visible()
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#letter")).to_be_visible()
    expect(page.locator("#letter-body")).to_contain_text('{"drink": "latte", "number": 0}')
    page.keyboard.press("Escape")
    expect(page.locator("#letter")).not_to_be_visible()
    expect(opener).to_be_focused()


def test_what_clients_write_is_shown_as_text(visits: Visits) -> None:
    page = visits().enter("#letters")
    expect(page.locator("#letters tbody tr").first).to_contain_text("no <b>milk</b>")
    page.locator("#letters tbody button").first.click()
    expect(page.locator("#letter-body")).to_contain_text("trace: <b>bold</b>")
    assert page.locator("main b, dialog b").count() == 0


def test_a_script_that_is_not_ours_does_not_run(visits: Visits) -> None:
    visit = visits()
    page = visit.enter()
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.isHacked = true";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.isHacked = true'>");
    }""")
    page.wait_for_timeout(200)
    assert page.evaluate("window.isHacked") is None
    assert any("Content Security Policy" in said for said in visit.complaints)


def test_the_token_is_asked_for_and_a_wrong_one_is_refused(visits: Visits) -> None:
    page = visits().enter(token="")
    expect(page.locator("#state")).to_have_text("locked")
    expect(page.locator("#main")).not_to_be_visible()
    field = page.get_by_label("Token of the API")
    expect(field).to_be_focused()
    field.fill("not-the-right-token-0123")
    page.keyboard.press("Enter")
    expect(page.locator("#access-why")).to_have_text("the token is wrong")
    field.fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#lanes tbody tr:nth-child(50)")).to_be_visible()
    assert TOKEN not in page.content()


def test_chosen_letters_are_redriven_after_a_question(visits: Visits, site: ApiSite) -> None:
    page = visits().enter("#letters")
    choose(page, 1)
    choose(page, 3)
    page.get_by_label("Why", exact=True).fill("the milk is back")
    page.get_by_role("button", name="Redrive the chosen (2)").click()
    expect(page.locator("#confirm")).to_contain_text("messages of 2 dead letters again")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#confirm")).not_to_be_visible()
    assert len(site.get("/api/v1/dead-letters?limit=500").json()["letters"]) == 60
    page.get_by_role("button", name="Redrive the chosen (2)").click()
    page.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.locator("#redrive-result")).to_contain_text("2 dead letters redriven")
    found = site.get("/api/v1/dead-letters?limit=500&handled=true").json()["letters"]
    handled = [letter["letter"] for letter in found if letter["handling"]]
    assert handled == ["0/1", "0/3"]
    assert found[1]["handling"]["comment"] == "the milk is back"
    page.get_by_label("also handled ones").check()
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#letters tbody tr").nth(1)).to_contain_text("redriven to the group")
    expect(page.locator("#letters tbody tr").nth(1).get_by_role("checkbox")).to_be_disabled()


def test_all_that_match_are_redriven(visits: Visits, site: ApiSite) -> None:
    site.give_up(b"other", group="till", why="closed")
    page = visits().enter("#letters")
    page.locator("#letters-filter [name=group]").fill("baristas")
    page.get_by_role("button", name="Look").click()
    page.get_by_role("button", name="Redrive all that match").click()
    expect(page.locator("#confirm")).to_contain_text("messages of 60 dead letters again")
    page.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.locator("#redrive-result")).to_contain_text("60 dead letters redriven")
    left = site.get("/api/v1/dead-letters").json()["letters"]
    assert {letter["group"] for letter in left} == {"till"}


def test_without_a_token_letters_stay_where_they_are(visits: Visits, tmp_path: Path) -> None:
    with ApiSite(tmp_path / "open", token="") as open_site:
        open_site.give_up(b"latte")
        page = visits(at=open_site).enter("#letters", token="")
        choose(page, 0)
        page.get_by_role("button", name="Redrive the chosen (1)").click()
        expect(page.locator("#redrive-result")).to_contain_text("set api_token or api_token_file")
        assert len(open_site.get("/api/v1/dead-letters").json()["letters"]) == 1


def test_it_says_what_keeps_the_job_from_work_and_that_it_is_away(visits: Visits, site: ApiSite) -> None:
    page = visits().enter()
    expect(page.locator("#state")).to_have_text("ready")
    site.answers.detach("Kafka does not answer")
    expect(page.locator("#notices")).to_contain_text("Kafka does not answer")
    expect(page.locator("#state")).to_have_text("not ready")
    expect(page.locator("#lanes .problem")).to_have_count(0)  # it is said once
    site.answers.attach(site.job)
    expect(page.locator("#state")).to_have_text("ready")
    page.context.set_offline(True)
    expect(page.locator("#state")).to_have_text("no answer")


def test_a_view_that_fails_says_so_within_itself_and_the_others_go_on(
    visits: Visits, site: ApiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = site.answers.answer

    def without_lanes(request: Request) -> Answer:
        if isinstance(request, LanesRequest):
            message = "lanes are not followed here"
            raise Invalid(message)
        return answer(request)

    monkeypatch.setattr(site.answers, "answer", without_lanes)
    page = visits().enter()
    expect(page.locator("#lanes .problem")).to_have_text("lanes are not followed here")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#figures")).to_contain_text("Operations per second")
    page.locator("#views a", has_text="Queues").click()
    expect(page.locator("#queues tbody tr:nth-child(50)")).to_be_visible()
    expect(page.locator("#queues .problem")).to_have_count(0)
    monkeypatch.setattr(site.answers, "answer", answer)
    page.locator("#views a", has_text="Lanes").click()
    expect(page.locator("#lanes tbody tr:nth-child(50)")).to_be_visible()
    expect(page.locator("#lanes .problem")).to_have_count(0)


def test_on_a_cluster_it_begins_with_what_its_driver_follows(
    visits: Visits, site: ApiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = msgspec.structs.replace(site.job.report(), cluster=ClusterReport(shards=[]), totals=None)
    session: Any = None
    watch: Any = SimpleNamespace(
        report=lambda: report,
        progress=SimpleNamespace(points=site.answers._history.points, operations_per_s=lambda: 7.0),
    )
    driver = ClusterAnswers(session, "/checkpoint", site.job.connection, watch)
    monkeypatch.setattr(site.answers, "answer", driver.answer)
    page = visits().enter()
    expect(page.locator("#micro-batches .curve").first).to_be_visible()
    expect(page.locator("#views a[aria-current]")).to_have_text("Micro-batches")
    expect(page.locator("#state")).to_have_text("ready")
    page.locator("#views a", has_text="Lanes").click()
    expect(page.locator("#lanes .problem")).to_contain_text("popstream status --checkpoint /checkpoint")
    expect(page.locator("#state")).to_have_text("ready")


class LateAnswers:
    """Holds back the answers to some requests of a page."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page = page
        self._held: list[Route] = []
        page.route(re.compile(pattern), self._hold)

    def _hold(self, route: Route) -> None:
        self._held.append(route)

    def come(self) -> None:
        """Wait until a request is held, and let the page have its answer."""
        eventually(lambda: self._page.evaluate("1") and self._held)
        for route in self._held:
            with self._page.expect_response(route.request.url) as found:
                route.continue_()
            found.value.finished()
        # The page takes an answer in tasks that were queued by now.
        self._page.evaluate("new Promise((done) => setTimeout(() => setTimeout(done)))")


def test_a_letter_that_comes_late_is_not_shown_as_another_one(visits: Visits) -> None:
    page = visits().enter("#letters")
    late = LateAnswers(page, "dead-letter[?]letter=0%2F0$")
    opener, body = page.locator("#letters tbody button"), page.locator("#letter-body")
    opener.nth(0).click()
    expect(body).to_have_text("reading it")
    page.keyboard.press("Escape")
    opener.nth(1).click()
    expect(body).to_contain_text('"number": 1}')
    late.come()
    expect(page.locator("#letter-title")).to_have_text("Dead letter 0/1")
    expect(body).to_contain_text('"number": 1}')


def test_letters_of_an_earlier_filter_that_come_late_are_not_shown(visits: Visits, site: ApiSite) -> None:
    site.give_up(b"other", group="till", why="closed")
    page = visits().enter("#letters")
    expect(page.locator("#letters tbody tr:nth-child(50)")).to_be_visible()
    late = LateAnswers(page, "dead-letters[?]group=baristas")
    group, first = page.locator("#letters-filter [name=group]"), page.locator("#letters tbody tr").first
    for name in ("baristas", "till"):
        group.fill(name)
        page.get_by_role("button", name="Look").click()
    expect(first).to_contain_text("till")
    late.come()
    expect(first).to_contain_text("till")


def test_the_life_of_an_earlier_message_that_comes_late_is_not_told(visits: Visits) -> None:
    page = visits().enter("#lanes")
    late = LateAnswers(page, "message[?].*queue_offset=0&")
    page.evaluate("location.hash = '#message?topic=orders&queue_id=0&queue_offset=0'")
    expect(page.locator("#life")).to_have_text("reading the tables")
    page.locator("#message [name=queue_offset]").fill("7")
    page.get_by_role("button", name="Tell").click()
    expect(page.locator("#life h3").first).to_have_text("orders/0/7")
    late.come()
    expect(page.locator("#life h3").first).to_have_text("orders/0/7")


def test_lanes_of_an_earlier_search_that_come_late_are_not_shown(visits: Visits) -> None:
    page = visits().enter()
    expect(page.locator("#lanes tbody tr:nth-child(50)")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    late = LateAnswers(page, "lanes[?]search=group-0")
    search, pager = page.get_by_label("Topic or group"), page.locator("#lanes .pager")
    with page.expect_request(re.compile("lanes[?]search=group-0")):
        search.fill("group-0")
    search.fill("group-1")
    expect(page.locator("#lanes tbody tr").first).to_contain_text("group-1")
    late.come()
    expect(page.locator("#lanes tbody tr").first).to_contain_text("group-1")
    expect(pager).to_contain_text("1 to 50 of 250")


def test_a_pause_asks_nothing_more(visits: Visits) -> None:
    page = visits().enter()
    expect(page.locator("#lanes tbody tr:nth-child(50)")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2_500)
    assert asked == []
