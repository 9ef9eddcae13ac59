"""The report of `make bench-peers` has median and spread of each contender; a failure costs no other its turns."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from connectors.jars.resolve import read_sums
from tests.benchmarks.peers import __main__ as program
from tests.benchmarks.peers.contender import Contender, PeerError, PeerOptions, Result, run_load
from tests.benchmarks.peers.peer_jars import IVY_FILE, SUMS_FILE
from tests.benchmarks.peers.peers_report import failures, page, summary, table
from tests.benchmarks.peers.rounds import run_rounds

if TYPE_CHECKING:
    from pathlib import Path

LATENCIES = {"delivery_p50_ms": 2.0, "delivery_p99_ms": 20.0, "ack_p50_ms": 1.0, "ack_p99_ms": 9.0}


def results_of(rate: float) -> dict[str, Result]:
    return {
        "each": {"messages": 10.0, "messages_per_s": rate},
        "together": {"messages": 10.0, "messages_per_s": 10 * rate},
        "latency": {"messages": 10.0, **LATENCIES},
    }


def options_in(folder: Path, **options: Any) -> PeerOptions:
    return PeerOptions(var=folder, work=folder / "work", on_progress=lambda _: None, **options)


def run_in(folder: Path, *contenders: Contender, **options: Any) -> tuple[Path, dict[str, Any]]:
    return run_rounds(contenders, options_in(folder, **options))


def contender(name: str, rates: list[float], turns: list[str]) -> Contender:
    left = iter(rates)

    def measure(_options: PeerOptions, folder: Path, results: dict[str, Result]) -> None:
        assert folder.is_dir()
        turns.append(name)
        results.update(results_of(next(left)))

    return Contender(name=name, label=f"<{name}>", measure=measure)


def test_contenders_take_turns_and_the_report_has_median_and_spread(tmp_path: Path) -> None:
    turns: list[str] = []
    file, report = run_in(tmp_path, contender("a", [30.0, 10.0, 20.0], turns), contender("b", [5.0] * 3, turns))

    assert turns == ["a", "b"] * 3
    assert json.loads(file.read_text()) == report
    entry = report["contenders"]["a"]
    assert entry["summary"]["each"]["messages_per_s"] == {"median": 20.0, "least": 10.0, "greatest": 30.0}
    assert entry["summary"]["latency"]["ack_p99_ms"] == {"median": 9.0, "least": 9.0, "greatest": 9.0}
    assert [len(turn["load_before"]) for turn in entry["turns"]] == [3, 3, 3]
    assert not failures(report)
    assert not list((tmp_path / "work").iterdir()), "data is removed after each turn"


def test_the_page_has_every_contender_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    file, report = run_in(tmp_path, contender("a", [30_000.0], []), contender("b", [5.0], []), rounds=1)

    text = file.with_suffix(".html").read_text()
    assert text == page(report)
    document = ET.fromstring(text.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))  # noqa: S314
    charts = document.findall(".//svg")
    assert len(charts) == 6
    for chart in charts:
        texts = [each.text for each in chart.findall("text")]
        assert {"<a>", "<b>"} <= set(texts)
        assert len(chart.findall("rect")) == 2
    assert "30,000" in [each.text for each in charts[0].findall("text")]
    assert not [word for word in ("http", "src=", "href=", "@import", "<script") if word in text]


def test_a_turn_that_fails_or_hangs_costs_no_other_its_results(tmp_path: Path) -> None:
    def break_down(_options: PeerOptions, _folder: Path, results: dict[str, Result]) -> None:
        results["each"] = {"messages_per_s": 7.0}
        raise PeerError("no broker & no disk")

    def hang(*_: object) -> None:
        time.sleep(60)

    file, report = run_in(
        tmp_path,
        Contender(name="broken", label="Broken", measure=break_down),
        Contender(name="stuck", label="Stuck", measure=hang),
        contender("whole", [5.0], []),
        rounds=1,
        limit_s=0.3,
    )

    assert failures(report) == [
        ("Broken", 1, "PeerError: no broker & no disk"),
        ("Stuck", 1, "TimeoutError: its turn took longer than 0.3 s"),
    ]
    entries = report["contenders"]
    assert entries["broken"]["turns"][0]["results"] == {"each": {"messages_per_s": 7.0}}
    assert entries["whole"]["summary"]["together"]["messages_per_s"]["median"] == 50.0
    text = file.with_suffix(".html").read_text()
    assert "Broken failed in round 1: PeerError: no broker &amp; no disk" in text
    assert "no result" in text
    shown = table(report).splitlines()
    assert shown[1].split()[:2] == ["Broken", "7"]
    assert shown[-1] == "Stuck failed in round 1: TimeoutError: its turn took longer than 0.3 s"


def test_a_number_that_some_turns_lack_is_of_the_others() -> None:
    turns: list[dict[str, Any]] = [{"results": {}}, {"results": results_of(4.0)}, {"results": results_of(8.0)}]
    assert summary(turns)["each"]["messages_per_s"] == {"median": 6.0, "least": 4.0, "greatest": 8.0}
    assert summary(turns[:1]) == {}


def load_that(tmp_path: Path, code: str, limit_s: float = 30.0) -> dict[str, Result]:
    results: dict[str, Result] = {}
    run_load([sys.executable, "-c", code], tmp_path, limit_s, results)
    return results


def printing(*lines: dict[str, Any]) -> str:
    return f"for line in {[json.dumps(line) for line in lines]!r}: print(line, flush=True)\n"


WHOLE = [{"workload": name, "messages": 1, "errors": 0, "last_error": ""} for name in ("each", "together", "latency")]


def test_a_load_gives_its_results(tmp_path: Path) -> None:
    found = load_that(tmp_path, "print('a warning')\n" + printing(*WHOLE))
    assert found == {name: {"messages": 1} for name in ("each", "together", "latency")}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (printing(*WHOLE[:2]), "no result of latency"),
        (printing(*WHOLE[:2], {**WHOLE[2], "errors": 2, "last_error": "gone"}), "latency: 1 messages, 2 errors, gone"),
        (printing(*WHOLE[:2], {**WHOLE[2], "messages": 0}), "latency: 0 messages"),
        (printing(*WHOLE) + "raise SystemExit('no broker')", "the load ended with 1\nno broker"),
    ],
)
def test_a_load_with_errors_has_failed(tmp_path: Path, code: str, why: str) -> None:
    with pytest.raises(PeerError) as failure:
        load_that(tmp_path, code)
    assert str(failure.value).startswith(why)


def test_a_load_that_takes_too_long_is_killed_and_keeps_its_results(tmp_path: Path) -> None:
    results: dict[str, Result] = {}
    code = printing(WHOLE[0]) + "import time; time.sleep(60)"
    with pytest.raises(PeerError, match="did not end within 2 s"):
        run_load([sys.executable, "-c", code], tmp_path, 2.0, results)
    assert results == {"each": {"messages": 1}}


def test_an_unknown_contender_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["kafka"])
    assert "no such contender: kafka; there are popstream, rocketmq" in capsys.readouterr().err


def test_without_a_jdk_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert program.main(["rocketmq"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no javac: ")


def test_committed_sums_are_of_the_versions_of_the_ivy_file() -> None:
    versions = {each.get("name"): each.get("rev") for each in ET.parse(IVY_FILE).iter("dependency")}  # noqa: S314
    names = set(read_sums(SUMS_FILE))
    assert {f"rocketmq/{name}-{revision}.jar" for name, revision in versions.items()} <= names
