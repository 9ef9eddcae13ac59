"""`make bench PART=timeline` also measures what lies before a micro-batch and after its answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints.applied import Applied
from pipelines.apply_ops.micro_batch import MicroBatchReport
from pipelines.laps import Lap
from popstream.exchange.kafka_link import KafkaLink
from popstream.settings import ClientSettings
from tests.benchmarks import timeline
from tests.benchmarks.timeline import (
    MicroBatchTimes,
    TimedLink,
    append_waits_ms,
    receipt_waits_ms,
    report_stages,
    times_of,
)


def test_an_operation_waits_from_its_append_until_the_micro_batch_begins_that_has_it() -> None:
    micro_batches = [
        MicroBatchTimes(1_100.0, {}, {0: 5, 1: 0}, {0: 7, 1: 0}),
        MicroBatchTimes(1_180.5, {}, {0: 7, 1: 0}, {0: 9, 1: 1}),
    ]
    appended_ms = {(0, 5): 1_000, (0, 6): 1_090, (0, 7): 1_100, (1, 0): 1_180}
    assert append_waits_ms(micro_batches, appended_ms) == [100.0, 10.0, 80.5, 0.5], "at offset 8 there is no record"


def test_the_times_of_a_micro_batch_are_those_of_its_laps_on_the_clock() -> None:
    with Lap("fetch") as fetch:
        pass
    before = Applied(state_epoch="epoch", ops_topic="ops", ops_topic_id="id", next_offset={0: 5})
    report = MicroBatchReport(fetch, before)
    report.after = before.after({0: 7, 1: 2}, "query", 1)
    fetch.began_s = report.lap.began_s = 50.0
    times = times_of(report, 1_000.0)
    assert (times.began_ms, times.first, times.end) == (1_050_000.0, {0: 5, 1: 0}, {0: 7, 1: 2})
    assert list(times.seconds) == ["fetch"]


def test_answers_are_on_their_way_from_the_time_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [SimpleNamespace(timestamp=900, value=b"one"), SimpleNamespace(timestamp=990, value=b"two")]
    polls = iter([{"place": records}, {}])

    def connect(link: Any) -> int:
        link._consumer = SimpleNamespace(poll=lambda **_: next(polls))
        return 3

    monkeypatch.setattr(KafkaLink, "open", connect)
    monkeypatch.setattr(timeline, "time", SimpleNamespace(time=lambda: 1.0))
    link = TimedLink(ClientSettings(bootstrap_servers="localhost:1", client_id="bench"))
    assert link.open() == 3
    assert link.receive(0.1) == [b"one", b"two"]
    assert link.receive(0.1) == []
    assert link.waits_ms == [100.0, 10.0]
    assert list(receipt_waits_ms([], 1.0)) == []


def test_each_stage_is_told_with_its_rate() -> None:
    quantiles = {"p50_ms": 1.5, "p99_ms": 9.0}
    measured = {
        "operation": quantiles,
        "append_to_fetch": quantiles,
        "spark": {"addBatch": quantiles},
        "job": {"write": quantiles},
        "answer_to_client": quantiles,
    }
    lines: list[str] = []
    report_stages(5_000, measured, lines.append)
    stages = ["operation", "append_to_fetch", "addBatch", "write", "answer_to_client"]
    assert lines == [f"5,000 a second, {stage}: p50 1.5 ms, p99 9.0 ms" for stage in stages]
