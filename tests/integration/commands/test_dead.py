"""Claim: an operator finds dead letters, sends them again, and loses none. Method: a job, as users run it.

The job builds the topics `orders*` itself; those of `bills` are dispatched by who sends them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from popstream import Consumer
from tests.support.processes.up_process import COMMAND_TIMEOUT_S, Up, run, run_for, status_of
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("dead") / "job", "--message-topics", "orders*")
    try:
        started.wait_for("ready after")
        yield started
    finally:
        started.end()


def servers_of(up: Up) -> str:
    return str(status_of(up)["bootstrap_servers"])


def ended(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """The exit code, and the last line that it said; before it there may be some about progress."""
    return done.returncode, done.stderr.splitlines()[-1]


def letters(up: Up, *options: str) -> list[dict[str, Any]]:
    done = run(up, "dead", "list", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return msgspec.json.decode(done.stdout, type=list[dict[str, Any]])


def give_up(up: Up, topic: str, count: int, *, queues: int = 2) -> None:
    """Send messages, which one group acks, and another one rejects."""
    text = "".join(f"{number}\n" for number in range(count))
    assert run(up, "send", topic, "--create", str(queues), text=text).returncode == 0
    with Consumer(servers_of(up), group="till") as till, Consumer(servers_of(up), group="baristas") as baristas:
        for queue_id in range(queues):
            while acked := till.pop(topic, queue_id).messages:
                till.ack(acked)
            while rejected := baristas.pop(topic, queue_id).messages:
                baristas.reject(rejected, "no milk")
    wait_for(lambda: len(letters(up, "--topic", topic)) == count)


def rows(up: Up, condition: str) -> list[dict[str, Any]]:
    """The rows of redrives in the table of operations."""
    sql = f"SELECT * FROM operations WHERE kind = 'redrive' AND {condition}"  # noqa: S608 - our own condition
    done = run(up, "query", sql, "--json")
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def consumed(up: Up, topic: str, group: str) -> list[str]:
    done = run(up, "consume", topic, "--group", group, "--json")
    assert done.returncode == 0, done.stderr
    messages = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert {message["attempt"] for message in messages} <= {1}
    return sorted(message["value"] for message in messages)


def test_a_redrive_reaches_the_group_that_gave_up_alone(up: Up) -> None:
    give_up(up, "orders", 3)
    found = letters(up, "--topic", "orders", "--since", "1h", "--reason", "no *")
    assert [(one["group"], one["reason"], one["attempts"], one["handling"]) for one in found] == [
        ("baristas", "no milk", 1, None)
    ] * 3
    place = found[0]["letter"]
    shown = run(up, "dead", "show", place)
    assert shown.returncode == 0
    assert "no milk" in shown.stdout
    assert "bytes, stored" in shown.stdout  # what the job knows about its place
    planned = run(up, "dead", "redrive", "--topic", "orders", "--dry-run")
    assert ended(planned) == (0, "popstream: 3 dead letters would be redriven to their groups, as 3 messages")
    assert len(letters(up, "--topic", "orders")) == 3
    done = run(up, "dead", "redrive", place, "--comment", "the milk is back")
    assert ended(done) == (0, "popstream: 1 dead letter redriven to their groups, as 1 message")
    assert run(up, "dead", "redrive", "--group", "baristas").returncode == 0
    assert letters(up, "--topic", "orders") == []
    assert consumed(up, "orders", "till") == []
    assert consumed(up, "orders", "baristas") == ["0", "1", "2"]
    (handled,) = [one for one in letters(up, "--topic", "orders", "--all") if one["letter"] == place]
    assert (handled["handling"]["to"], handled["handling"]["comment"]) == ("group", "the milk is back")
    assert "redriven to the group" in run(up, "dead", "show", place).stdout
    (told,) = wait_for(lambda: rows(up, f"detail LIKE '%: {handled['handling']['comment']}'"))
    assert told["op_id"] == f"redrive-{handled['handling']['call']}-1"
    assert (told["topic"], told["queue_id"], told["group"]) == ("orders", handled["queue_id"], "baristas")
    assert told["first_offset"] == told["last_offset"] == handled["queue_offset"]
    assert told["detail"] == f"to the group, by {handled['handling']['by']}: the milk is back"
    why = run(up, "why", f"orders/{handled['queue_id']}/{handled['queue_offset']}")
    assert f"a redrive was announced, {told['detail']}" in why.stdout, why.stdout + why.stderr


def test_from_another_machine_to_every_group(up: Up, tmp_path: Path) -> None:
    give_up(up, "orders-all", 2)
    there = ("--bootstrap-servers", servers_of(up), "--prefix", "popstream")
    done = run_for(tmp_path / "nowhere", "dead", "redrive", "--topic", "orders-all", "--to", "topic", *there)
    assert ended(done) == (0, "popstream: 2 dead letters redriven to every group of their topics, as 2 messages")
    assert consumed(up, "orders-all", "till") == consumed(up, "orders-all", "baristas") == ["0", "1"]


def test_killed_on_a_topic_that_the_job_does_not_build_it_goes_on_and_holds_nobody_up(up: Up) -> None:
    """What an aborted transaction leaves in the queue would hold back all messages behind it."""
    give_up(up, "bills", 40, queues=1)
    arguments = [servers_of(up), "popstream", "send", "30"]
    killed = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.killed_redrive", *arguments],
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    done = run(up, "dead", "redrive", "--topic", "bills")
    assert ended(done) == (0, "popstream: 40 dead letters redriven to their groups, as 40 messages")
    assert run(up, "send", "bills", text="later\n").returncode == 0
    assert consumed(up, "bills", "baristas") == sorted([*map(str, range(40)), "later"])
    assert consumed(up, "bills", "till") == ["later"]


def test_what_is_purged_is_put_aside_and_erased(up: Up) -> None:
    give_up(up, "orders-stale", 2)
    refused = run(up, "dead", "purge", "--topic", "orders-stale")
    assert (refused.returncode, "pass --yes to confirm" in refused.stderr) == (2, True)
    assert len(letters(up, "--topic", "orders-stale")) == 2
    done = run(up, "dead", "purge", "--topic", "orders-stale", "--yes", "--erase")
    assert done.returncode == 0
    assert "popstream: 2 dead letters purged\n" in done.stderr
    assert letters(up, "--all") == []
    assert consumed(up, "orders-stale", "baristas") == []


def test_a_wrong_prefix_is_told(up: Up) -> None:
    done = run(up, "dead", "list", "--prefix", "other")
    assert (done.returncode, "there is no topic other.dead_letters" in done.stderr) == (2, True)
