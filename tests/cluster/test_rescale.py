"""Claim: after a repartition of the state a cluster decides as before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_state.store.memory_kv import MemoryKv
from connectors.kafka.topic_admin import describe
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.rescale import rescale
from popstream.kafka_connection import KafkaConnection
from tests.support.cluster_log import Log, decide, decided_entries, stored_families
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of
from tests.support.in_process.memory_maps import SEED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

RECORDS = 600


def test_a_state_gets_another_number_of_partitions(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    connection = KafkaConnection(kafka.bootstrap_servers)
    log = Log(connection, topic_prefix, records_of(5, RECORDS))
    ops = describe(connection, [log.topics.ops])[log.topics.ops]
    checkpoint = str(tmp_path / "checkpoint")
    half = len(log.records) // 2
    log.write(log.records[:half])
    decide(cluster_spark, log, "before", decide_checkpoint(checkpoint))
    identity = msgspec.structs.replace(CheckpointIdentity.new(topic_prefix, ops), seed=SEED)
    rescaled = rescale(cluster_spark, checkpoint, identity, 3)
    assert rescaled.keys > 100
    metadata = cluster_spark.read.format("state-metadata").load(decide_checkpoint(checkpoint))
    assert {row.numPartitions for row in metadata.select("numPartitions").collect()} == {3}
    log.write(log.records[half:])
    decide(cluster_spark, log, "after", decide_checkpoint(checkpoint))
    kv = MemoryKv()
    decided_entries(kv, log.records)
    families = stored_families(cluster_spark, decide_checkpoint(checkpoint))
    for name in KERNEL_FAMILIES:
        assert families[name] == kv.families.get(name, {}), name
