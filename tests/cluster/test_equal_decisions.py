"""Claim: a cluster decides a log as the embedded kernel does: answers, rows, letters, notifications and state.

Method: generated logs (tests/model/generator.py) with every kind of operation, repeated, misrouted and unreadable ones,
go to a topic and through Spark's operator. The query is stopped in the middle, and goes on with nothing in memory. What
left it for Kafka, and what Spark's own reader finds in the state store, are compared with the kernel over plain dicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.memory_kv import MemoryKv
from pipelines.cluster.outgoing import EntryKey
from popstream.kafka_connection import KafkaConnection
from tests.support.cluster_log import Left, Log, decide, decided_entries, left_by, stored_families
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

RECORDS = 1_500


@pytest.mark.parametrize("seed", [2, 5])
def test_a_cluster_decides_as_the_kernel_does(
    seed: int, cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records_of(seed, RECORDS))
    checkpoint = str(tmp_path / "checkpoint")
    middle = len(log.records) * 2 // 3
    log.write(log.records[:middle])
    decide(cluster_spark, log, f"{seed} first", checkpoint)
    log.write(log.records[middle:])
    decide(cluster_spark, log, f"{seed} second", checkpoint)

    kv = MemoryKv()
    left = left_by(decided_entries(kv, log.records))
    assert all(left.values()), "the log leads to something of each kind"
    found = Left()
    for record in log.read(log.topics.results):
        found.add_frame(record.partition, record.value)
    for record in log.read(log.topics.notifications):
        found.kinds["notifications"][record.key, record.value] += 1
    for record in log.read(log.internal.audit):
        found.add_audit(EntryKey.decode(record.key).kind, record.value)
    for kind in left:
        assert found.kinds[kind] == left[kind], kind
    families = stored_families(cluster_spark, checkpoint)
    for name in KERNEL_FAMILIES:
        assert families[name] == kv.families.get(name, {}), name
