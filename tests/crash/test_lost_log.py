"""Claim: a log that has lost what is to be decided stops the start, with a sentence that says what to do.

Method: a job decides a little and stops; then records beyond its position are deleted, as retention does, and later the
whole topic is deleted and made again.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.partitioner import ops_key, partition_of
from connectors.kafka.topics import Topics, TopicSettings, describe, ensure_topics
from tests.support.job_process import ROOT, JobProcess
from tests.support.left_behind import applied_of, end_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

START_S = 240.0
TOPICS = Topics.of("lost")
TICK = json.dumps({"v": 1, "type": "tick", "topic": "orders", "queue_id": 0}).encode()
PARTITION = partition_of(ops_key("orders", 0), 2)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), jars=kafka_jars(ROOT / "var")) as running:
        yield running.bootstrap_servers


def send_ticks(servers: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=servers)
    for _ in range(count):
        producer.send(TOPICS.ops, TICK, ops_key("orders", 0), partition=PARTITION)
    producer.close()


def refusal(servers: str, settings: dict[str, object]) -> str:
    """What the job says when it does not start."""
    with JobProcess(servers, settings) as job:
        assert job.wait(START_S) == 1, job.log_tail()
        return job.log_tail()


def test_retention_and_recreation_are_noticed_at_the_start(servers: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "folder": str(tmp_path / "job"),
        "topic_prefix": "lost",
        "ops_partitions": 2,
        "results_partitions": 2,
    }
    ensure_topics(servers, TOPICS, TopicSettings(ops_partitions=2, results_partitions=2))
    send_ticks(servers, 5)
    with JobProcess(servers, settings, until=end_offsets(servers, TOPICS.ops)) as job:
        assert job.wait(START_S) == 0, job.log_tail()
    assert applied_of(tmp_path / "job" / "state").next_offset[PARTITION] == 5
    send_ticks(servers, 5)
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.delete_records({TopicPartition(TOPICS.ops, PARTITION): 8})
        said = refusal(servers, settings)
        assert "Corrupt: lost.ops has lost records: restore a snapshot" in said
        assert f"partition {PARTITION} starts at 8, but is decided only up to 5" in said
        admin.delete_topics([TOPICS.ops])
    deadline = time.monotonic() + 30
    while describe(servers, [TOPICS.ops]) and time.monotonic() < deadline:
        time.sleep(0.1)
    ensure_topics(servers, TOPICS, TopicSettings(ops_partitions=2, results_partitions=2))
    send_ticks(servers, 9)
    assert "Corrupt: lost.ops was deleted and made again" in refusal(servers, settings)
    assert applied_of(tmp_path / "job" / "state").next_offset[PARTITION] == 5
