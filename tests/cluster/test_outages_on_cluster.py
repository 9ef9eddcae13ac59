"""Claims: with the tables away a job on a cluster decides, until Kafka would delete what waits, and goes on when they
are back; with Kafka away it ends, and the next start goes on. Nothing is lost or twice in either case.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pipelines.cluster.checkpoint_layout import DECIDE_OPS
from pipelines.cluster.watch import audit_retention
from popstream import Consumer, Producer
from popstream.wire.base_errors import Unavailable
from tests.cluster.job_here import job_of, orders, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

KEEPS_MS = 8_000
HOUR_MS = 3_600_000


def leased_offsets(spark: SparkSession, tables: Path) -> list[int]:
    """The offsets of the messages that were leased, as often as the tables say so."""
    rows = spark.read.format("delta").load(str(tables / "deliveries")).where("step = 'leased'").collect()
    return sorted(offset for row in rows for offset in range(row["first_offset"], row["last_offset"] + 1))


def test_decisions_wait_before_kafka_deletes_what_the_tables_lack(
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka keeps all of it: only the watch takes the retention for short."""
    monkeypatch.setattr(audit_retention, "INTERVAL_S", 0.5)
    monkeypatch.setattr(audit_retention, "retention_ms", lambda *_: KEEPS_MS)
    topic, client = orders(kafka, topic_prefix, queues=1)
    tables, away = tmp_path / "tables", tmp_path / "away"
    numbers = itertools.count()
    with (
        job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job,
        Producer(**client, dispatch=True) as producer,
        Consumer(**client, group="g", renewal=None) as consumer,
    ):
        watch = job.answers._watch

        def send() -> None:
            producer.send(topic, b"%d" % next(numbers)).result(60)

        def is_held_back() -> bool:
            send()
            return watch._retention.holds_back

        leased: list[bytes | None] = []

        def lease(count: int) -> bool:
            leased.extend(message.value for message in consumer.pop(topic, invisible_time_ms=HOUR_MS))
            return len(leased) == count

        send()
        producer.flush()
        until(lambda: lease(1), job)
        until(lambda: leased_offsets(cluster_spark, tables) == [0], job)
        tables.rename(away)
        tables.write_text("where the volume was mounted")
        until(is_held_back, job)
        assert any("nothing is decided" in reason for reason in watch.not_ready_reasons())
        until(lambda: all(query.name != DECIDE_OPS for query in watch.queries()), job)
        decided = watch.progress.decided()
        send()
        until(lambda: watch._log.lag > 0, job)
        assert watch.progress.decided() == decided
        tables.unlink()
        away.rename(tables)
        until(lambda: not watch.not_ready_reasons(), job)
        sent = next(numbers)
        until(lambda: lease(sent), job)
        assert leased == [b"%d" % number for number in range(sent)]
        until(lambda: len(leased_offsets(cluster_spark, tables)) >= sent, job)
    assert leased_offsets(cluster_spark, tables) == [*range(sent)]


def test_a_job_ends_without_its_kafka_and_the_next_start_goes_on(
    cluster_spark: SparkSession, own_kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    topic, client = orders(own_kafka, topic_prefix, queues=1)
    with job_of(cluster_spark, own_kafka, topic_prefix, tmp_path) as job:
        with Producer(**client, dispatch=True) as producer:
            for body in (b"1", b"2"):
                producer.send(topic, body).result(60)
        consumer = Consumer(**client, group="g", renewal=None)
        until(lambda: bool(consumer.pop(topic, max_messages=1, invisible_time_ms=HOUR_MS)), job)
        consumer.close(release=False)
        own_kafka.kill()
        assert job.wait(120)
        assert isinstance(job.failure, Unavailable), job.failure
    own_kafka.restart()
    with (
        job_of(cluster_spark, own_kafka, topic_prefix, tmp_path) as job,
        Consumer(**client, group="g", renewal=None) as consumer,
    ):
        until(lambda: [each.value for each in consumer.pop(topic, invisible_time_ms=HOUR_MS)] == [b"2"], job)
        until(lambda: leased_offsets(cluster_spark, tmp_path / "tables") == [0, 1], job)
