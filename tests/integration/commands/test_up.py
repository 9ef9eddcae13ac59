"""`popstream up` as a user runs it: a process, asked by other processes, stopped by a signal."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectors.local_servers.loopback import free_port
from pipelines.control.metric_definitions import Metric, MetricKind
from pipelines.process.maintenance import Maintained
from popstream.history.check import check_history
from popstream.history.recorder import read_history
from tests.support.processes.job_process import POPSTREAM, ROOT
from tests.support.processes.up_process import STOP_TIMEOUT_S, Up, environment, run, run_for, status_of
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.samples import Sample


pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stderr == ""
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()  # of a range from which no outgoing connection gets one meanwhile


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up") / "job"
    started = Up(folder, "--flush-interval", "500ms", "--metrics-port", str(metrics_port))
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
    assert ("--new-group" in first.stderr, "--new-group" in rest.stderr) == (True, False)


def test_a_group_is_listed_reset_and_forgotten(up: Up) -> None:
    assert run(up, "send", "grouped", "--create", "2", text="one\ntwo\nthree\n").returncode == 0
    consumed = run(up, "consume", "grouped", "--group", "typo", "--new-group")
    assert (len(consumed.stdout.split()), consumed.stderr) == (3, "popstream: 3 messages of grouped for typo\n")
    reset = run(up, "group", "reset", "typo", "grouped", "--to", "earliest")
    assert reset.stderr == "popstream: typo continues at earliest in 2 queues of grouped\n"
    listed = msgspec.json.decode(run(up, "group", "list", "grouped", "--json").stdout)
    assert [(one["group"], one["lanes"], one["lag"]) for one in listed] == [("typo", 2, 3)]
    assert run(up, "group", "forget", "typo").stderr == "popstream: 2 lanes of typo forgotten\n"
    assert msgspec.json.decode(run(up, "group", "list", "grouped", "--json").stdout) == []


@pytest.mark.long
def test_what_a_killed_consumer_held_is_released(up: Up) -> None:
    assert run(up, "send", "held", "--create", "2", text="one\ntwo\nthree\n").returncode == 0
    for queue_id in (0, 1):
        pop = {"type": "pop", "topic": "held", "queue_id": queue_id, "group": "g", "max_messages": 10}
        leasing = {**pop, "invisible_time_ms": 3_600_000, "client_id": "worker-1"}
        assert run(up, "ops", msgspec.json.encode(leasing).decode()).returncode == 0
    done = run(up, "release", "held", "--client", "worker-1", "--group", "g")
    assert (done.returncode, done.stderr) == (0, "popstream: 3 messages of worker-1 in g released\n")
    again = run(up, "release", "held", "--client", "worker-1", "--group", "g")
    assert again.stderr == "popstream: 0 messages of worker-1 in g released\n"
    consumed = run(up, "consume", "held", "--group", "g", "--max", "3", "--json")
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
    assert "write" in status["totals"]["last_micro_batch_ms"]
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

    def read_and_dispatched() -> list[dict[str, Any]]:
        ends = ("end_offset", "commit_position", "log_end")  # the job asks for the last one every two seconds
        return [view for view in built("--offset", "1") if all(view[end] == 3 for end in ends)]

    (view,) = wait_for(read_and_dispatched)
    assert (view["queue_type"], view["unit_count"], view["commit_position"], view["problem"]) == ("simple", 3, 3, None)
    assert [found["unit"]["queue_offset"] for found in view["found"]] == [1]
    shown = run(up, "queue", "shown", "--time", "2030-01-01")
    assert shown.returncode == 0
    assert "first since the time: no unit is that new" in shown.stdout
    assert "last until the time: offset 2, 5 bytes" in shown.stdout
    rebuilt = run(up, "queue", "shown", "--queue", "0", "--rebuild-from", "1")
    assert (rebuilt.returncode, rebuilt.stdout) == (0, "shown/0 is read again from offset 1\n")
    wait_for(lambda: built("--offset", "1") == [view])
    assert run(up, "queue", "shown", "--rebuild-from", "1").returncode == 2
    unknown = run(up, "queue", "popstream.ops")
    assert unknown.returncode == 2
    assert "no queue of popstream.ops is built" in unknown.stderr


def test_a_load_accounts_for_every_message_and_leaves_nothing(up: Up) -> None:
    done = run(up, "perf", "--messages", "2000", "--groups", "2", "--workers", "2", "--queues", "3", "--json")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert (report["complete"], report["sent"], report["failures"]) == (True, 2000, [])
    assert [(each["delivered"], each["unacked"]) for each in report["groups"].values()] == [(2000, 0)] * 2
    assert report["consumed_per_s"] > 0
    assert set(report["ack_ms"]) == {"p50", "p95", "p99", "p999", "max"}
    lanes = [lane for queue in status_of(up)["queues"] for lane in queue["lanes"]]
    assert not [lane for lane in lanes if lane["group"].startswith("perf-")]


def test_a_load_whose_worker_dies_ends_and_says_so(up: Up) -> None:
    command = [
        str(POPSTREAM),
        "perf",
        "--folder",
        str(up.folder),
        "--messages",
        "100000",
        "--rate",
        "50",
        "--queues",
        "1",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as load:
        assert load.stderr is not None
        try:
            while " sent, " not in (line := load.stderr.readline()) or line.startswith("popstream: 0 "):
                assert line, "it ended"
            children = psutil.Process(load.pid).children()
            worker = next(child for child in children if "spawn_main" in " ".join(child.cmdline()))
            worker.kill()
            said = load.stderr.read()
            assert load.wait(STOP_TIMEOUT_S) == 1
        finally:
            load.kill()
    assert f"process {worker.pid} ended with -9" in said
    assert "the load is not complete" in said


def test_a_second_job_in_the_folder_is_refused(up: Up) -> None:
    done = run(up, "up", "--var", str(ROOT / "var"))
    assert done.returncode == 2
    assert f"runs the job in {up.folder}: stop it first, or choose another folder" in done.stderr
    assert status_of(up)["running"] is True


def test_a_taken_port_is_one_clear_line(up: Up, tmp_path: Path) -> None:
    port = status_of(up)["bootstrap_servers"].rpartition(":")[2]
    done = run_for(tmp_path / "other", "up", "--var", str(ROOT / "var"), "--kafka-port", port)
    assert (done.returncode, done.stderr) == (
        2,
        f"popstream: port {port} is taken: stop the process that listens on it, or choose another --kafka-port\n",
    )


@pytest.mark.long
def test_the_tables_can_be_queried_while_it_runs(up: Up) -> None:
    wait_for(lambda: (status := status_of(up))["delta_seq"] >= status["apply_seq"])
    sql = "SELECT step, count(*) AS messages FROM deliveries_by_message WHERE topic = 't' GROUP BY step ORDER BY step"
    expected = [{"step": "acked", "messages": 5}, {"step": "leased", "messages": 10}]
    assert answers(run(up, "query", sql, "--json")) == expected
    assert answers(run(up, "query", sql, "--json", "--engine", "spark", "--var", str(ROOT / "var"))) == expected
    (acked,) = answers(run(up, "why", "t/0/0", "--group", "g", "--json"))
    assert [(group["state"], group["deliveries"]) for group in acked["groups"]] == [("done", 1)]
    (lane,) = answers(run(up, "why", "--lane", "g", "t/0", "--json"))
    assert (lane["first"]["state"], lane["is_stuck"]) == ("leased", False)


def test_the_log_can_be_replayed_while_it_runs(up: Up) -> None:
    assert run(up, "send", "replayed", "--create", "1", text="one\ntwo\n").returncode == 0
    assert len(run(up, "consume", "replayed", "--group", "again", "--new-group").stdout.split()) == 2
    done = run(up, "what-if", "again", "--max-attempts", "7", "--json")
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout)  # progress may be on standard error
    (group,) = found["groups"]
    assert (group["topic"], group["lanes"], found["base"]) == ("replayed", 1, "an empty state")
    assert group["what_if"]["acked"] == group["fact"]["acked"] == 2


def test_its_tables_agree_with_its_log_and_its_counts(up: Up, tmp_path: Path) -> None:
    options = ("--json", "--late-after", "1ms", "--data-docs", str(tmp_path / "docs"))
    done = run(up, "check", *options)
    report = msgspec.json.decode(done.stdout)
    assert report["not_compared_with"] == []
    assert report["judged"]["operations"] > 0
    broken = {outcome["expectation"]: outcome for outcome in report["outcomes"] if not outcome["success"]}
    broken.pop("expect_tables_to_be_fresh", None)  # a tick that has come just now
    assert broken == {}


def scraped(port: int) -> dict[str, list[Sample]]:
    """The samples of each metric that the job exports."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return found


def test_metrics_are_those_that_are_declared_and_show_lanes_and_owner(up: Up, metrics_port: int) -> None:
    def of_group(name: str) -> list[float]:
        return [
            sample.value
            for sample in scraped(metrics_port)[f"popstream_lane_{name}"]
            if sample.labels == {"topic": "t", "group": "g"}
        ]

    wait_for(lambda: of_group("lag_messages") == [95])
    assert (of_group("in_flight_messages"), of_group("delivered_total")) == ([5], [10])
    (age_s,) = of_group("oldest_unacked_seconds")
    assert 0 < age_s < status_of(up)["up_s"]
    found = scraped(metrics_port)
    for metric in Metric:
        name, kind, _, _, labels = metric.value
        more = {"le"} if kind is MetricKind.HISTOGRAM else set()
        assert {frozenset(sample.labels.keys() - more) for sample in found[name]} <= {frozenset(labels)}, name
    refused = [sample.labels["reason"] for sample in found["popstream_lane_refused_total"]]
    assert "TOPIC_NOT_EXIST" in refused
    (owner,) = found["popstream_owner_info"]
    status = status_of(up)["owner"]
    assert owner.labels == {name: status[name] for name in ("prefix", "state", "host", "folder")}
    assert status["state"]
    assert f"state {status['state']} on {socket.gethostname()} since" in " ".join(run(up, "status").stdout.split())


def test_a_command_with_spark_that_is_stopped_ends_in_one_line(up: Up) -> None:
    forever = "SELECT java_method('java.lang.Thread', 'sleep', 600000L)"
    command = [
        str(POPSTREAM),
        "query",
        "--engine",
        "spark",
        forever,
        "--folder",
        str(up.folder),
        "--var",
        str(ROOT / "var"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        wait_for(lambda: bool(psutil.Process(process.pid).children()))  # the JVM: signals are handled by now
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=STOP_TIMEOUT_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (143, "")
    assert err.startswith("popstream: stopped by SIGTERM")
    assert err.count("\n") == 1


@pytest.mark.long
def test_the_tables_are_maintained_beside_the_job(up: Up) -> None:
    done = run(up, "maintain", "--json", "--var", str(ROOT / "var"))
    assert (done.returncode, done.stderr) == (0, "")
    tables = {each.table: each for each in msgspec.json.decode(done.stdout, type=list[Maintained])}
    assert tables["deliveries"].compacted > tables["deliveries"].into == 1


def test_z_sigterm_stops_it_in_order(up: Up) -> None:
    code, left = up.stop(signal.SIGTERM)
    assert (code, left) == (0, [])
    assert up.lines[-1].startswith("stopped")
    assert [path.name for path in up.folder.iterdir() if path.name in {"job.json", "control.sock"}] == []
    done = run(up, "status", "--json")
    assert done.returncode == 3
    status = msgspec.json.decode(done.stdout)
    assert status["running"] is False
    assert {queue["topic"] for queue in status["queues"]} >= {"t", "orders", "shown"}


def test_ctrl_c_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    starting = Up(tmp_path / "job")
    try:
        starting.wait_for("starting Spark")
        code, left = starting.stop(signal.SIGINT)
    finally:
        starting.end()
    assert (code, left) == (0, [])
