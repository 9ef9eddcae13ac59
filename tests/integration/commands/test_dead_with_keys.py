"""Claim: where a job has admin keys, nobody redrives without one, to a topic that the job builds or not.

Method: a job with keys, as users run it, its commands with a key and without one, and its API, which has the key.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from connectors.local_servers.loopback import free_port
from popstream import Consumer
from tests.support.processes.up_process import COMMAND_TIMEOUT_S, Up, run, status_of
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TOKEN = "a-token-of-the-tests-0123456789"  # noqa: S105 - of no other use
UNSIGNED_REDRIVE = "was refused: NO_PERMISSION (16): NOT_SIGNED: redrive needs the signature of an admin key"
UNSIGNED = "declare on bills/0 was refused: NO_PERMISSION (16): NOT_SIGNED: declare needs the signature of an admin key"


class Site(NamedTuple):
    """A running job that builds the topics `orders*`, and the files of two admin keys: its own, and another one."""

    up: Up
    url: str
    settings: Path
    key: Path
    other_key: Path

    @property
    def servers(self) -> str:
        return str(status_of(self.up)["bootstrap_servers"])

    def redrive(self, *options: str) -> tuple[int, str]:
        """The exit code of the command, and the last line that it said."""
        done = run(self.up, "dead", "redrive", *options)
        return done.returncode, done.stderr.splitlines()[-1]

    def redrive_by_api(self, **request: object) -> dict[str, Any]:
        """The report of the API."""
        asked = urllib.request.Request(  # noqa: S310 - it is HTTP
            f"{self.url}/api/v1/redrive",
            data=msgspec.json.encode(request),
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(asked, timeout=COMMAND_TIMEOUT_S) as answer:  # noqa: S310
            return msgspec.json.decode(answer.read(), type=dict[str, Any])

    def letters(self) -> list[str]:
        """Those that nobody has handled."""
        done = run(self.up, "dead", "list", "--json")
        assert done.returncode == 0, done.stderr
        return [letter["letter"] for letter in msgspec.json.decode(done.stdout)]

    def consumed(self, topic: str = "bills") -> list[str]:
        """What the group that gave up gets of the topic now."""
        done = run(self.up, "consume", topic, "--group", "baristas", "--json")
        assert done.returncode == 0, done.stderr
        return sorted(msgspec.json.decode(line)["value"] for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("dead_with_keys")
    port = free_port()
    secrets = {"2030.key": "a secret of these tests", "other.key": "a secret of somebody else"}
    for name, secret in secrets.items():
        (root / name).write_text(f"2030:{secret}\n")
    settings = root / "settings.toml"
    settings.write_text(f'api_token = "{TOKEN}"\n[admin_keys]\n2030 = "{secrets["2030.key"]}"\n')
    options = ["--settings", str(settings), "--api-port", str(port), "--message-topics", "orders*"]
    up = Up(root / "job", *options)
    try:
        up.wait_for("ready after")
        yield Site(up, f"http://127.0.0.1:{port}", settings, root / "2030.key", root / "other.key")
    finally:
        up.end()


def give_up(site: Site, *values: str, topic: str = "bills") -> None:
    """Send messages to a topic, by default one that the job does not build, and let a group reject them."""
    lines = "".join(f"{value}\n" for value in values)
    sent = run(site.up, "send", topic, "--create", "1", "--admin-key-file", str(site.key), text=lines)
    assert sent.returncode == 0, sent.stderr
    with Consumer(site.servers, group="baristas") as consumer:
        rejected = 0
        while rejected < len(values):
            messages = consumer.pop(topic, 0, 100, 60_000, 1_000).messages
            rejected += len(messages)
            consumer.reject(messages, "no milk")
    wait_for(lambda: len(site.letters()) == len(values))


def test_a_topic_that_the_job_builds_needs_the_key_as_well(site: Site) -> None:
    """The first one: a later one would begin with what an earlier redrive has sent to the other topic."""
    give_up(site, "f", "g", topic="orders")
    code, said = site.redrive()
    assert (code, UNSIGNED_REDRIVE in said, "by --admin-key-file" in said) == (2, True, True), said
    assert site.consumed("orders") == []
    assert len(site.letters()) == 2
    assert site.redrive("--admin-key-file", str(site.key))[0] == 0
    assert site.consumed("orders") == ["f", "g"]
    sql = "SELECT DISTINCT admin_key FROM operations WHERE kind = 'redrive' AND topic = 'orders'"
    wait_for(lambda: run(site.up, "query", sql, "--csv").stdout.split() == ["admin_key", "2030"], look_each_s=1)


def test_without_the_key_nothing_is_sent_and_the_api_and_the_command_with_it_send(site: Site) -> None:
    give_up(site, "a", "b", "c")
    code, said = site.redrive()
    assert (code, said.startswith(f"popstream: {UNSIGNED}"), "by --admin-key-file" in said) == (2, True, True), said
    code, said = site.redrive("--admin-key-file", str(site.other_key))
    assert (code, "NO_PERMISSION (16): BAD_SIGNATURE" in said) == (2, True), said
    first, *rest = site.letters()
    assert len(rest) == 2
    assert site.consumed() == []
    report = site.redrive_by_api(letters=[first])
    assert (report["letters"], report["messages"], report["left"]) == (1, 1, [])
    assert site.letters() == rest
    done = site.redrive("--admin-key-file", str(site.key))
    assert done == (0, "popstream: 2 dead letters redriven to their groups, as 2 messages")
    assert site.consumed() == ["a", "b", "c"]


def test_what_a_killed_redrive_has_sent_is_dispatched_by_the_next_one_with_the_key(site: Site) -> None:
    give_up(site, "d", "e")
    command = [sys.executable, "-m", "tests.support.processes.killed_redrive"]
    killed = subprocess.run(
        [*command, site.servers, "popstream", "committed", "1", str(site.key)], timeout=COMMAND_TIMEOUT_S, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert site.letters() == []
    code, said = site.redrive()
    assert (code, UNSIGNED in said) == (2, True), said
    assert site.consumed() == []
    assert site.redrive_by_api()["letters"] == 0
    assert site.consumed() == ["d", "e"]


def test_the_log_is_not_decided_again_without_the_keys(site: Site) -> None:
    """Which would find differences where nothing is damaged."""
    without = run(site.up, "verify")
    assert (without.returncode, without.stdout) == (2, ""), without.stderr
    assert "has keys of operations, which these settings lack: name its file with --settings" in without.stderr
    with_keys = run(site.up, "verify", "--settings", str(site.settings))
    assert with_keys.returncode == 0, with_keys.stdout + with_keys.stderr
