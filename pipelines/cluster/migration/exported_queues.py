"""Writes the consume queues of a checkpoint to a store as the builder of an embedded job has it."""

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from broker_state.store.keys import queue_prefix
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import BUILDER_FAMILIES, QUEUES, UNITS, RocksStore
from pipelines.build_consume_queue.stored_ids import counts_change
from pipelines.build_units.accepted_ids import IdCounts
from pipelines.cluster.checkpoint_layout import units_checkpoint
from pipelines.cluster.migration.stored_state import fill, stored_map
from pipelines.cluster.queues.queue_shard import QueueMeta
from popstream.exchange.partitioner import queue_of_ops_key

__all__ = ["export_queues"]


def export_queues(spark: SparkSession, checkpoint: str, path: Path, topic: str | None = None) -> None:
    """Write the queues after the last committed micro-batch to a new store. What is known of ids is left out.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the state on the cluster, whose query `build_units` has committed.
        path: The folder of the store, which does not exist.
        topic: Only the queues of this topic.
    """
    with RocksStore(path, BUILDER_FAMILIES) as store:
        fill(store, _changes(spark, units_checkpoint(checkpoint), topic))


def _changes(spark: SparkSession, query_checkpoint: str, topic: str | None) -> Iterator[Change]:
    for name in ("meta", "units"):
        frame = stored_map(spark, query_checkpoint, name)
        if topic is not None:
            frame = frame.where(frame["key.queue"].startswith(f"{topic}\0"))
        for row in frame.toLocalIterator():
            queue = queue_of_ops_key(row["key"]["queue"].encode())
            if name == "units":
                yield UNITS, queue_prefix(*queue) + bytes(row["at"]), bytes(row["value"])
                continue
            meta = QueueMeta.decode(bytes(row["value"]))
            if meta.record is not None:
                yield QUEUES, queue_prefix(*queue), meta.record.encode()
                yield counts_change(queue, IdCounts(0, meta.forgotten_early))
