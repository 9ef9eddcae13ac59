"""Claim: a cluster decides a log as the embedded kernel does: answers, rows, letters, notifications and state.

Method: generated logs (tests/model/generator.py) with every kind of operation, repeated, misrouted and unreadable ones,
also with signed handles, and the histories of the conformance tests go to a topic and through Spark's operator. The
query is stopped in the middle, and goes on with nothing in memory. What left it for Kafka, and what Spark's own reader
finds in the state store, are compared with the kernel over plain dicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker_state.store.memory_kv import MemoryKv
from pipelines.cluster.decide.outgoing import EntryKey
from popstream.kafka_connection import KafkaConnection
from popstream.wire.handle import Signer
from popstream.wire.signing import KeyRing
from tests.conformance.golden import DATA
from tests.conformance.histories.history_runner import decided_in
from tests.support.cluster_log import Left, Log, decide, decided_entries, left_by, stored_families, with_signed_handles
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

RECORDS = 1_500
HISTORIES = ("own_histories.jsonl", "rocketmq_concurrent_histories.jsonl", "rocketmq_orderly_histories.jsonl")


@pytest.mark.parametrize("seed", [2, 5])
def test_a_cluster_decides_as_the_kernel_does(
    seed: int, cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records_of(seed, RECORDS))
    left = compared(cluster_spark, log, tmp_path)
    assert all(left.values()), "the log leads to something of each kind"


def test_a_cluster_with_signed_handles_decides_as_the_kernel_does(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    signer = Signer(KeyRing.of({"2031": b"of the tests alone"}, active="2031"))
    records = with_signed_handles(records_of(3, RECORDS), signer)
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records)
    left = compared(cluster_spark, log, tmp_path, signer)
    answers = b"".join(answer for _, answer in left["answers"])
    assert b".2031." in answers, "handles are signed"
    assert b'"code":16' in answers, "some lacked the signature"


def test_a_cluster_decides_the_conformance_histories_as_the_kernel_does(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    records = [record for name in HISTORIES for history in decided_in(DATA / name) for record in history]
    assert len({record.key for record in records}) > 100
    compared(cluster_spark, Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records), tmp_path)


def compared(spark: SparkSession, log: Log, folder: Path, signer: Signer | None = None) -> Mapping[str, Counter[Any]]:
    """Decide a log on the cluster, with a stop in the middle, and by the kernel; return what has left both."""
    checkpoint = str(folder / "checkpoint")
    middle = len(log.records) * 2 // 3
    log.write(log.records[:middle])
    decide(spark, log, f"{log.prefix} first", checkpoint, signer=signer)
    log.write(log.records[middle:])
    decide(spark, log, f"{log.prefix} second", checkpoint, signer=signer)

    kv = MemoryKv()
    left = left_by(decided_entries(kv, log.records, signer))
    found = Left()
    for record in log.read(log.topics.results):
        found.add_frame(record.partition, record.value)
    for record in log.read(log.topics.notifications):
        found.kinds["notifications"][record.key, record.value] += 1
    for record in log.read(log.internal.audit):
        found.add_audit(EntryKey.decode(record.key).kind, record.value)
    for kind in left:
        assert found.kinds[kind] == left[kind], kind
    families = stored_families(spark, checkpoint)
    for name in KERNEL_FAMILIES:
        assert families[name] == kv.families.get(name, {}), name
    return left
