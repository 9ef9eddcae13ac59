"""Claim: a job sends a trace of each micro-batch, flush, snapshot and maintenance, with what it has done.

Method: one job with Spark, Kafka and Delta; OpenTelemetry's SDK with its exporter in memory.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors.kafka.topic_admin import create_message_topic
from pipelines.process.job_traces import JobTraces
from pipelines.process.maintenance import Maintained
from tests.support.wire import Wire, start_job, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_all_that_a_job_does_is_in_traces(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Real maintenance takes a minute, and has tests of its own.
    done = Maintained(table="operations", compacted=7, into=1, removed=2)
    monkeypatch.setattr("pipelines.process.job.maintain", lambda *_: iter([done, done]))
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    orders = f"{topic_prefix}-orders"
    create_message_topic(kafka.connection, orders, 1)
    with contextlib.closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        producer.send(orders, b"mocha").get(30)
    job = start_job(
        spark, kafka.bootstrap_servers, tmp_path, topic_prefix, traces=JobTraces(provider), message_topics=orders
    )
    try:
        with Wire(job) as wire:

            def pop() -> object:
                answer = wire.ask("pop", orders, group="baristas", max_messages=1, invisible_time_ms=60_000)
                return answer.get("messages")

            wait_for(pop, job)
        builder = job.builder
        assert builder is not None
        wait_for(lambda: builder.unit_flush.flushed_rows, job)
        job.snapshot_loop.take_now()
        job._maintain()
    finally:
        job.stop()
    assert job.failure is None
    spans = exporter.get_finished_spans()
    roots = {span.name: span for span in spans if span.parent is None}
    assert roots.keys() == {"micro_batch", "flush", "flush_units", "snapshot", "maintenance"}
    assert not [span for span in spans if span.status.status_code.name == "ERROR"]
    batches = [span for span in spans if span.name == "micro_batch"]
    assert len({span.context.trace_id for span in batches if span.context}) == len(batches)
    facts = [dict(span.attributes or {}) for span in spans if span.name == "micro_batch"]
    assert sum(int(str(each["popstream.records"])) for each in facts) >= 2  # a dispatch and a pop
    assert {each["popstream.state_epoch"] for each in facts} == {job.applied.state_epoch}
    fetched = [dict(span.attributes or {}) for span in spans if span.name == "fetch"]
    assert any(each.get("popstream.bytes") for each in fetched)  # not of a micro-batch without records
    rows = [int(str((span.attributes or {})["popstream.rows"])) for span in spans if span.name == "flush"]
    assert sum(rows) == job.flush.flushed_rows > 0
    assert (roots["snapshot"].attributes or {})["popstream.snapshot_id"] == job.snapshot_loop.last.id  # type: ignore[union-attr]
    maintained = {"tables": 2, "compacted": 14, "into": 2, "removed": 4, "deleted": 0}
    assert roots["maintenance"].attributes == {f"popstream.{name}": count for name, count in maintained.items()}
