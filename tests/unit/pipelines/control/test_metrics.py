"""Claim: Prometheus serves exactly the declared metrics, and gauges are read when they are scraped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import Applied
from pipelines.apply_ops.micro_batch import MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.control.messages import OwnerView
from pipelines.control.metric_definitions import Metric, MetricKind
from pipelines.control.metrics import Metrics
from pipelines.control.metrics_reference import METRICS, with_metrics_table
from pipelines.laps import Lap
from tests.support.module_time import replace_time

ROOT = Path(__file__).parents[4]


def test_every_declared_metric_is_served() -> None:
    text = generate_latest(Metrics().registry).decode()
    declared = [f"# TYPE {metric.value.name} {metric.value.kind}" for metric in Metric]
    served = [
        line for line in text.splitlines() if line.startswith("# TYPE") and not line.split()[2].endswith("created")
    ]
    assert sorted(served) == sorted(declared)


def test_counters_are_named_like_counters() -> None:
    """Prometheus' client would add the suffix, and the table would show another name."""
    assert all(metric.value.name.endswith("_total") == (metric.value.kind is MetricKind.COUNTER) for metric in Metric)


def test_a_bound_gauge_is_read_at_each_scrape() -> None:
    metrics = Metrics()
    values = iter([3, 5])
    metrics.bind_gauges({Metric.OPS_LAG: lambda: next(values)})
    read = [metrics.registry.get_sample_value("popstream_ops_lag_records") for _ in range(2)]
    assert read == [3, 5]


def report_of(apply_seq: int) -> MicroBatchReport:
    applied = Applied(state_epoch="e", ops_topic="popstream.ops", ops_topic_id="t")
    report = MicroBatchReport(Lap("fetch"), applied)
    report.apply_seq = apply_seq
    return report


def test_rows_wait_for_delta_since_the_oldest_micro_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = SimpleNamespace(now_s=1_000.0)
    replace_time(monkeypatch, "pipelines.control.metrics", time=lambda: clock.now_s)
    metrics = Metrics()
    with RocksStore(tmp_path / "state") as store:
        outbox = Outbox(store)
        assert metrics.delta_lag_s(0) == 0
        for apply_seq, clock.now_s in ((1, 1_000.0), (2, 1_000.4), (0, 1_001.0), (3, 1_030.0)):
            metrics.record(report_of(apply_seq), outbox, delta_seq=0)
        clock.now_s = 1_040.0
        assert metrics.delta_lag_s(0) == 40
        assert metrics.delta_lag_s(1) == 40, "micro-batches of one second count as one"
        assert metrics.delta_lag_s(2) == 10
        assert metrics.delta_lag_s(3) == 0
        metrics.record(report_of(4), outbox, delta_seq=4)
        assert not metrics._undelivered, "it does not grow while nobody scrapes"


def test_the_owner_replaces_an_earlier_one() -> None:
    metrics = Metrics()
    for state in ("", "01234567"):
        owner = {"prefix": "shop", "state": state, "host": "a", "folder": "/job"}
        metrics.show_owner(OwnerView(**owner, since_ms=5_000, pid=7, term=1))
    text = generate_latest(metrics.registry).decode()
    assert [line for line in text.splitlines() if line.startswith("popstream_owner")] == [
        'popstream_owner_info{folder="/job",host="a",prefix="shop",state="01234567"} 1.0',
        "popstream_owner_since_timestamp_seconds 5.0",
    ]


@pytest.mark.parametrize("name", METRICS)
def test_the_table_of_metrics_is_current(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    current = with_metrics_table(page, METRICS[name])
    assert page == current, f"run: python -m pipelines.control.metrics_reference docs/{name}"


def test_refusals_are_counted_by_reason_and_an_earlier_answer_keeps_its_counts(tmp_path: Path) -> None:
    metrics = Metrics()
    with RocksStore(tmp_path / "state") as store:
        report = report_of(1)
        report.refused.update({"NO_PERMISSION": 2, "QUOTA_EXCEEDED": 1})
        report.rejected.update({"NOT_SIGNED": 3})
        metrics.record(report, Outbox(store), 1)
        before = metrics.totals()
        metrics.record(report, Outbox(store), 1)
    now = metrics.totals()
    assert (before.refused_by_reason, before.rejected_by_reason) == (
        {"NO_PERMISSION": 2, "QUOTA_EXCEEDED": 1},
        {"NOT_SIGNED": 3},
    )
    assert (now.refused, now.refused_by_reason) == (6, {"NO_PERMISSION": 4, "QUOTA_EXCEEDED": 2})
    assert (now.rejected, now.rejected_by_reason) == (6, {"NOT_SIGNED": 6})
    assert metrics.registry.get_sample_value("popstream_refused_total") == 6


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks"):
        with_metrics_table("# A page\n", ())
