"""Takes the state of an embedded job, which must not run, to a new checkpoint of a job on a cluster."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from broker_state.store.keys import read_queue_prefix
from broker_state.store.rocks_store import OUTBOX, RocksStore
from checkpoints.applied import applied_of
from checkpoints.reconcile import LogFound, lost_records, require_same_log
from checkpoints.replay import replay_of
from connectors.kafka.topic_admin import TopicFacts
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.cluster.checkpoint_identity import Beginnings, CheckpointIdentity, require_new, write_identity
from pipelines.cluster.decide.decide_query import Beginning
from pipelines.cluster.decide.shard import QueueDeadline, ShardMeta
from pipelines.cluster.decide.shard_keys import shard_keys
from pipelines.cluster.decide.shard_rows import (
    DEADLINES_MAP,
    PROGRESS_MAPS,
    Progress,
    ShardRow,
    content_of,
    deadlines_of,
    progress_of,
    shard_rows,
)
from pipelines.cluster.migration.stored_state import Migrated, content_of_store, digest_of, together
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["beginning_deadlines", "beginning_of", "beginning_progress", "beginning_rows", "migrate_to_cluster"]

_ROWS_AT_ONCE = 100_000
_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("ops_partition", pa.int32()),
        ("map", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def migrate_to_cluster(
    spark: SparkSession,
    state: RocksStore,
    *,
    prefix: str,
    ops: TopicFacts,
    log: LogFound,
    begins: Beginnings,
    checkpoint: str,
    require_owned: Callable[[], None],
) -> Migrated:
    """Write the state beside a new checkpoint, from which the first start of the job on the cluster takes it.

    Args:
        spark: A session.
        state: The state, or that of a snapshot; it is only read.
        prefix: Prefix of the job's topics.
        ops: Its ops topic.
        log: The log, as found.
        begins: The fields of the identity that say how topics are now (`begins_now`).
        checkpoint: Path or URL of the state on the cluster; nothing may be there.
        require_owned: Raises if something else may decide the log by now.

    Raises:
        Invalid: There is a state already, or the outbox holds what is not delivered yet.
        Corrupt: The log is not the one that was decided, or no longer reaches back to the state.
        Unavailable: The place cannot be reached.
    """
    require_new(spark, checkpoint)
    applied = applied_of(state)
    require_same_log(applied, log)
    if lost := lost_records(applied.next_offset, log):
        message = f"{log.topic} no longer has the records after the state: take a newer one"
        raise Corrupt(message, subject=log.topic, details=lost)
    if any(True for _ in state.scan(OUTBOX, b"")):
        message = (
            "the outbox holds answers or rows that are not delivered: start the embedded job once more, wait until"
            " `popstream status` shows an empty outbox, and stop it"
        )
        raise Invalid(message, subject=str(state.path))
    first_offset = {number: applied.next_offset.get(number, 0) for number in range(ops.partition_count)}
    identity = CheckpointIdentity.new(
        prefix,
        ops,
        former_epochs=list(applied.epochs),
        first_offset=first_offset,
        since_loss=replay_of(state).since_loss,
        **begins,
    )
    rows = shard_rows(
        content_of_store(state),
        {partition: ShardMeta(next_offset) for partition, next_offset in first_offset.items()},
        lambda queue: partition_of(ops_key(*read_queue_prefix(queue)), ops.partition_count),
        quarantined=_quarantined(state),
        seed=identity.seed,
        newest_ms=time.time_ns() // 1_000_000,
    )
    _write(spark, rows, shard_keys(spark, ops.partition_count), _rows_url(checkpoint))
    migrated = digest_of(content_of_store(state))
    if digest_of(content_of(beginning_rows(spark, checkpoint, ops.partition_count), identity.seed)) != migrated:
        message = f"what was written to {checkpoint} is not what was read: remove it, and try again"
        raise Corrupt(message, subject=checkpoint)
    require_owned()  # only with an identity it is a state
    write_identity(spark, checkpoint, identity)
    return migrated


def beginning_of(spark: SparkSession, checkpoint: str, identity: CheckpointIdentity) -> Beginning | None:
    """Return where the state of a checkpoint began, if it came from elsewhere."""
    if not identity.first_offset:
        return None
    rows = spark.read.parquet(_rows_url(checkpoint)).select("shard", "map", "key", "value")
    return Beginning(rows, identity.first_offset)


def beginning_rows(spark: SparkSession, checkpoint: str, ops_partitions: int) -> Iterator[ShardRow]:
    """Yield what the maps of shards held at the beginning of a state that came from elsewhere, shard by shard."""
    return _read(together(spark.read.parquet(_rows_url(checkpoint)), "ops_partition", ops_partitions))


def beginning_progress(spark: SparkSession, checkpoint: str) -> Progress:
    """Return how far the shards were at the beginning of a state that came from elsewhere."""
    frame = spark.read.parquet(_rows_url(checkpoint))
    return progress_of(_read(frame.where(frame["map"].isin(*PROGRESS_MAPS))))


def beginning_deadlines(spark: SparkSession, checkpoint: str) -> dict[int, list[QueueDeadline]]:
    """Return the queues of each shard that were due next at the beginning of a state that came from elsewhere."""
    frame = spark.read.parquet(_rows_url(checkpoint))
    return deadlines_of(_read(frame.where(frame["map"] == DEADLINES_MAP)))


def _quarantined(state: RocksStore) -> dict[int, dict[int, str]]:
    quarantined: dict[int, dict[int, str]] = defaultdict(dict)
    for (partition, kafka_offset), error in Quarantine(state):
        quarantined[partition][kafka_offset] = error
    return quarantined


def _rows_url(checkpoint: str) -> str:
    return f"{checkpoint}/beginning"


def _read(frame: DataFrame) -> Iterator[ShardRow]:
    for row in frame.select("ops_partition", "map", "key", "value").toLocalIterator():
        yield ShardRow(row.ops_partition, row.map, bytes(row.key), bytes(row.value))


def _write(spark: SparkSession, rows: Iterator[ShardRow], keys: list[int], url: str) -> None:
    """Write rows in place of those of a migration that was interrupted, which were no state yet."""
    mode = "overwrite"
    while waiting := [(keys[row.ops_partition], *row) for row in itertools.islice(rows, _ROWS_AT_ONCE)]:
        columns = zip(*waiting, strict=True)
        arrays = [pa.array(each, field.type) for each, field in zip(columns, _SCHEMA, strict=True)]
        spark.createDataFrame(pa.table(arrays, schema=_SCHEMA)).write.mode(mode).parquet(url)
        mode = "append"
