"""Claim: the API answers as the control socket does, to who has the token, and takes nothing else.

Method: the real server over a state that the kernel has made; letters of a job in memory.
"""

from __future__ import annotations

import threading
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio.to_thread
import jsonschema
import pytest

from checkpoints.snapshot_store import Snapshot
from connectors.delta.duckdb_tables import DuckDbTables
from pipelines.control import pages
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Policies, PoliciesRequest, SnapshotRequest, Status, StatusRequest
from pipelines.explain import message_rows
from pipelines.http_api.api_app import API_THREADS
from pipelines.http_api.endpoint import WAITING_MAX, OneAtATime
from pipelines.http_api.message_life import MEMORY
from pipelines.http_api.metrics_app import PROBE_THREADS
from pipelines.http_api.thread_share import STARLETTE_THREADS
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Declare
from tests.support.in_process.api_site import ADMIN_KEY, TIMEOUT_S, TOKEN, ApiSite
from tests.support.threads import eventually, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from connectors.delta.snapshot import Snapshot as TableSnapshot


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ApiSite]:
    with ApiSite(tmp_path / "job") as found:
        found.job.fill(40)
        found.job.look()
        yield found


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[ApiSite]:
    """One without a token."""
    with ApiSite(tmp_path / "job", token="") as found:
        yield found


def file_of(site: ApiSite, token: str = TOKEN) -> JobFile:
    return JobFile(pid=0, bootstrap_servers="", prefix="", folder="", address=site.url, token=token, started_at=0.0)


def test_a_command_gets_the_answer_of_the_control_socket(site: ApiSite) -> None:
    request = StatusRequest(group="group-0", topic="orders", limit=3)
    status = ask(file_of(site), request, Status)
    direct = site.answers.answer(request)
    assert isinstance(direct, Status)
    assert len(status.queues) == 3
    assert status.queues == direct.queues
    assert (status.owner, status.is_cut) == (direct.owner, True)
    assert status.kernel_form == "compiled"


def test_a_command_gets_all_lanes_and_rules_by_pages(site: ApiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends within a queue of four lanes."""
    site.job.do(Declare(v=1, topic="empty", queue_id=0, topic_id="t"))
    monkeypatch.setattr(pages, "PAGE_LANES", 7)
    for request in (
        StatusRequest(limit=1_000_000),
        StatusRequest(limit=9),
        StatusRequest(limit=20, skip=3),
        StatusRequest(group="group-1", limit=8),
    ):
        status, direct = ask(file_of(site), request, Status), site.answers.answer(request)
        assert isinstance(direct, Status)
        assert (status.queues, status.is_cut) == (direct.queues, direct.is_cut), request
    for asked in (PoliciesRequest(), PoliciesRequest(topic="orders", group="group-1"), PoliciesRequest(limit=15)):
        assert ask(file_of(site), asked, Policies) == site.answers.answer(asked), asked
    assert len(ask(file_of(site), PoliciesRequest(), Policies).policies) == 51


def test_a_page_says_whether_there_is_more(site: ApiSite) -> None:
    first = site.get("/api/v1/policies?limit=30").json()
    rest = site.get("/api/v1/policies?limit=30&skip=30").json()
    assert [(len(page["policies"]), page["is_cut"]) for page in (first, rest)] == [(30, True), (20, False)]
    first = site.get("/api/v1/status?limit=30").json()
    rest = site.get("/api/v1/status?limit=30&skip=30").json()
    assert [sum(len(queue["lanes"]) for queue in page["queues"]) for page in (first, rest)] == [30, 10]
    assert (first["is_cut"], rest["is_cut"]) == (True, False)


def test_a_message_takes_a_bounded_memory_also_where_there_is_none(
    site: ApiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.job.write_tables()
    asked: list[str] = []

    class Noted(DuckDbTables):
        def __init__(self, snapshots: Sequence[TableSnapshot], *, memory: str = "unbounded") -> None:
            asked.append(memory)
            super().__init__(snapshots, memory=memory)

    monkeypatch.setattr(message_rows, "DuckDbTables", Noted)
    assert site.get("/api/v1/message?topic=orders&queue_id=0&queue_offset=99").status == 400
    assert asked == [MEMORY, MEMORY]


def test_without_the_token_nothing_is_told(site: ApiSite) -> None:
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "é"):
        reply = site.get("/api/v1/status", headers={"Authorization": f"Bearer {token}"} if token else None, token="")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), token
        assert b"orders" not in reply.content
    assert site.get("/metrics", token="").status == 401
    assert site.get("/api/v1/status?token=" + TOKEN, token="").status == 401
    assert site.get("/api/v1/status").status == 200
    with pytest.raises(Invalid, match=r"the token is wrong; --api-token-file names the file"):
        ask(file_of(site, "wrong"), StatusRequest(), Status)


def test_page_probes_and_description_take_no_token(site: ApiSite) -> None:
    site.job.not_ready_reasons = ["Kafka is away"]
    found = {
        path: site.get(path, token="") for path in ("/", "/page/page.js", "/page/popstream.css", "/live", "/ready")
    }
    assert [reply.status for reply in found.values()] == [200, 200, 200, 200, 503]
    assert b"`kernel ${kernel}`" in found["/page/page.js"].content
    assert b"kernel_form: kernel" in found["/page/page.js"].content
    assert found["/ready"].content == b"Kafka is away\n"
    assert site.get("/api/v1/openapi.json", token="").status == 200


def test_without_a_token_it_is_for_this_machine_by_its_name_and_for_looking(open_site: ApiSite) -> None:
    assert open_site.get("/api/v1/status").status == 200
    reply = open_site.get("/api/v1/status", headers={"Host": "rebound.example"})
    assert (reply.status, "for localhost" in reply.json()["error"]) == (403, True)
    for reply in (open_site.post("/api/v1/redrive", {}), open_site.get("/api/v1/dead-letter?letter=0/0")):
        assert (reply.status, "set api_token" in reply.json()["error"]) == (403, True)


def test_every_answer_forbids_what_is_not_ours(site: ApiSite) -> None:
    for path in ("/", "/page/page.js", "/api/v1/status", "/nothing", "/api/v1/lanes?limit=x"):
        headers = site.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert site.get("/api/v1/status").headers["cache-control"] == "no-store"


def test_lanes_come_by_the_page_in_the_order_asked_for(site: ApiSite) -> None:
    pages = [site.get(f"/api/v1/lanes?order=lag&limit=15&skip={skip}").json() for skip in (0, 15, 30, 45)]
    assert [len(page["lanes"]) for page in pages] == [15, 15, 10, 0]
    assert {page["total"] for page in pages} == {40}
    lanes = [lane for page in pages for lane in page["lanes"]]
    assert len({(lane["queue_id"], lane["group"]) for lane in lanes}) == 40
    lags = [lane["lag"] for lane in lanes]
    assert lags == sorted(lags, reverse=True)
    assert lags[0] > lags[-1]
    in_flight = [lane["in_flight"] for lane in site.get("/api/v1/lanes?order=in_flight").json()["lanes"]]
    assert in_flight == sorted(in_flight, reverse=True)
    names = [(lane["queue_id"], lane["group"]) for lane in site.get("/api/v1/lanes?order=name").json()["lanes"]]
    assert names == sorted(names)
    found = site.get("/api/v1/lanes?search=group-3").json()
    assert (found["total"], {lane["group"] for lane in found["lanes"]}) == (10, {"group-3"})


def test_a_lane_says_who_waits_and_what_holds_it_since_when(site: ApiSite) -> None:
    lanes = {
        lane["group"]: lane
        for lane in site.get("/api/v1/lanes?order=name&limit=500").json()["lanes"]
        if lane["queue_id"] == 0
    }
    orderly, limited, other = lanes["group-0"], lanes["group-1"], lanes["group-2"]
    assert (orderly["held_by"], orderly["waiting"], orderly["waiting_clients"]) == ("batch", 1, ["waiting-1"])
    assert orderly["held_since_ms"] == site.job.now_ms - 120_000
    assert orderly["held_until_ms"] == orderly["held_since_ms"] + 600_000
    assert (limited["held_by"], limited["held_since_ms"], other["held_by"]) == ("in_flight_max", None, "")
    assert other["in_flight"] == 10
    # What was there before the job began is as old as the last record of its queue.
    assert other["oldest_at_ms"] == site.job.now_ms - 60_000


def test_queues_have_their_positions(site: ApiSite) -> None:
    page = site.get("/api/v1/queues?skip=2&limit=3").json()
    assert page["total"] == 10
    assert [(row["queue_id"], row["commit_position"], row["lanes"]) for row in page["queues"]] == [
        (2, 102, 4),
        (3, 103, 4),
        (4, 104, 4),
    ]
    assert site.get("/api/v1/queues?search=nothing").json() == {"queues": [], "total": 0}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/v1/lanes?limit=501", "<= 500"),
        ("/api/v1/status?limit=1001", "<= 1000"),
        ("/api/v1/status?limit=-1", ">= 0"),
        ("/api/v1/policies?limit=1001", "<= 1000"),
        ("/api/v1/policies?skip=-1", ">= 0"),
        ("/api/v1/queue?topic=orders&limit=-1", ">= 1"),
        ("/api/v1/queue?topic=orders&limit=1001", "<= 1000"),
        ("/api/v1/lanes?limit=x", "limit"),
        ("/api/v1/lanes?order=size", "Invalid enum value"),
        ("/api/v1/lanes?colour=red", "no parameter colour, only search, order, skip, limit"),
        ("/api/v1/lanes?skip=1&skip=2", "skip is given twice"),
        ("/api/v1/lanes?token=x", "no parameter token"),
        ("/api/v1/queue", "missing required field `topic`"),
        ("/api/v1/queue?topic=orders", "it has no message_topics"),
        ("/api/v1/message?topic=orders&queue_id=0&queue_offset=-1", ">= 0"),
        ("/api/v1/message?topic=orders&queue_id=0&queue_offset=0", "there are no tables"),
        ("/api/v1/dead-letter?letter=..", "is not the place of a dead letter"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(site: ApiSite, path: str, why: str) -> None:
    reply = site.get(path)
    assert (reply.status, why in reply.json()["error"]) == (400, True), reply.content


def test_unknown_paths_and_methods_are_named(site: ApiSite) -> None:
    assert site.get("/api/v1/laens").json()["error"].startswith("there is no GET /api/v1/laens")
    assert site.post("/api/v1/status", {}).status == 404
    assert site.get("/page/../../etc/passwd").status == 404
    assert site.post("/api/v1/redrive", b"{").status == 400
    assert site.post("/api/v1/redrive", {"to": "everybody"}).status == 400
    assert site.post("/api/v1/redrive", b"x" * 300_000).status == 413


def test_what_only_the_machine_of_the_job_can_do_is_not_asked(site: ApiSite) -> None:
    with pytest.raises(Invalid, match="the API has no snapshot: run the command on the machine of the job"):
        ask(file_of(site), SnapshotRequest(), Snapshot)


def test_between_two_jobs_the_api_says_why(site: ApiSite) -> None:
    site.answers.detach("Kafka is away")
    assert ask(file_of(site), StatusRequest(), Status).not_ready_reasons == ["Kafka is away"]
    reply = site.get("/api/v1/lanes")
    assert (reply.status, reply.json()["error"]) == (503, "Kafka is away")
    site.answers.attach(site.job)
    assert site.get("/api/v1/lanes").status == 200


def test_an_api_that_is_not_there_or_another_server(site: ApiSite) -> None:
    nowhere = JobFile(
        pid=0, bootstrap_servers="", prefix="", folder="", address="http://127.0.0.1:1", token="", started_at=0.0
    )
    with pytest.raises(Unavailable, match=r"the API does not answer at http://127.0.0.1:1"):
        ask(nowhere, StatusRequest(), Status)
    with pytest.raises(Invalid, match=r"not as the API of a job does|there is no GET"):
        ask(JobFile(**{**vars_of(file_of(site)), "address": site.url + "/elsewhere"}), StatusRequest(), Status)
    with pytest.raises(Invalid, match="write it as http://host:9465"):
        ask(JobFile(**{**vars_of(nowhere), "address": "ftp://host"}), StatusRequest(), Status)


def vars_of(job: JobFile) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def test_a_message_is_told_in_the_zone_of_the_reader(site: ApiSite) -> None:
    site.job.write_tables()
    path = "/api/v1/message?topic=orders&queue_id=0&queue_offset=0"
    life = site.get(path + "&zone=" + quote("Asia/Tokyo")).json()
    assert (life["story"]["queue_offset"], life["zone"]) == (0, "Asia/Tokyo")
    (group,) = life["told"]["groups"]
    assert (group["state"], group["group"]) == ("done", "g")
    assert group["events"][0]["text"].startswith("leased to slow until 21:00:31")
    assert site.get(path + "&zone=../../etc").json()["zone"] == "UTC"
    assert "has never read" in site.get(path + "&group=nobody").json()["error"]


def test_dead_letters_come_by_the_page_without_their_messages(site: ApiSite) -> None:
    site.give_up(*(b"latte %d" % number for number in range(7)))
    first = site.get("/api/v1/dead-letters?limit=5").json()
    rest = site.get("/api/v1/dead-letters?limit=5&skip=5").json()
    assert [letter["letter"] for letter in first["letters"] + rest["letters"]] == [f"0/{number}" for number in range(7)]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert "latte" not in str(first)
    assert site.get("/api/v1/dead-letters?group=till").json() == {"letters": [], "has_more": False}
    whole = site.get("/api/v1/dead-letter?letter=0/3").json()
    assert (whole["value"], dict(whole["headers"])["trace"]) == ("latte 3", "<b>bold</b>")


def test_letters_are_redriven_once_by_who_has_the_token(site: ApiSite) -> None:
    site.give_up(b"a", b"b", b"c")
    assert site.post("/api/v1/redrive", {"letters": ["0/1"]}, token="").status == 401
    planned = site.post("/api/v1/redrive", {"dry_run": True}).json()
    assert (planned["letters"], len(site.get("/api/v1/dead-letters").json()["letters"])) == (3, 3)
    done = site.post("/api/v1/redrive", {"letters": ["0/1"], "comment": "milk is back"}).json()
    assert (done["letters"], done["messages"], done["left"]) == (1, 1, [])
    assert site.post("/api/v1/redrive", {"letters": ["0/1"]}).json()["letters"] == 0
    handled = site.get("/api/v1/dead-letters?handled=true").json()["letters"][1]["handling"]
    assert (handled["comment"], handled["by"]) == ("milk is back", "the API, from 127.0.0.1")
    assert [letter["letter"] for letter in site.get("/api/v1/dead-letters").json()["letters"]] == ["0/0", "0/2"]


def test_a_redrive_signs_with_the_admin_key_of_the_job(site: ApiSite) -> None:
    site.give_up(b"a")
    assert site.post("/api/v1/redrive", {}).json()["letters"] == 1
    assert site.letter_options["admin_key"] == ADMIN_KEY


def test_answers_are_as_the_document_describes_them(site: ApiSite) -> None:
    site.give_up(b"latte")
    site.job.write_tables()
    document = site.get("/api/v1/openapi.json").json()
    asked = {
        "/api/v1/status": "",
        "/api/v1/policies": "",
        "/api/v1/lanes": "",
        "/api/v1/queues": "",
        "/api/v1/rates": "",
        "/api/v1/message": "?topic=orders&queue_id=0&queue_offset=0",
        "/api/v1/dead-letters": "",
        "/api/v1/dead-letter": "?letter=0/0",
    }
    assert set(asked) | {"/api/v1/queue", "/api/v1/redrive"} == set(document["paths"])
    for path, query in asked.items():
        operation = document["paths"][path]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(
            site.get(path + query).json(),
            {**schema, "components": document["components"]},
            cls=jsonschema.Draft202012Validator,
        )
        given = {part.partition("=")[0] for part in query.removeprefix("?").split("&") if part}
        parameters = {parameter["name"]: parameter for parameter in operation["parameters"]}
        assert given <= set(parameters)
        assert all(parameter["description"] for parameter in parameters.values() if path != "/api/v1/queue"), path
    limits = {
        path.rpartition("/")[2]: parameter["schema"]["maximum"]
        for path, methods in document["paths"].items()
        for parameter in methods.get("get", {}).get("parameters", [])
        if parameter["name"] == "limit"
    }
    assert limits == {"status": 1000, "policies": 1000, "queue": 1000, "lanes": 500, "queues": 500, "dead-letters": 500}
    body = document["paths"]["/api/v1/redrive"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"to": "nobody"}, {**body, "components": document["components"]})


def test_a_costly_request_waits_for_the_one_before_and_gives_up() -> None:
    turn = OneAtATime("messages", wait_s=0)
    with turn, pytest.raises(Unavailable, match="another request about messages is in progress: ask"), turn:
        pytest.fail("two are in")
    with turn:
        pass


def test_of_many_costly_requests_a_few_wait_and_the_others_are_refused_at_once() -> None:
    turn = OneAtATime("messages", wait_s=TIMEOUT_S)
    let_go = threading.Event()
    entered: list[int] = []
    refused: list[str] = []

    def enter() -> None:
        try:
            with turn:
                entered.append(1)
                let_go.wait(TIMEOUT_S)
        except Unavailable as error:
            refused.append(str(error))

    threads = [in_thread(enter) for _ in range(10)]
    eventually(lambda: len(refused) == 10 - 1 - WAITING_MAX)
    assert set(refused) == {"another request about messages is in progress, and 2 others wait: ask again later"}
    let_go.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert len(entered) == 1 + WAITING_MAX
    with turn:
        pass


def test_slow_requests_keep_neither_probes_nor_metrics_waiting_on_either_port(
    site: ApiSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    slow: list[int] = []
    statuses: list[int] = []

    def answer(_: object) -> Policies:
        slow.append(1)
        let_go.wait(TIMEOUT_S)
        return Policies(policies=[])

    monkeypatch.setattr(site.answers, "answer", answer)
    (of_api, _) = site._server._servers
    asking = [in_thread(lambda: statuses.append(site.get("/api/v1/policies").status)) for _ in range(45)]
    try:
        eventually(lambda: len(of_api.server_state.tasks) == 45 and len(slow) == API_THREADS)
        for path in ("/live", "/ready", "/metrics", "/"):
            assert site.get(path).status == 200, path
        for path in ("/live", "/ready", "/metrics"):
            with urllib.request.urlopen(site.metrics_url + path, timeout=TIMEOUT_S) as reply:  # noqa: S310 - it is HTTP
                assert reply.status == 200, path
        assert statuses == [], "nobody has waited for the slow ones"
    finally:
        let_go.set()
    for thread in asking:
        thread.join(TIMEOUT_S)
    assert statuses == [200] * 45


def test_the_shares_of_all_ports_fit_into_the_threads_that_there_are() -> None:
    limiter = anyio.run(_limiter)
    assert API_THREADS + 2 * 2 * PROBE_THREADS <= limiter == STARLETTE_THREADS


async def _limiter() -> float:
    return anyio.to_thread.current_default_thread_limiter().total_tokens
