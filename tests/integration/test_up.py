"""`popstream up` as a user runs it: a process, asked by other processes, stopped by a signal."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from pipelines.process.maintenance import Maintained
from popstream.history.check import check_history
from popstream.history.recorder import read_history
from tests.support.job_process import POPSTREAM, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POPSTREAM_")}


class Up:
    """A `popstream up` and the lines that it prints."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [POPSTREAM, "up", "--folder", folder, "--var", ROOT / "var", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=folder.parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, words: str) -> str:
        """The first line with these words."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            line = self._coming.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"ended before it said {words!r}:\n{''.join(self.lines)}"
            if words in line:
                return line

    def stop(self, number: signal.Signals) -> tuple[int, list[psutil.Process]]:
        """Send the signal; the exit code, and the processes that are left."""
        own = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(number)
        code = self._process.wait(STOP_TIMEOUT_S)
        self._reader.join()
        left = psutil.wait_procs(own, timeout=0.5)[1]
        return code, [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def end(self) -> None:
        """Whatever happened, leave nothing behind."""
        if self._process.poll() is None:
            own = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for process in own:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            self._coming.put(line)
        self._coming.put(None)


def run(up: Up, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    name, *rest = arguments
    return subprocess.run(
        [POPSTREAM, name, "--folder", up.folder, *rest],
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env=environment(),
        cwd=up.folder.parent,
    )


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stderr == ""
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def status_of(up: Up) -> dict[str, Any]:
    done = run(up, "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("up") / "job", "--flush-interval", "500ms")
    try:
        started.wait_for("ready after")
        yield started
    finally:
        started.end()


def test_it_says_where_everything_is(up: Up) -> None:
    said = "".join(up.lines)
    assert f"(embedded, its data is in {up.folder / 'kafka'})" in said
    assert "popstream.ops" in said
    assert stat.S_IMODE(up.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((up.folder / "delta" / "operations").stat().st_mode) == 0o700


def test_operations_are_answered(up: Up) -> None:
    history = up.folder.parent / "ops.jsonl"
    text = """
{"type":"declare","topic":"t","queue_id":0,"topic_id":"T"}
{"type":"dispatch","topic":"t","queue_id":0,"ranges":[{"first":0,"last":99}]}
{"type":"pop","topic":"t","queue_id":0,"group":"g","max_messages":10,"invisible_time_ms":600000}
"""
    done = run(up, "ops", "--json", "--history", str(history), text=text)
    declare, dispatch, pop = answers(done)
    assert done.returncode == 0
    assert (declare["reason"], dispatch["commit_position"], pop["messages"]) == ("OK", 100, [[0, 9, 1]])
    ack = {
        "type": "ack",
        "topic": "t",
        "queue_id": 0,
        "handles": [{"group": "g", "handle": pop["handle"]}],
        "entries": [{"handle": 0, "offsets": [[0, 4]]}],
    }
    (acked,) = answers(run(up, "ops", "--json", "--history", str(history), msgspec.json.encode(ack).decode()))
    assert acked["commit_offsets"] == {"g": 5}
    report = check_history(read_history(history))
    assert (report.operation_count, report.unknown_count, report.violations) == (4, 0, [])


def test_a_refused_operation_has_exit_code_1(up: Up) -> None:
    done = run(up, "ops", '{"type":"reset_offset","topic":"unknown","queue_id":0,"group":"g","queue_offset":0}')
    assert done.returncode == 1
    assert "TOPIC_NOT_EXIST" in done.stdout


def test_lines_are_sent_and_consumed(up: Up) -> None:
    sent = run(up, "send", "orders", "--create", "2", text="one\ntwo\nthree\n")
    assert (sent.returncode, sent.stderr) == (0, "popstream: 3 messages sent to orders, ready to be popped\n")
    first = run(up, "consume", "orders", "--group", "g", "--max", "2")
    rest = run(up, "consume", "orders", "--group", "g", "--json")
    assert (first.returncode, rest.returncode) == (0, 0), first.stderr + first.stdout
    values = [*first.stdout.split(), *(msgspec.json.decode(line)["value"] for line in rest.stdout.splitlines())]
    assert sorted(values) == ["one", "three", "two"]


def test_what_a_killed_consumer_held_is_released(up: Up) -> None:
    assert run(up, "send", "held", "--create", "2", text="one\ntwo\nthree\n").returncode == 0
    for queue_id in (0, 1):
        pop = {"type": "pop", "topic": "held", "queue_id": queue_id, "group": "g", "max_messages": 10}
        leasing = {**pop, "invisible_time_ms": 3_600_000, "client_id": "worker-1"}
        assert run(up, "ops", msgspec.json.encode(leasing).decode()).returncode == 0
    done = run(up, "release", "held", "--client", "worker-1", "--group", "g")
    assert (done.returncode, done.stderr) == (0, "popstream: 3 messages of worker-1 in g given back\n")
    again = run(up, "release", "held", "--client", "worker-1", "--group", "g")
    assert again.stderr == "popstream: 0 messages of worker-1 in g given back\n"
    consumed = run(up, "consume", "held", "--group", "g", "--json")
    assert [msgspec.json.decode(line)["attempt"] for line in consumed.stdout.splitlines()] == [2, 2, 2]


def test_a_topic_that_does_not_exist_is_told(up: Up) -> None:
    done = run(up, "consume", "nowhere", "--group", "g")
    assert done.returncode == 2
    assert "there is no topic nowhere" in done.stderr


def test_status_tells_lanes_and_totals(up: Up) -> None:
    status = status_of(up)
    (lane,) = [lane for queue in status["queues"] if queue["topic"] == "t" for lane in queue["lanes"]]
    assert (lane["group"], lane["commit_offset"], lane["leased"], lane["lag"]) == ("g", 5, 5, 95)
    assert status["totals"]["operations"] >= 5
    assert "write" in status["totals"]["last_batch_ms"]
    shown = run(up, "status", "--topic", "t")
    assert shown.returncode == 0
    assert "t/0" in shown.stdout
    assert "orders/0" not in shown.stdout


def test_a_queue_is_shown_searched_and_rebuilt(up: Up) -> None:
    """Of the topics of its own Kafka it builds all, but not the job's own."""
    assert run(up, "send", "shown", "--create", "1", text="one\ntwo\nthree\n").returncode == 0

    def built(*options: str) -> list[dict[str, Any]]:
        done = run(up, "queue", "shown", "--json", *options)
        return msgspec.json.decode(done.stdout, type=list[dict[str, Any]]) if done.returncode == 0 else []

    def wait_until_read() -> list[dict[str, Any]]:
        deadline = time.monotonic() + 60
        while not (views := built("--offset", "1")) or views[0]["end_offset"] < 3:
            assert time.monotonic() < deadline, "it is not read"
            time.sleep(0.5)
        return views

    (view,) = wait_until_read()
    assert (view["queue_type"], view["unit_count"], view["commit_position"], view["problem"]) == ("simple", 3, 3, None)
    assert [found["unit"]["queue_offset"] for found in view["found"]] == [1]
    shown = run(up, "queue", "shown", "--time", "2030-01-01")
    assert shown.returncode == 0
    assert "first since the time: none is so new" in shown.stdout
    assert "last until the time: offset 2, 5 bytes" in shown.stdout
    rebuilt = run(up, "queue", "shown", "--queue", "0", "--rebuild-from", "1")
    assert (rebuilt.returncode, rebuilt.stdout) == (0, "shown/0 is read again from offset 1\n")
    assert wait_until_read() == [view]
    assert run(up, "queue", "shown", "--rebuild-from", "1").returncode == 2
    unknown = run(up, "queue", "popstream.ops")
    assert unknown.returncode == 2
    assert "no queue of popstream.ops is built" in unknown.stderr


def test_a_second_job_in_the_folder_is_refused(up: Up) -> None:
    done = run(up, "up", "--var", str(ROOT / "var"))
    assert done.returncode == 2
    assert f"runs the job in {up.folder}: stop it first, or choose another folder" in done.stderr
    assert status_of(up)["running"] is True


def test_a_taken_port_is_one_clear_line(up: Up, tmp_path: Path) -> None:
    port = status_of(up)["bootstrap_servers"].rpartition(":")[2]
    done = run(up, "up", "--folder", str(tmp_path / "other"), "--var", str(ROOT / "var"), "--kafka-port", port)
    assert (done.returncode, done.stderr) == (
        2,
        f"popstream: port {port} is taken: stop what listens on it, or choose another --kafka-port\n",
    )


def test_the_tables_can_be_queried_while_it_runs(up: Up) -> None:
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while (status := status_of(up))["delta_seq"] < status["apply_seq"]:
        assert time.monotonic() < deadline, "Delta does not catch up"
    sql = "SELECT step, count(*) AS messages FROM deliveries_by_message WHERE topic = 't' GROUP BY step ORDER BY step"
    done = run(up, "query", sql, "--json", "--var", str(ROOT / "var"))
    assert answers(done) == [{"step": "acked", "messages": 5}, {"step": "leased", "messages": 10}]


def test_the_tables_are_maintained_beside_the_job(up: Up) -> None:
    done = run(up, "maintain", "--json", "--var", str(ROOT / "var"))
    assert (done.returncode, done.stderr) == (0, "")
    tables = {each.table: each for each in msgspec.json.decode(done.stdout, type=list[Maintained])}
    assert tables["deliveries"].compacted > tables["deliveries"].into == 1


def test_z_sigterm_stops_it_in_order(up: Up) -> None:
    code, left = up.stop(signal.SIGTERM)
    assert (code, left) == (0, [])
    assert up.lines[-1].startswith("stopped")
    assert [path.name for path in up.folder.iterdir() if path.name in {"job.json", "status.sock"}] == []
    done = run(up, "status", "--json")
    assert done.returncode == 3
    status = msgspec.json.decode(done.stdout)
    assert status["running"] is False
    assert {queue["topic"] for queue in status["queues"]} == {"t", "orders", "held", "shown"}


def test_ctrl_c_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    starting = Up(tmp_path / "job")
    try:
        starting.wait_for("starting Spark")
        code, left = starting.stop(signal.SIGINT)
    finally:
        starting.end()
    assert (code, left) == (0, [])
