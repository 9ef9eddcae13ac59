"""`make bench-peers` accounts for every message; a contender that fails costs no other its turns."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from connectors.jars.resolve import JarError, read_sums
from tests.benchmarks.peers import __main__ as program
from tests.benchmarks.peers import rounds
from tests.benchmarks.peers.accounting import (
    Account,
    LedgerFile,
    LoadLine,
    account_of,
    drain_window,
    paced_window,
    read_ledger,
)
from tests.benchmarks.peers.contender import Contender, PeerError, PeerOptions
from tests.benchmarks.peers.cpu_samples import CpuSamples
from tests.benchmarks.peers.java_load import compile_java
from tests.benchmarks.peers.load import Ledger, load_parser, run_load
from tests.benchmarks.peers.page import page
from tests.benchmarks.peers.peer_jars import PEERS
from tests.benchmarks.peers.report import failures, summary, table
from tests.benchmarks.peers.turn import load_arguments, result_of
from tests.benchmarks.peers.turn import run_load as run_load_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

S = 1_000_000_000


def ledger_of(
    deliveries: Sequence[int], acks: Sequence[int], received_s: Sequence[float], acked_s: Sequence[float]
) -> LedgerFile:
    times = [np.array([round(each * S) for each in column], np.int64) for column in (received_s, acked_s)]
    return LedgerFile(np.array(deliveries, np.uint8), np.array(acks, np.uint8), times[0], times[1])


def acked_at(times_s: Sequence[float]) -> LedgerFile:
    return ledger_of([1] * len(times_s), [1] * len(times_s), [0.5] * len(times_s), times_s)


def line_of(**fields: Any) -> LoadLine:
    return LoadLine(**{"workload": "loop", "messages": 0, "end": "drained", "takes": 1, "take_max": 1, **fields})


def options_in(folder: Path, **options: Any) -> PeerOptions:
    (folder / "work").mkdir(exist_ok=True)
    return PeerOptions(var=folder, work=folder / "work", on_progress=lambda _: None, **options)


# ---- accounting


def test_every_message_is_acked_or_counted() -> None:
    drained = ledger_of([1, 2, 1, 0], [1, 1, 0, 0], [0] * 4, [0] * 4)
    assert account_of(drained, queues=2, is_cut=False) == Account(
        sent=4, acked=2, duplicates=1, unacked=1, missing=1, left=0
    )


def test_what_is_left_at_the_end_of_a_queue_is_not_missing_when_time_was_up() -> None:
    # Queue 0 has the messages 0, 2, 4, 6: the last one is left. Queue 1 has 1, 3, 5, 7: 3 was passed over.
    ledger = ledger_of([1, 1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0], [0] * 8, [0] * 8)
    account = account_of(ledger, queues=2, is_cut=True)
    assert (account.acked, account.missing, account.left) == (5, 1, 2)
    assert not account.is_balanced
    assert account_of(ledger, queues=2, is_cut=False).missing == 3


def test_a_window_has_a_fixed_length_after_the_warm_up() -> None:
    window = drain_window(acked_at([1.0, 2.0, 3.5, 4.0, 5.0, 6.5]), warm_up_s=2.0, window_s=3.0)
    assert window is not None
    assert (window.messages, window.seconds, window.is_warm) == (3, 3.0, True)


def test_a_window_ends_with_the_backlog() -> None:
    window = drain_window(acked_at([1.0, 3.5, 5.0]), warm_up_s=2.0, window_s=60.0)
    assert window is not None
    assert (window.messages, window.seconds) == (2, 2.0)


def test_a_backlog_that_is_drained_too_early_is_measured_as_a_whole() -> None:
    """All acks of a micro-batch come at once: a rate between the first and the last of them would be absurd."""
    window = drain_window(acked_at([1.5, 1.501, 1.502]), warm_up_s=2.0, window_s=3.0)
    assert window is not None
    assert (window.messages, round(window.seconds, 3), window.is_warm) == (3, 1.002, False)
    assert drain_window(ledger_of([0], [0], [0], [0]), warm_up_s=2.0, window_s=3.0) is None


def test_latencies_count_from_the_time_at_which_a_message_was_due() -> None:
    # Due at 10.0, 10.5, 11.0, ...; the warm-up has the first two, and message 5 was not acked.
    received_s, acked_s = [9.0, 99.0, 11.1, 11.6, 12.4, 12.6], [9.1, 99.0, 11.2, 11.8, 12.9, 0.0]
    ledger = ledger_of([1] * 6, [1, 1, 1, 1, 1, 0], received_s, acked_s)
    line = line_of(workload="paced", messages=6, began_ns=10 * S, interval_ns=S // 2)
    window, latencies = paced_window(ledger, line, warm_up_s=1.0)
    assert window is not None
    assert (window.messages, round(window.seconds, 3)) == (3, 1.9)
    assert latencies == {
        "received_p50_ms": 100.0,
        "received_p99_ms": 400.0,
        "acked_p50_ms": 300.0,
        "acked_p99_ms": 900.0,
    }


class StubCpu(CpuSamples):
    def __init__(self, *samples: tuple[int, float, float, float]) -> None:
        self._samples = list(samples)


def write_ledger(folder: Path, workload: str, ledger: LedgerFile) -> None:
    columns = (ledger.deliveries, ledger.acks, ledger.received_ns, ledger.acked_ns)
    (folder / f"{workload}.ledger").write_bytes(b"".join(column.tobytes() for column in columns))


def test_a_result_has_the_cpu_of_load_and_servers_in_its_window(tmp_path: Path) -> None:
    write_ledger(tmp_path, "loop", acked_at([1.0, 3.5, 4.0, 5.0]))
    # Between 3 s and 5 s the load used 1 s, the servers 2 s, and others 0.5 s.
    cpu = StubCpu((0, 0.0, 0.0, 0.0), (2 * S, 0.0, 1.0, 0.0), (4 * S, 1.0, 3.0, 0.5), (6 * S, 2.0, 5.0, 1.0))
    result = result_of(line_of(messages=4, takes=2, take_max=3), tmp_path, cpu, options_in(tmp_path, warm_up_s=2.0))
    assert result == {
        "end": "drained",
        "account": {"sent": 4, "acked": 4, "duplicates": 0, "unacked": 0, "missing": 0, "left": 0},
        "take_mean": 2.0,
        "take_max": 3,
        "messages": 3,
        "seconds": 2.0,
        "messages_per_s": 1.5,
        "is_warm": True,
        "cpu_us_per_message": 1_000_000.0,
        "load_cpu_us_per_message": 333_333.33,
        "other_cores": 0.25,
    }


@pytest.mark.parametrize(
    ("line", "ledger", "why"),
    [
        ({"end": "failure", "failure": "gone"}, acked_at([1.0, 2.0]), "gone"),
        ({"end": "stalled"}, acked_at([1.0, 2.0]), "nothing moved for 30 s"),
        ({}, ledger_of([1, 1], [1, 0], [1, 1], [2, 0]), "0 messages are missing, 1 were not acked"),
        (
            {"end": "stalled"},
            ledger_of([0, 0], [0, 0], [0, 0], [0, 0]),
            "nothing moved for 30 s; 2 messages are missing, 0 were not acked; no ack was confirmed",
        ),
    ],
)
def test_a_workload_whose_messages_are_not_all_settled_has_failed(
    tmp_path: Path, line: dict[str, Any], ledger: LedgerFile, why: str
) -> None:
    write_ledger(tmp_path, "loop", ledger)
    result = result_of(line_of(messages=2, **line), tmp_path, StubCpu(), options_in(tmp_path))
    assert result["failure"] == why


# ---- loads in Python


class StubClient:
    """Takes what was sent, two messages at a time; leaves out and repeats some."""

    def __init__(self, *, lost: int = -1, repeated: int = -1) -> None:
        self._lost, self._repeated = lost, repeated
        self._sent: dict[str, list[bytes]] = {}

    def create_topic(self, topic: str, queues: int) -> None:
        assert queues == 2
        self._sent[topic] = []

    def send(self, topic: str, queue_id: int, value: bytes) -> None:
        number = int.from_bytes(value[:4])
        assert (queue_id, len(value)) == (number % 2, 100)
        if number != self._lost:
            self._sent[topic] += [value] * (2 if number == self._repeated else 1)

    def flush(self) -> None:
        pass

    def loop(self, topic: str, ledger: Ledger) -> None:
        taken = 0
        while not ledger.is_over():
            values = self._sent[topic][taken : taken + 2]
            taken += len(values)
            if values:
                ledger.acked(ledger.received(values))

    bulk = each = loop


def run_client(client: StubClient, folder: Path, workload: str) -> None:
    arguments = load_arguments(options_in(folder, workloads=(workload,), stall_s=0.3, rate=1_000), folder, messages=6)
    arguments[arguments.index("--queues") + 1] = "2"
    run_load(client, load_parser().parse_args([*arguments, "--bootstrap", ""]))


@pytest.mark.parametrize("workload", ["loop", "each", "bulk", "paced"])
def test_a_load_writes_what_happened_to_each_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: str
) -> None:
    run_client(StubClient(repeated=3), tmp_path, workload)
    line = json.loads(capsys.readouterr().out)
    assert (line["workload"], line["messages"], line["end"], line["failure"]) == (workload, 6, "drained", "")
    ledger = read_ledger(tmp_path / f"{workload}.ledger", 6)
    assert ledger.deliveries.tolist() == [1, 1, 1, 2, 1, 1]
    assert ledger.acks.tolist() == [1, 1, 1, 2, 1, 1]
    assert (ledger.received_ns <= ledger.acked_ns).all()


def test_a_load_that_waits_for_a_lost_message_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_client(StubClient(lost=4), tmp_path, "loop")
    assert json.loads(capsys.readouterr().out)["end"] == "stalled"
    assert read_ledger(tmp_path / "loop.ledger", 6).deliveries.tolist() == [1, 1, 1, 1, 0, 1]


def test_a_workload_that_raises_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(StubClient):
        def loop(self, topic: str, ledger: Ledger) -> None:
            assert not ledger.is_over()
            raise ValueError(topic)

    run_client(Broken(), tmp_path, "loop")
    line = json.loads(capsys.readouterr().out)
    assert (line["end"], line["failure"]) == ("failure", "ValueError: backlog")


def test_the_time_of_a_workload_counts_from_its_first_ack(tmp_path: Path) -> None:
    ledger = Ledger(2, limit_s=0.0, stall_s=60.0)
    assert not ledger.is_over()
    ledger.acked(ledger.received([bytes(4)]))
    time.sleep(0.001)
    assert ledger.is_over()
    ledger.write(tmp_path, "loop")
    assert read_ledger(tmp_path / "loop.ledger", 2).acks.tolist() == [1, 0]


# ---- processes of loads

WRITES = """
import sys
from pathlib import Path
from tests.benchmarks.peers.load import Ledger
print("a warning")
ledger = Ledger(1, limit_s=1, stall_s=60)
ledger.acked(ledger.received([bytes(4)]))
ledger.write(Path(sys.argv[1]), "loop")
"""


def run_code(folder: Path, code: str, workloads: tuple[str, ...] = ("loop",)) -> dict[str, Any]:
    results: dict[str, Any] = {}
    command = [sys.executable, "-c", code, str(folder)]
    run_load_process(command, folder, options_in(folder, workloads=workloads), results)
    return results


def test_a_load_gives_its_results(tmp_path: Path) -> None:
    assert run_code(tmp_path, WRITES)["loop"]["account"]["acked"] == 1


@pytest.mark.parametrize(
    ("code", "workloads", "why"),
    [
        (WRITES, ("loop", "bulk"), "load gave no result of bulk\na warning"),
        ("raise SystemExit('no broker')", ("loop",), "load ended with 1\nno broker"),
    ],
)
def test_a_load_without_results_has_failed(tmp_path: Path, code: str, workloads: tuple[str, ...], why: str) -> None:
    with pytest.raises(PeerError) as failure:
        run_code(tmp_path, code, workloads)
    assert str(failure.value).startswith(why)


# ---- rounds and their report

LATENCIES = {"received_p50_ms": 2.0, "received_p99_ms": 20.0, "acked_p50_ms": 3.0, "acked_p99_ms": 30.0}
ACCOUNT = {"sent": 10, "acked": 9, "duplicates": 2, "unacked": 0, "missing": 0, "left": 1}


def results_of(rate: float) -> dict[str, Any]:
    common = {
        "account": ACCOUNT,
        "is_warm": True,
        "cpu_us_per_message": 7.0,
        "load_cpu_us_per_message": 2.0,
        "other_cores": 0.5,
        "take_mean": 32.0,
    }
    return {
        "loop": {"messages_per_s": rate, **common},
        "each": {"messages_per_s": 2 * rate, **common},
        "bulk": {"messages_per_s": 10 * rate, **common, "is_warm": False},
        "paced": {"messages_per_s": 500.0, **LATENCIES, **common},
    }


def contender(
    name: str, measure: Callable[[Path, dict[str, Any]], None], *, prepare: Callable[[PeerOptions], None] | None = None
) -> Contender:
    @contextlib.contextmanager
    def serve(_options: PeerOptions, _folder: Path) -> Iterator[list[str]]:
        measures.append(measure)
        yield []

    forms = {workload: f"{name} does {workload}" for workload in ("loop", "each", "bulk", "paced")}
    return Contender(
        name=name,
        label=f"<{name}>",
        forms=forms,
        durability="a crash: nothing",
        messages=10,
        prepare=prepare or (lambda _: None),
        serve=serve,
    )


measures: list[Callable[[Path, dict[str, Any]], None]] = []


@pytest.fixture(autouse=True)
def _measured_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_command: Sequence[str], folder: Path, _options: PeerOptions, results: dict[str, Any]) -> None:
        measures.pop()(folder, results)

    monkeypatch.setattr(rounds, "run_load", run)


def gives(rates: list[float], turns: list[str], name: str) -> Callable[[Path, dict[str, Any]], None]:
    left = iter(rates)

    def measure(folder: Path, results: dict[str, Any]) -> None:
        assert folder.is_dir()
        turns.append(name)
        results.update(results_of(next(left)))

    return measure


def run_in(folder: Path, *contenders: Contender, **options: Any) -> tuple[Path, dict[str, Any]]:
    return rounds.run_rounds(contenders, options_in(folder, **options))


def test_contenders_take_turns_and_the_report_has_median_and_spread(tmp_path: Path) -> None:
    turns: list[str] = []
    a = contender("a", gives([30.0, 10.0, 20.0], turns, "a"))
    b = contender("b", gives([5.0] * 3, turns, "b"))
    file, report = run_in(tmp_path, a, b)

    assert turns == ["a", "b", "b", "a", "a", "b"], "each round begins with another contender"
    assert json.loads(file.read_text()) == json.loads(json.dumps(report))
    entry = report["contenders"]["a"]
    assert entry["summary"]["loop"]["messages_per_s"] == {"median": 20.0, "min": 10.0, "max": 30.0}
    assert entry["summary"]["paced"]["acked_p99_ms"] == {"median": 30.0, "min": 30.0, "max": 30.0}
    assert [len(turn["load_average"]) for turn in entry["turns"]] == [3, 3, 3]
    assert not failures(report)
    assert not [each for each in (tmp_path / "work").iterdir() if each.is_dir()], "data is removed after each turn"


def test_the_table_has_what_was_done_and_the_account(tmp_path: Path) -> None:
    _, report = run_in(tmp_path, contender("a", gives([30.0, 10.0, 20.0], [], "a")))
    lines = table(report).splitlines()
    assert "<a>  20 (10 .. 30)  7               2                 32" in lines
    assert "<a>  200 (100 .. 300) *  7               2                 32" in lines
    assert "<a>  2             20            3          30         7" in lines
    account = "30 sent, 27 acked, 6 duplicates, 0 unacked, 0 missing, 3 left"
    assert lines[lines.index("  <a>: a does loop") + 1] == f"    {account}"
    assert "  <a>: a crash: nothing" in lines


def test_the_page_has_every_contender_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    a, b = contender("a", gives([30_000.0], [], "a")), contender("b", gives([5.0], [], "b"))
    file, report = run_in(tmp_path, a, b, rounds=1)

    text = file.with_suffix(".html").read_text()
    assert text == page(report)
    document = ET.fromstring(text.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))  # noqa: S314
    charts = document.findall(".//svg")
    assert len(charts) == 8
    for chart in charts:
        labels = {(each.text or "").partition(",")[0] for each in chart.findall("text")}
        assert {"<a>", "<b>"} <= labels
    assert "30,000" in [each.text for each in charts[0].findall("text")]
    assert not [word for word in ("http", "src=", "href=", "@import", "<script") if word in text]


def test_a_turn_that_fails_or_hangs_costs_no_other_its_results(tmp_path: Path) -> None:
    def break_down(_folder: Path, results: dict[str, Any]) -> None:
        results["loop"] = results_of(7.0)["loop"]
        results["bulk"] = {"account": ACCOUNT, "failure": "3 messages are missing"}
        raise PeerError("no broker & no disk")

    def hang(_folder: Path, _results: dict[str, Any]) -> None:
        time.sleep(60)

    contenders = [contender("broken", break_down), contender("stuck", hang), contender("ok", gives([5.0], [], "ok"))]
    file, report = run_in(tmp_path, *contenders, rounds=1, turn_limit_s=0.3)

    assert failures(report) == [
        "<broken>, round 1, bulk failed: 3 messages are missing",
        "<broken>, round 1 failed: PeerError: no broker & no disk",
        "<stuck>, round 1 failed: TimeoutError: its turn took longer than 0.3 s",
    ]
    assert report["contenders"]["broken"]["summary"]["loop"]["messages_per_s"]["median"] == 7.0
    assert "bulk" not in report["contenders"]["broken"]["summary"]
    assert report["contenders"]["ok"]["summary"]["bulk"]["messages_per_s"]["median"] == 50.0
    text = file.with_suffix(".html").read_text()
    assert "&lt;broken&gt;, round 1 failed: PeerError: no broker &amp; no disk" in text
    assert "no result" in text
    assert table(report).splitlines()[-1] == failures(report)[-1]


@pytest.mark.parametrize("error", [PeerError("no javac"), JarError("no jars")])
def test_a_contender_that_cannot_be_measured_is_reported(tmp_path: Path, error: Exception) -> None:
    def prepare(_options: PeerOptions) -> None:
        raise error

    a = contender("a", gives([], [], "a"), prepare=prepare)
    file, report = run_in(tmp_path, a, contender("b", gives([5.0], [], "b")), rounds=1)
    assert failures(report) == [f"<a>: not measured: {error}"]
    assert failures(report)[0] in table(report)
    assert f"not measured: {error}" in file.with_suffix(".html").read_text()
    assert report["contenders"]["b"]["summary"]


def test_a_number_that_some_turns_lack_is_of_the_others() -> None:
    turns: list[dict[str, Any]] = [{"results": {}}, {"results": results_of(4.0)}, {"results": results_of(8.0)}]
    assert summary(turns)["loop"]["messages_per_s"] == {"median": 6.0, "min": 4.0, "max": 8.0}
    assert summary(turns[:1]) == {}


# ---- the program


def test_an_unknown_contender_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["kafka"])
    assert "no such contender: kafka; there are popstream, rocketmq" in capsys.readouterr().err


def test_without_a_jdk_the_loads_in_java_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PeerError, match=r"^no javac: install a JDK"):
        compile_java(["Load"], [], tmp_path)


def test_committed_sums_are_of_the_versions_of_the_ivy_file() -> None:
    versions = {each.get("name"): each.get("rev") for each in ET.parse(PEERS.ivy_file).iter("dependency")}  # noqa: S314
    names = set(read_sums(PEERS.sums_file))
    assert {f"rocketmq/{name}-{revision}.jar" for name, revision in versions.items()} <= names
