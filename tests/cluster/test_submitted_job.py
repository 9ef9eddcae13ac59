"""Claim: `popstream submit` runs the job on a cluster: clients get their answers and the tables their rows; after a
kill of an executor or a worker the driver goes on, after one of the driver or a lost disk a new start; SIGTERM ends it
with 0, a second driver is refused, and the state goes to one machine by the command.

Method: a broker and a standalone cluster here; the command as a user runs it, with a settings file.
"""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from connectors.local_servers.process_tree import command_line, descendants, kill_tree
from connectors.spark_cluster.submission import LAUNCHER
from tests.cluster.conftest import ROOT
from tests.cluster.submitted import WAIT_S, ops, popstream, run, settings_file, started, submit_command
from tests.support.processes.up_process import Up
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.spark_cluster.standalone import StandaloneCluster

QUEUE = {"topic": "orders", "queue_id": 0}
DECLARE = {"type": "declare", **QUEUE, "topic_id": "T"}
DISPATCH = {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 9}]}
POP = {"type": "pop", **QUEUE, "group": "billing", "max_messages": 4, "invisible_time_ms": 600_000}
POPS = 3
"""With messages: each has one row of `deliveries`."""


class Place(NamedTuple):
    """A job that can be submitted: its command, and the options of `popstream ops` for it."""

    command: list[str]
    asked: list[str]


@pytest.fixture
def place(
    tmp_path: Path, kafka: EmbeddedKafka, cluster: StandaloneCluster, unpacked_environment: str, topic_prefix: str
) -> Place:
    settings = settings_file(tmp_path, kafka.bootstrap_servers, topic_prefix)
    return Place(
        submit_command(settings, f"file://{tmp_path}/state", cluster, unpacked_environment),
        ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", topic_prefix],
    )


def local_disks(executor_pid: int) -> list[Path]:
    """The folders for temporary files of an executor, its state stores among them."""
    variables = Path(f"/proc/{executor_pid}/environ").read_bytes().split(b"\0")
    pairs = (each.partition(b"=") for each in variables)
    (disks,) = (value for name, _, value in pairs if name == b"SPARK_EXECUTOR_DIRS")
    return [Path(disk) for disk in disks.decode().split(":")]


def test_the_job_answers_after_a_killed_driver_and_ends_with_zero(place: Place, tmp_path: Path) -> None:
    with started(place.command, tmp_path) as driver:
        declared, dispatched, popped = ops(place.asked, DECLARE, DISPATCH, POP)
        assert (declared["reason"], dispatched["reason"], popped["messages"]) == ("OK", "OK", [[0, 3, 1]])
        kill_tree(driver.pid)
    with started(place.command, tmp_path) as driver:
        assert ops(place.asked, POP)[0]["messages"] == [[4, 7, 1]]
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(WAIT_S) == 0
    assert list((tmp_path / "state" / "tables" / "operations" / "_delta_log").glob("*.json"))


def test_a_killed_executor_and_a_killed_worker_cost_no_decision(
    place: Place, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Their tasks are repeated by others, and the driver goes on. Then the state goes on in a folder, by `up`."""
    with started(place.command, tmp_path) as driver:
        declared, dispatched, popped = ops(place.asked, DECLARE, DISPATCH, POP)
        assert (declared["reason"], dispatched["reason"], popped["messages"]) == ("OK", "OK", [[0, 3, 1]])
        killed = cluster.executor_pids()[0]
        cluster.kill_executor(killed)
        assert ops(place.asked, POP)[0]["messages"] == [[4, 7, 1]]
        cluster.kill_worker(0)
        try:
            assert ops(place.asked, POP)[0]["messages"] == [[8, 9, 1]]
        finally:
            cluster.start_worker(0)
        assert killed not in cluster.executor_pids()
        assert driver.poll() is None
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(WAIT_S) == 0
    var = ("--var", str(ROOT / "var"))
    checkpoint = ("--checkpoint", f"file://{tmp_path}/state")
    verified = popstream("verify", "--json", "--folder", str(tmp_path / "verified"), *checkpoint, *var, *place.asked)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert msgspec.json.decode(verified.stdout)["rows"]["deliveries"] == POPS
    moved = popstream("migrate", "to-folder", "--folder", str(tmp_path / "job"), *checkpoint, *var, *place.asked)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    up = Up(tmp_path / "job", *place.asked)
    try:
        up.wait_for("ready after")
        (none,) = ops(place.asked, {**POP, "poll_time_ms": 0})
        assert "messages" not in none, f"all ten are leased: {none}"
        ops(place.asked, {"type": "dispatch", **QUEUE, "ranges": [{"first": 10, "last": 11}]})
        assert ops(place.asked, POP)[0]["messages"] == [[10, 11, 1]]
        assert up.stop(signal.SIGTERM) == (0, [])
    finally:
        up.end()


def test_the_printed_line_submits_the_job_from_a_shell(place: Place, tmp_path: Path) -> None:
    """By itself: nothing of this environment tells the driver where its code is."""
    printed = run([*place.command, "--print"], folder=tmp_path)
    assert printed.returncode == 0, printed.stderr
    (line,) = printed.stdout.splitlines()
    with started(["env", "--unset", "PYTHONPATH", "sh", "-c", line], tmp_path) as shell:
        assert [each["reason"] for each in ops(place.asked, DECLARE, DISPATCH)] == ["OK", "OK"]
        (driver,) = (pid for pid in descendants(shell.pid) if command_line(pid)[1:2] == [str(LAUNCHER)])
        os.kill(driver, signal.SIGTERM)
        assert shell.wait(WAIT_S) == 0
    assert list((tmp_path / "state" / "tables" / "operations" / "_delta_log").glob("*.json"))


def test_a_second_driver_is_refused_and_takes_over_when_it_is_told_to(place: Place, tmp_path: Path) -> None:
    with started(place.command, tmp_path) as first:
        ops(place.asked, DECLARE, DISPATCH)
        second = run(place.command, folder=tmp_path)
        assert second.returncode == 2, second.stderr
        assert "Stop it first" in second.stdout
        assert "Traceback" not in second.stdout + second.stderr
        assert ops(place.asked, POP)[0]["messages"] == [[0, 3, 1]], "the first one goes on"
        with started([*place.command, "--take-over"], tmp_path):
            assert first.wait(WAIT_S) == 2
            assert ops(place.asked, POP)[0]["messages"] == [[4, 7, 1]]


def test_executors_that_lose_their_disks_cost_no_decision(
    place: Place, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """The state is in the checkpoint; a supervisor starts the job again, which gets new executors."""
    with started(place.command, tmp_path) as driver:
        ops(place.asked, DECLARE, DISPATCH, POP)
        disks = {disk for pid in cluster.executor_pids() for disk in local_disks(pid)}
        assert disks
        for disk in disks:
            shutil.rmtree(disk)
        with ThreadPoolExecutor(1) as client:
            asked = client.submit(ops, place.asked, POP)
            wait_for(lambda: driver.poll() is not None, patience_s=WAIT_S)
            assert driver.poll() == 1, "its tasks have failed as often as they may"
            with started(place.command, tmp_path):
                assert asked.result(WAIT_S)[0]["messages"] == [[4, 7, 1]]
