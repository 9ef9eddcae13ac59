"""What one sees while the demo runs, and the summary at its end."""

from __future__ import annotations

import io
from array import array
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from connectors.jars.resolve import JarError
from pipelines.demo import run
from pipelines.demo.cast import STAGES, group_names, limited_groups, orders_of
from pipelines.demo.memory import Peaks
from pipelines.demo.messages import Contents, Source
from pipelines.demo.summary import Phases, summarize
from pipelines.demo.verdict import Check, Expected, Verdict
from pipelines.demo.view import Sight, View, as_line, as_table

SIGHT = Sight(
    seconds=12.3,
    ops_per_s=456.7,
    sent=10,
    messages=20,
    in_flight=3,
    redelivered=4,
    refused=5,
    rejected=6,
    batch_ms=78.9,
    delta_lag=2,
    lags={"billing": [1, 2], "search": [0, 9]},
)
EXPECTED = Expected(Contents(array("Q", [1, 2])), ["a", "b"], 2, frozenset(["b"]), 3, 4)


def verdict(*failures: int) -> Verdict:
    return Verdict(
        checks=[Check(f"check {number}", count, ["sample"] * count) for number, count in enumerate(failures)],
        lost=0,
        double_leased=0,
        acked=3,
        dead_lettered=1,
        redelivered=2,
        refused=4,
        rejected=3,
    )


class Failure:
    suite = "deliveries"
    expectation = "expect_something"


class Report:
    def __init__(self, failed: int) -> None:
        self.expectations_failed = failed
        self.failures = [Failure()] * failed


def test_a_line_has_every_number() -> None:
    line = as_line(SIGHT)
    for text in ("12 s", "457 ops/s", "10/20", "in flight 3", "redelivered 4", "refused 5", "rejected 6", "79 ms"):
        assert text in line
    assert "billing 3, search 9" in line


def test_a_table_has_the_lag_of_each_lane() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(as_table(SIGHT))
    text = console.export_text()
    assert "457" in text
    rows = [line.split("│")[1:-1] for line in text.splitlines() if "billing" in line or "search" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [["billing", "1", "2"], ["search", "0", "9"]]


def test_lines_come_seldom_and_not_on_standard_output_when_that_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    with View(json_output=True) as view:
        view.say("hello")
        view.show(SIGHT)
        view.show(SIGHT)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("ops/s") == 1
    assert "hello" in captured.err


@pytest.mark.parametrize(
    ("failures", "unmet", "wanted"), [((0, 0), 0, "ok"), ((0, 1), 0, "failed"), ((0,), 1, "failed")]
)
def test_the_verdict_is_ok_only_when_everything_is(failures: tuple[int, ...], unmet: int, wanted: str) -> None:
    phases = Phases(load=2.04)
    summary = summarize(
        verdict(*failures),
        EXPECTED,
        Report(unmet),
        ops=100,
        seconds=9.96,
        cpu_seconds=8.0,
        phases=phases,
        memory=Peaks(),
    )
    assert summary.verdict == wanted
    assert (summary.messages, summary.groups, summary.ops, summary.seconds) == (2, 2, 100, 10.0)
    assert summary.phase_seconds.load == 2.0
    text = summary.as_text()
    assert f"verdict: {wanted}" in text
    assert text.count("FAILED") == sum(map(bool, failures)) + unmet
    promised = {
        "verdict", "messages", "groups", "lost", "double_leased", "acked", "dead_lettered", "redelivered", "refused",
        "rejected", "ops", "seconds", "expectations_failed",
    }  # fmt: skip
    assert promised <= msgspec.to_builtins(summary).keys()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_role_is_played_however_many_groups_there_are(count: int) -> None:
    groups = group_names(count)
    assert len(set(groups)) == count
    cast = orders_of(
        groups=groups,
        queues=8,
        partitions=4,
        source=Source(count=1),
        bootstrap_servers="s",
        prefix="p",
        topic="t",
        journals=Path("j"),
        rejected_count=1,
        refused_count=1,
    )
    assert len({orders.name for orders in cast}) == len(cast)
    assert {orders.role for orders in cast} == {"sender", *STAGES}
    for group in groups:
        members = [orders for orders in cast if orders.group == group]
        assert any(orders.role == "steady" for orders in members)
        assert {orders.releases_poison for orders in members} == {group in limited_groups(groups)}


def test_only_what_the_demo_made_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = tmp_path / "var" / "jars"
    old = tmp_path / "var" / "demo" / "job" / "state"
    for folder in (beside, old):
        folder.mkdir(parents=True)
    (tmp_path / "var" / "demo" / "summary.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "var" / "demo" / "link").symlink_to(outside)

    def no_kafka(*_: object, **__: object) -> None:
        raise JarError("no Kafka today")

    monkeypatch.setattr(run, "kafka_jars", no_kafka)
    assert run.run_demo(messages_count=1, var=tmp_path / "var") == 1
    assert beside.exists()
    assert (outside / "kept").exists()
    assert [entry.name for entry in (tmp_path / "var" / "demo").iterdir()] == ["lock"]


def test_a_file_that_cannot_be_read_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.run_demo(messages_file=tmp_path / "missing", var=tmp_path) == 1
    assert "missing cannot be read" in capsys.readouterr().err
