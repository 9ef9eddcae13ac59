"""Takes the state of a job on a cluster, which must not run, to the folder of an embedded job."""

import uuid
from collections.abc import Iterable

from pyspark.sql import SparkSession

from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound, lost_records, require_same_log
from connectors.kafka.topic_admin import TopicFacts
from pipelines.apply_ops.quarantine import quarantine_change
from pipelines.cluster.checkpoint_identity import identity_of_checkpoint
from pipelines.cluster.decide_query import checkpoint_of
from pipelines.cluster.migration.shard_rows import content_of
from pipelines.cluster.migration.stored_state import Migrated, content_of_store, digest_of, rows_of_checkpoint
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["migrate_to_folder"]

_CHANGES_AT_ONCE = 50_000


def migrate_to_folder(
    spark: SparkSession, checkpoint: str, *, prefix: str, ops: TopicFacts, log: LogFound, folder: JobFolder
) -> Migrated:
    """Write the newest committed state of a checkpoint to a folder that has none.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the state on the cluster; it is only read.
        prefix: Prefix of the job's topics.
        ops: Its ops topic.
        log: The log, as found.
        folder: Folder of the embedded job.

    Raises:
        Invalid: The folder has a state, or the checkpoint is of another prefix.
        Corrupt: The log is not the one that was decided, or no longer reaches back to the state.
        Unavailable: The place cannot be reached.
    """
    if folder.state.exists():
        message = f"{folder.root} has a state already: name another folder"
        raise Invalid(message, subject=str(folder.root))
    identity = identity_of_checkpoint(spark, checkpoint, prefix, ops)
    rows = list(rows_of_checkpoint(spark, checkpoint_of(checkpoint), ops.partition_count))
    metas, content = content_of(rows, identity.seed)
    first_offset = {number: identity.first_offset.get(number, 0) for number in range(ops.partition_count)}
    applied = Applied(
        state_epoch=uuid.uuid4().hex,
        ops_topic=ops.name,
        ops_topic_id=identity.ops_topic_id,
        next_offset=first_offset | {partition: meta.next_offset for partition, meta in metas.items()},
        former_epochs=list(identity.epochs),
    )
    require_same_log(applied, log)
    if lost := lost_records(applied.next_offset, log):
        message = f"{log.topic} no longer has the records after the state"
        raise Corrupt(message, subject=log.topic, details=lost)
    quarantined = [
        quarantine_change(partition, kafka_offset, error)
        for partition, meta in metas.items()
        for kafka_offset, error in meta.quarantined.items()
    ]
    with RocksStore(folder.state) as state:
        _write(state, content)
        state.write_changes([*quarantined, (META, APPLIED_KEY, applied.encode())])
        migrated = digest_of(content_of_store(state))
    _, again = content_of(rows, identity.seed)
    if digest_of(again) != migrated:
        message = f"what was written to {folder.state} is not what was read: remove it, and try again"
        raise Corrupt(message, subject=str(folder.state))
    return migrated


def _write(state: RocksStore, content: Iterable[Change]) -> None:
    waiting: list[Change] = []
    for change in content:
        waiting.append(change)
        if len(waiting) == _CHANGES_AT_ONCE:
            state.write_changes(waiting)
            waiting = []
    state.write_changes(waiting)
