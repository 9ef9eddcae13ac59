"""The operator of the cluster's query: hands the records of each partition to its shard, and yields what leaves.

A shard stays in the memory of the Python worker between micro-batches. It is used again if Spark's state is the one
that it left; after the loss of an executor, and on a worker that has not seen it lately, it is loaded anew.
"""

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from pipelines.cluster.decide.kept_shards import KeptShards
from pipelines.cluster.decide.outgoing import OutgoingRecord, Outlet, deadlines_record, records_of
from pipelines.cluster.decide.packed_records import Payload, bounded_slices
from pipelines.cluster.decide.rare_collection import RareCollection
from pipelines.cluster.decide.shard import Shard, ShardMeta, ShardSettings
from pipelines.cluster.decide.shard_attempts import WHOLE_ATTEMPTS_MAX, ShardAttempts
from pipelines.cluster.decide.shard_rows import META_MAP
from pipelines.cluster.decide.skipped_records import require_no_records_between
from pipelines.cluster.decide.spark_maps import open_maps, open_value
from popstream.kafka_connection import KafkaConnection

__all__ = ["ShardProcessor"]

SPARK_BATCH_ID = "streaming.sql.batchId"
"""Spark's name of the number of the micro-batch among the local properties of a task."""

_shards = KeptShards()
_collection = RareCollection()


class ShardProcessor(StatefulProcessor):
    """Decides the records of the partitions that Spark gives to this task.

    Args:
        settings: What all shards decide by.
        connection: The Kafka, for notes after a worker has ended twice.
        prefix: Prefix of the job's topics.
        audit_partitions: Partitions of the audit topic.
        state_epoch: Identity of the state.
    """

    def __init__(
        self, settings: ShardSettings, connection: KafkaConnection, prefix: str, audit_partitions: int, state_epoch: str
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._state_epoch = state_epoch
        self._topics = Topics.of(prefix)
        self._internal = ClusterTopics.of(prefix)
        self._audit_partitions = audit_partitions

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; called at the start of each task."""
        self._maps = open_maps(handle)
        self._meta = open_value(handle, "meta")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803, ANN401 - Spark's names
        """Decide the records of one partition."""
        payloads: list[Payload] = []
        for row in rows:
            partition: int = row.ops_partition
            payloads.append(Payload(row.first_offset, row.payload))
        attempts = self._attempts(partition)
        try:
            for record in self._decided(partition, payloads, attempts):
                yield record.row
        except BaseException:
            # Its memory may be ahead of the state.
            _shards.drop((self._settings.run_id, partition))
            raise
        finally:
            if attempts is not None:
                attempts.close()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: ARG002, N802, N803, ANN401 - Spark's names
        """Store one row of a state that came from elsewhere; Spark calls it with the first micro-batch."""
        if initialState.map == META_MAP:
            self._meta.put(bytes(initialState.value))
        else:
            getattr(self._maps, initialState.map).put(bytes(initialState.key), bytes(initialState.value))

    def _decided(
        self, partition: int, payloads: list[Payload], attempts: ShardAttempts | None
    ) -> Iterator[OutgoingRecord]:
        shard = self._shard(partition, min(payload.first_offset for payload in payloads))
        committed = shard.meta.ends
        outlet = Outlet(self._state_epoch, partition, self._topics, self._internal, self._audit_partitions)
        newest_ms = 0
        for records in bounded_slices(partition, payloads):
            newest_ms = max(newest_ms, *(record.timestamp_ms for record in records))
            parts = shard.parts(records, attempts)
            while True:
                begins = shard.meta.ends
                with _collection.decision():
                    entries = next(parts, None)
                if entries is None:
                    break
                yield from records_of(entries, outlet, committed, begins)
        self._meta.put(shard.meta.encode())
        yield deadlines_record(shard.earliest_deadlines(), newest_ms, partition, self._internal)

    def _attempts(self, partition: int) -> ShardAttempts | None:
        """Return where records are noted, if the task or the job has ended too often without it."""
        context = TaskContext.get()
        if context is None:
            return None
        is_noted = context.getLocalProperty(SPARK_BATCH_ID) == str(self._settings.noted_micro_batch)
        if context.attemptNumber() < WHOLE_ATTEMPTS_MAX and not is_noted:
            return None
        return ShardAttempts(self._connection, self._internal.attempts, partition, self._state_epoch)

    def close(self) -> None:
        """Do nothing: Spark closes the state."""

    def _shard(self, partition: int, begin: int) -> Shard:
        stored = self._meta.get()
        meta = ShardMeta() if stored is None else ShardMeta.decode(stored)
        place = self._settings.run_id, partition
        shard = _shards.get(place, meta)
        if shard is not None:
            shard.bind(self._maps)
            return shard
        if stored is not None:
            require_no_records_between(self._connection, self._topics.ops, partition, meta.next_offset, begin)
        shards_max = KeptShards.limit_for(self._settings.shards_per_task)
        dead = self._settings.dead.get(partition, frozenset())
        return _shards.load(place, shards_max, lambda: Shard(self._settings, self._maps, meta, dead))
