"""Claim: who has the token, and may read the tables, does from another machine what the job's user does on its own.

Method: a real job, with its tables in a folder of their own; commands that know its API and its tables, and no folder.
"""

from __future__ import annotations

import os
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from connectors.local_servers.loopback import free_port
from tests.support.processes.job_process import POPSTREAM, ROOT
from tests.support.processes.up_process import COMMAND_TIMEOUT_S, Up, environment, run
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CHECK_TIMEOUT_S = 550.0
TOKEN = "a-token-of-the-tests-0123456789"  # noqa: S105 - of no other use


class Site(NamedTuple):
    """A running job, the address of its API, and what others have of it."""

    up: Up
    url: str
    token_file: Path
    tables: Path
    replica: str
    elsewhere: Path

    def run(self, *arguments: str, token: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as on another machine: in an empty folder, with the API."""
        access = ["--api", self.url, *(["--api-token-file", str(self.token_file)] if token else [])]
        return self.bare(*arguments, *access)

    def get(self, path: str) -> Any:
        """Ask the API."""
        request = urllib.request.Request(  # noqa: S310 - it is HTTP
            f"{self.url}/api/v1/{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return msgspec.json.decode(answer.read())

    def bare(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a command in an empty folder."""
        return subprocess.run(
            [POPSTREAM, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**environment(), "POPSTREAM_VAR": str(ROOT / "var"), "TZ": "UTC"},
            cwd=self.elsewhere,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("from_elsewhere")
    port = free_port()  # of a range from which no outgoing connection gets one meanwhile
    token_file, tables, elsewhere = root / "token", root / "shared" / "tables", root / "elsewhere"
    token_file.write_text(f"{TOKEN}\n")
    elsewhere.mkdir()
    settings = root / "settings.toml"
    replica = f"file://{root}/replica"
    settings.write_text(
        f'tables = "{tables}"\ntables_group_readable = true\napi_token_file = "{token_file}"\n'
        f'tables_replica = "{replica}"\n'
    )
    options = ["--settings", str(settings), "--api-port", str(port), "--flush-interval", "500ms"]
    up = Up(root / "job", *options)
    try:
        up.wait_for("ready after")
        yield Site(up, f"http://127.0.0.1:{port}", token_file, tables, replica, elsewhere)
    finally:
        up.end()


@pytest.fixture(scope="module", autouse=True)
def sold(site: Site) -> None:
    """Three messages, of which a group has taken all and rejected none."""
    assert run(site.up, "send", "orders", "--create", "1", text="one\ntwo\nthree\n").returncode == 0
    consumed = run(site.up, "consume", "orders", "--group", "billing", "--new-group", "--max", "2")
    assert consumed.returncode == 0, consumed.stderr


def test_it_says_where_the_page_is(site: Site) -> None:
    assert f"{site.url}/" in "".join(site.up.lines)
    with urllib.request.urlopen(f"{site.url}/", timeout=30) as page:  # noqa: S310 - it is HTTP
        assert b"/page/page.js" in page.read()


def test_status_queues_and_groups_are_those_of_the_job(site: Site) -> None:
    status = msgspec.json.decode(site.run("status", "--json").stdout)
    own = msgspec.json.decode(run(site.up, "status", "--json").stdout)
    assert (status["running"], status["owner"], status["queues"]) == (True, own["owner"], own["queues"])
    assert site.run("status", "--ready").stderr == "popstream: ready\n"
    (queue,) = msgspec.json.decode(site.run("queue", "orders", "--json").stdout)
    assert (queue["topic"], queue["end_offset"]) == ("orders", 3)
    (group,) = msgspec.json.decode(site.run("group", "list", "--json").stdout)
    assert (group["group"], group["lag"]) == ("billing", 1)


def test_the_page_gets_lanes_queues_rates_and_the_life_of_a_message(site: Site) -> None:
    wait_for(lambda: site.get("lanes")["total"] == 1)  # figures about lanes are some seconds old
    (lane,) = site.get("lanes")["lanes"]
    assert (lane["topic"], lane["group"], lane["lag"], lane["in_flight"]) == ("orders", "billing", 1, 0)
    (queue,) = site.get("queues")["queues"]
    assert (queue["commit_position"], queue["built_to"], queue["messages"], queue["lanes"]) == (3, 3, 3, 1)
    wait_for(lambda: any(point["micro_batches"] for point in site.get("rates")))
    steps = {step for point in site.get("rates") for step in point["step_ms"]}
    assert {"decode", "decide", "write", "publish"} <= steps
    wait_for(lambda: site.get("message?topic=orders&queue_id=0&queue_offset=0")["told"]["groups"])
    (group,) = site.get("message?topic=orders&queue_id=0&queue_offset=0")["told"]["groups"]
    assert (group["group"], group["state"]) == ("billing", "done")
    assert site.get("dead-letters") == {"letters": [], "has_more": False}


def test_groups_are_managed_through_the_api_and_the_kafka_that_it_names(site: Site) -> None:
    done = site.run("group", "policy", "billing", "orders", "--max-attempts", "5")
    assert (done.returncode, done.stderr) == (0, "popstream: the policy of billing holds in 1 queue of orders\n")
    (shown,) = msgspec.json.decode(site.run("group", "policy", "billing", "orders", "--json").stdout)
    assert (shown["group"], shown["max_attempts"]) == ("billing", 5)


def test_dead_letters_are_found_by_the_api(site: Site) -> None:
    assert site.run("dead", "list").stdout == "no dead letters to show\n"


def test_without_the_token_one_line_says_what_to_do(site: Site) -> None:
    for arguments in (["status"], ["queue", "orders"], ["group", "list"], ["dead", "list"]):
        done = site.run(*arguments, token=False)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        wanted = "a token is required: Authorization: Bearer ...; --api-token-file names the file with the token"
        assert done.stderr == f"popstream: {site.url}: {wanted}\n"


def test_tables_are_read_where_they_are(site: Site) -> None:
    def counted() -> str:
        done = site.bare(
            "query",
            "select count(*) as n from deliveries_by_message where step = 'acked'",
            "--csv",
            "--tables",
            str(site.tables),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    wait_for(lambda: counted() == "n\n2\n")
    told = site.run("why", "orders/0/0", "--tables", str(site.tables))
    assert (told.returncode, "acked by" in told.stdout) == (0, True), told.stderr
    held = site.run("why", "--lane", "billing", "orders/0", "--tables", str(site.tables))
    assert held.stdout.startswith("orders/0, group billing: not held"), held.stderr
    nowhere = site.bare("query", "from operations", "--tables", str(site.elsewhere))
    assert (nowhere.returncode, "there are no tables in" in nowhere.stderr) == (2, True)


def test_the_replica_has_what_the_tables_have(site: Site) -> None:
    def counted() -> str:
        sql = "select count(*) as n from deliveries_by_message where step = 'acked'"
        return site.bare("query", sql, "--csv", "--tables", site.replica).stdout

    wait_for(lambda: counted() == "n\n2\n")
    told = site.run("why", "orders/0/0", "--tables", site.replica)
    assert (told.returncode, "acked by" in told.stdout) == (0, True), told.stderr
    assert msgspec.json.decode(site.run("status", "--json").stdout)["replica_failure"] is None


def test_the_group_may_read_the_tables_and_nobody_else_and_nothing_else(site: Site) -> None:
    assert not (site.up.folder / "delta").exists()
    assert stat.S_IMODE(site.up.folder.stat().st_mode) == 0o700
    found = [Path(folder, name) for folder, _, names in os.walk(site.tables) for name in ["", *names]]
    assert len(found) > 30
    for path in found:
        mode = path.stat().st_mode
        wanted = stat.S_IRGRP | (stat.S_IXGRP if path.is_dir() else 0)
        assert mode & wanted == wanted, path
        assert not mode & (stat.S_IWGRP | stat.S_IRWXO), path
    assert stat.S_IMODE((site.up.folder / "job.json").stat().st_mode) == 0o600


@pytest.mark.long
def test_the_tables_are_checked_where_they_are(site: Site) -> None:
    done = site.bare("check", "--tables", str(site.tables), "--json", timeout_s=CHECK_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert report["expectations_failed"] == 0
    assert len(report["outcomes"]) > 10
