"""A record under which the Python worker ends: found, quarantined and answered, and all others are decided."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.cluster.decide import decide_query
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from tests.cluster.dying_shard import POISON, DyingProcessor
from tests.model.generator import PARTITIONS
from tests.model.reference_model import Record
from tests.support.cluster_log import Log, decide, stored_quarantine

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

NOW_MS = 1_700_000_000_000


def record(at: int, **fields: Any) -> Record:
    key = ops_key("t", 0)
    full = {"v": 1, "topic": "t", "queue_id": 0, "reply_to": 0, "op_id": f"op-{at}", **fields}
    return Record(partition_of(key, PARTITIONS), at, NOW_MS, key, json.dumps(full).encode())


def test_a_record_under_which_the_worker_ends_is_quarantined(
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operations = [record(0, type="declare", topic_id="t"), *(record(at, type="tick") for at in range(1, 20))]
    operations[11] = record(11, type="tick", op_id=POISON)
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, operations, unreadable=())
    log.write(log.records)
    monkeypatch.setattr(decide_query, "ShardProcessor", DyingProcessor)
    checkpoint = str(tmp_path / "checkpoint")
    decide(cluster_spark, log, "poison", checkpoint)
    answers = {
        answer["op_id"]: answer
        for frame in log.read(log.topics.results)
        for answer in json.loads(frame.value)["answers"]
    }
    assert len(answers) == len(log.records) == len(operations)
    assert answers[POISON]["detail"].startswith("QUARANTINED: the process ended each time")
    assert [op_id for op_id, answer in answers.items() if answer["code"]] == [POISON]
    assert [list(errors) for errors in stored_quarantine(cluster_spark, checkpoint).values()] == [[11]]
