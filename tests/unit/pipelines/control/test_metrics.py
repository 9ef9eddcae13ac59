"""Claim: Prometheus serves exactly the declared metrics, and gauges are read when they are scraped."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from pipelines.control.metrics import Metric, MetricKind, Metrics
from pipelines.control.metrics_reference import with_metrics_table

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


def test_the_table_of_metrics_is_current() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert page == with_metrics_table(page), "run: python -m pipelines.control.metrics_reference docs/operating.md"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks"):
        with_metrics_table("# A page\n")
