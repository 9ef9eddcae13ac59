"""Claim: a state goes from a folder to a cluster and back, and decides there what it would have decided where it was.

Method: a third of a generated log is decided over RocksDB, the second third on a cluster that took that state over, and
the state that comes back must be the one to which both thirds lead over plain dicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.memory_kv import MemoryKv
from broker_state.store.rocks_store import META, OUTBOX, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied, applied_of
from checkpoints.layout import JobFolder
from connectors.kafka.topic_admin import describe
from pipelines.apply_ops.quarantine import Quarantine, quarantine_change
from pipelines.cluster.checkpoint_identity import CheckpointIdentity, stored_identity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.migration.stored_state import Migrated, content_of_store
from pipelines.cluster.migration.to_cluster import beginning_of, migrate_to_cluster
from pipelines.cluster.migration.to_folder import migrate_to_folder
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Fenced, Invalid
from tests.support.cluster_log import Log, decide, decided_entries
from tests.support.in_process.folding import KERNEL_FAMILIES, records_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.decide_ops.decode import KafkaRecord

pytestmark = pytest.mark.cluster

RECORDS = 900


def owned() -> None:
    """Nothing else takes the prefix."""


def lost() -> None:
    message = "taken"
    raise Fenced(message)


def next_offsets(log: Log, records: list[KafkaRecord]) -> dict[int, int]:
    ends = dict.fromkeys(range(log.partition_count), 0)
    for record in records:
        ends[record.partition] = record.kafka_offset + 1
    return ends


def decided_on_disk(log: Log, path: Path, records: list[KafkaRecord], topic_id: str) -> None:
    """Decide records over RocksDB, all at once."""
    with RocksStore(path) as store:
        decided_entries(store, records)
        applied = Applied(
            state_epoch="before",
            ops_topic=log.topics.ops,
            ops_topic_id=topic_id,
            next_offset=next_offsets(log, records),
        )
        store.write_changes([(META, APPLIED_KEY, applied.encode()), quarantine_change(0, 3, "poison")])


def test_a_state_goes_to_a_cluster_and_back(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    connection = KafkaConnection(kafka.bootstrap_servers)
    log = Log(connection, topic_prefix, records_of(2, RECORDS))
    ops = describe(connection, [log.topics.ops])[log.topics.ops]
    third = len(log.records) // 3
    log.write(log.records[:third])
    state, checkpoint = tmp_path / "state", str(tmp_path / "checkpoint")
    decided_on_disk(log, state, log.records[:third], ops.topic_id)

    def migrate(store: RocksStore, require_owned: Callable[[], None]) -> Migrated:
        return migrate_to_cluster(
            cluster_spark,
            store,
            prefix=topic_prefix,
            ops=ops,
            log=read_log_bounds(connection, ops),
            begins={},
            checkpoint=checkpoint,
            require_owned=require_owned,
        )

    with RocksStore(state, read_only=True) as store:
        with pytest.raises(Fenced, match="taken"):
            migrate(store, lost)
        assert stored_identity(cluster_spark, checkpoint) is None
        migrated = migrate(store, owned)  # in place of what the one before has left
        assert migrated.keys == sum(1 for _ in content_of_store(store))
    identity = stored_identity(cluster_spark, checkpoint)
    assert identity is not None
    assert identity.former_epochs == ["before"]

    for run_id, part in (("first", log.records[third : 2 * third]), ("again", log.records[2 * third :])):
        log.write(part)
        beginning = beginning_of(cluster_spark, checkpoint, identity)
        decide(cluster_spark, log, run_id, decide_checkpoint(checkpoint), seed=identity.seed, beginning=beginning)

    back = JobFolder(tmp_path / "back")
    migrate_to_folder(
        cluster_spark, checkpoint, prefix=topic_prefix, ops=ops, log=read_log_bounds(connection, ops), folder=back
    )
    kv = MemoryKv()
    decided_entries(kv, log.records)
    with RocksStore(back.state, read_only=True) as store:
        found: dict[str, dict[bytes, bytes]] = {family: {} for family in KERNEL_FAMILIES}
        for family, key, value in content_of_store(store):
            found[family][key] = value
        for family in KERNEL_FAMILIES:
            assert found[family] == kv.families[family], family
        applied = applied_of(store)
        assert applied.next_offset == next_offsets(log, log.records)
        assert applied.former_epochs == [identity.state_epoch, "before"]
        assert [place for place, _ in Quarantine(store)] == [(0, 3)]


def test_a_state_that_cannot_be_taken_over_is_refused(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    connection = KafkaConnection(kafka.bootstrap_servers)
    log = Log(connection, topic_prefix, records_of(2, 30))
    ops = describe(connection, [log.topics.ops])[log.topics.ops]
    log.write(log.records)
    state = tmp_path / "state"
    decided_on_disk(log, state, log.records, ops.topic_id)
    found = read_log_bounds(connection, ops)

    def migrate(name: str, log_found: object = found) -> None:
        with RocksStore(state, read_only=True) as store:
            migrate_to_cluster(
                cluster_spark,
                store,
                prefix=topic_prefix,
                ops=ops,
                log=log_found,  # type: ignore[arg-type]
                begins={},
                checkpoint=str(tmp_path / name),
                require_owned=owned,
            )

    migrate("taken")
    with pytest.raises(Invalid, match="has a state already"):
        migrate("taken")
    shorter = type(found)(
        topic=found.topic,
        topic_id=found.topic_id,
        first_offset={**found.first_offset, 0: found.end_offset[0] + 1},
        end_offset={**found.end_offset, 0: found.end_offset[0] + 1},
    )
    with pytest.raises(Corrupt, match="no longer has the records after the state"):
        migrate("log", shorter)
    with RocksStore(state) as store:
        store.write_changes([(OUTBOX, b"entry", b"undelivered")])
    with pytest.raises(Invalid, match="the outbox holds"):
        migrate("outbox")
    with pytest.raises(Invalid, match="is the state of prefix"):
        migrate_to_folder(
            cluster_spark,
            str(tmp_path / "taken"),
            prefix="another",
            ops=ops,
            log=found,
            folder=JobFolder(tmp_path / "back"),
        )
    assert isinstance(stored_identity(cluster_spark, str(tmp_path / "taken")), CheckpointIdentity)
