"""Claim: after a repartition of the state a cluster decides as before it, also if a crash or a stop came before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from broker_state.store.memory_kv import MemoryKv
from connectors.delta.rows import decode_rows
from connectors.kafka.topic_admin import describe
from pipelines.cluster.audit.entry_rows import rows_from
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.decide.extent import Cursors
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.cluster.rescale import rescale
from pipelines.cluster.state_partitions import plan_rescale, state_partitions
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import EntryKind
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid
from tests.support.cluster_log import Log, decide, decided_entries, left_by, stored_families, take_last_commit
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of
from tests.support.in_process.memory_maps import SEED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.decide_ops.entry import Entry

pytestmark = pytest.mark.cluster

RECORDS = 600


def owned() -> None:
    """Nothing else takes the prefix."""


def begun(kafka: EmbeddedKafka, prefix: str, *, seed: int) -> tuple[Log, CheckpointIdentity]:
    """A log, and whose the state is that is decided from it."""
    connection = KafkaConnection(kafka.bootstrap_servers)
    log = Log(connection, prefix, records_of(seed, RECORDS))
    ops = describe(connection, [log.topics.ops])[log.topics.ops]
    return log, msgspec.structs.replace(CheckpointIdentity.new(prefix, ops), seed=SEED)


def require_decided(spark: SparkSession, log: Log, deciding: str) -> list[Entry]:
    """The state is that of the kernel; return what leaves the kernel."""
    kv = MemoryKv()
    entries = decided_entries(kv, log.records)
    families = stored_families(spark, deciding)
    for name in KERNEL_FAMILIES:
        assert families[name] == kv.families.get(name, {}), name
    return entries


def test_a_state_gets_another_number_of_partitions(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    log, identity = begun(kafka, topic_prefix, seed=5)
    checkpoint = str(tmp_path / "checkpoint")
    half = len(log.records) // 2
    log.write(log.records[:half])
    decide(cluster_spark, log, "before", decide_checkpoint(checkpoint))
    rescaled = rescale(cluster_spark, checkpoint, identity, 3, require_owned=owned)
    assert rescaled.keys > 100
    metadata = cluster_spark.read.format("state-metadata").load(decide_checkpoint(checkpoint))
    assert {row.numPartitions for row in metadata.select("numPartitions").collect()} == {3}
    log.write(log.records[half:])
    decide(cluster_spark, log, "after", decide_checkpoint(checkpoint))
    require_decided(cluster_spark, log, decide_checkpoint(checkpoint))


def test_a_state_is_rescaled_although_its_last_micro_batch_is_not_committed(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    """As a crash leaves it, or a stop under load: its records are decided anew, in other micro-batches."""
    log, identity = begun(kafka, topic_prefix, seed=6)
    checkpoint = str(tmp_path / "checkpoint")
    deciding = decide_checkpoint(checkpoint)
    half = len(log.records) // 2
    log.write(log.records[:half])
    decide(cluster_spark, log, "before", deciding)
    sent = [*log.read(log.internal.audit)]
    last = take_last_commit(Path(deciding))
    found = state_partitions(cluster_spark, deciding)
    assert found is not None
    assert (found.partitions, found.committed, found.planned) == (2, last - 1, last)

    # A rescale that is killed once it has begun.
    plan_rescale(cluster_spark, deciding, found, 3)
    with pytest.raises(Invalid, match="finish it with `popstream rescale --partitions 3`"):
        rescale(cluster_spark, checkpoint, identity, 4, require_owned=owned)
    rescale(cluster_spark, checkpoint, identity, 3, require_owned=owned)
    with pytest.raises(Invalid, match="has 3 partitions already"):
        rescale(cluster_spark, checkpoint, identity, 3, require_owned=owned)

    log.write(log.records[half:])
    decide(cluster_spark, log, "after", deciding)
    left = left_by(require_decided(cluster_spark, log, deciding))
    entries = [*log.read(log.internal.audit)]
    assert len(entries) > len(sent)
    rows = rows_written(entries)
    for table in ("operations", "deliveries"):
        assert rows[table] == left[table].total(), table


def rows_written(entries: Iterable[Any]) -> Counter[str]:
    """The rows that the audit query writes, by table: those that are repeated once."""
    cursors, rows = Cursors({}), Counter[str]()
    for entry in entries:
        key = EntryKey.decode(entry.key)
        begin = cursors.take(key)
        if begin is not None and key.kind == EntryKind.AUDIT:
            table, data = read_slice(entry.value)
            rows[table] += rows_from(decode_rows(table, [data]), begin).num_rows
    return rows
