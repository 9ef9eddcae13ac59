"""The metrics of a job on a cluster (cluster_metrics.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from pipelines.cluster.watch.cluster_metrics import ClusterMetrics
from pipelines.control.cluster_report import ClusterReport, ShardReport
from pipelines.control.messages import JobReport
from tests.support.query_progress import PROGRESS


def shown(*queries: Any) -> str:
    registry = CollectorRegistry()
    registry.register(ClusterMetrics(lambda: queries))
    return generate_latest(registry).decode()


def test_each_shard_has_its_lag_and_each_query_its_micro_batch() -> None:
    text = shown(SimpleNamespace(name="decide_ops", lastProgress=PROGRESS))
    assert 'popstream_shard_lag_records{partition="0",query="decide_ops"} 2.0' in text
    assert 'popstream_shard_lag_records{partition="1",query="decide_ops"} 0.0' in text
    assert 'popstream_cluster_spark_batch_id{query="decide_ops"} 7.0' in text
    assert 'popstream_cluster_micro_batch_seconds{query="decide_ops"} 0.25' in text
    assert 'popstream_cluster_state_keys{query="decide_ops"} 300.0' in text
    assert 'popstream_cluster_state_bytes{query="decide_ops"} 4096.0' in text


def test_a_query_that_has_not_begun_and_offsets_that_are_decoded_are_no_errors() -> None:
    decoded = {**PROGRESS, "sources": [{"endOffset": None, "latestOffset": {"p.ops": {"0": 3}}}], "stateOperators": []}
    text = shown(
        SimpleNamespace(name="audit", lastProgress=None), SimpleNamespace(name="decide_ops", lastProgress=decoded)
    )
    assert 'query="audit"' not in text
    assert 'popstream_shard_lag_records{partition="0",query="decide_ops"} 3.0' in text


def test_a_job_tells_what_an_embedded_one_does_and_how_its_records_are_spread() -> None:
    shards = [
        ShardReport(partition=number, next_offset=100, lag=lag, recent=recent)
        for number, lag, recent in ((0, 5, 90), (1, 0, 10), (2, 0, 20))
    ]
    report = JobReport(
        folder="/state",
        apply_seq=7,
        ops_lag=5,
        not_ready_reasons=["Kafka is away"],
        cluster=ClusterReport(shards=shards, skew=2.25, audit_failures=3, audit_overdue=17),
    )
    registry = CollectorRegistry()
    registry.register(ClusterMetrics(lambda: (), lambda: report))
    text = generate_latest(registry).decode()
    assert "popstream_ready 0.0" in text
    assert "popstream_ops_lag_records 5.0" in text
    assert 'popstream_shard_recent_records{partition="0"} 90.0' in text
    assert "popstream_shard_skew 2.25" in text
    assert "popstream_audit_failures 3.0" in text
    assert "popstream_audit_overdue_records 17.0" in text
