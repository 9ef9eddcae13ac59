"""The operator that builds consume queues: hands the records of each queue to its shard, and yields what leaves."""

import gc
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from pipelines.build_units.accepted_ids import DedupRule
from pipelines.cluster.audit.unit_entries import unit_records
from pipelines.cluster.decide.outgoing import OutgoingRecord
from pipelines.cluster.decide.spark_maps import open_map, open_value
from pipelines.cluster.queues.kept_ids import KeptIds
from pipelines.cluster.queues.queue_log import decode_log_record
from pipelines.cluster.queues.queue_shard import BuiltQueue, BuiltUnits, QueueMeta, QueueShard
from popstream.exchange.partitioner import ops_key, partition_of, queue_of_ops_key
from popstream.wire.command import AdminCommand, Command, encode_command
from popstream.wire.queue_name import QueueName
from popstream.wire.signing import SIGNED_BEFORE_MS_MAX, AdminKey, sign_operation

__all__ = ["QueueProcessor", "UnitSettings", "signed_at_ms"]

_kept_ids = KeptIds()


class UnitSettings(NamedTuple):
    """What all queues of a job are built by.

    Attributes:
        run_id: Identity of the running query: what is in memory belongs to it.
        state_epoch: Identity of the state.
        ops_partitions: Partitions of the ops topic.
        audit_partitions: Partitions of the audit topic.
        rule: Which repeats are duplicates.
        admin_key: Signs what goes to the ops topic; None: it is not signed.
    """

    run_id: str
    state_epoch: str
    ops_partitions: int
    audit_partitions: int
    rule: DedupRule
    admin_key: AdminKey | None = None


class QueueProcessor(StatefulProcessor):
    """Builds the queues that Spark gives to this task.

    Args:
        settings: What all queues are built by.
        prefix: Prefix of the job's topics.
    """

    def __init__(self, settings: UnitSettings, prefix: str) -> None:
        self._settings = settings
        self._topics = Topics.of(prefix)
        self._internal = ClusterTopics.of(prefix)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; called at the start of each task."""
        self._meta = open_value(handle, "meta")
        self._units = open_map(handle, "units")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803, ANN401 - Spark's names
        """Build one queue."""
        (name,) = key
        queue = queue_of_ops_key(name.encode())
        stored = self._meta.get()
        before = QueueMeta() if stored is None else QueueMeta.decode(stored)
        ids = _kept_ids.take(self._settings.run_id, name, before)
        shard = QueueShard(queue, self._units, before, self._settings.rule, ids)
        ordered: list[tuple[int, bytes]] = []
        planned_ms = 0
        for row in rows:
            ordered.append((row.log_offset, bytes(row.value)))
            planned_ms = row.planned_ms
        ordered.sort()
        at_ms = signed_at_ms(planned_ms, int(time.time() * 1000))
        gc.disable()  # many objects and no cycles: a collection now would only cost time
        try:
            built = shard.apply((log_offset, decode_log_record(value)) for log_offset, value in ordered)
        finally:
            gc.enable()
        _kept_ids.keep(name, shard.meta, shard.ids)
        if shard.meta == before:
            return
        self._meta.put(shard.meta.encode())
        for record in self._outgoing(queue, name, before, shard.meta, built, at_ms):
            yield record.row

    def close(self) -> None:
        """Do nothing: Spark closes the state."""

    def _outgoing(
        self, queue: QueueName, name: str, before: QueueMeta, meta: QueueMeta, built: list[BuiltUnits], at_ms: int
    ) -> Iterator[OutgoingRecord]:
        settings = self._settings
        key = ops_key(*queue)
        partition = partition_of(key, settings.ops_partitions)
        for each in built:
            for number, command in enumerate(each.commands):
                value = self._encoded(command, each.log_offset, number, at_ms)
                yield OutgoingRecord(self._topics.ops, partition, key, value)
        units = ((each.log_offset, each.units) for each in built)
        yield from unit_records(
            queue, settings.state_epoch, units, before.end, self._internal.audit, settings.audit_partitions
        )
        yield OutgoingRecord(self._internal.queues, 0, name.encode(), BuiltQueue(settings.state_epoch, meta).encode())

    def _encoded(self, command: Command, log_offset: int, number: int, at_ms: int) -> bytes:
        """Return an operation with an op_id, which is the same when a task is repeated, signed at a time."""
        op_id = f"build-{self._settings.state_epoch}-{log_offset}-{number}"
        value = encode_command(msgspec.structs.replace(command, op_id=op_id))
        admin_key = self._settings.admin_key
        if admin_key is None or not isinstance(command, AdminCommand):
            return value
        return sign_operation(value, admin_key, ops_topic=self._topics.ops, at_ms=at_ms)


def signed_at_ms(planned_ms: int, now_ms: int) -> int:
    """Return the time at which operations of a micro-batch are signed: that of its plan, by the clock of the driver.

    A repeated task signs with the same bytes then, and clocks of executors do not count. Only a micro-batch that was
    planned too long ago, as before an outage, is signed anew: its signatures would be refused.

    Args:
        planned_ms: When it was planned.
        now_ms: The time here.
    """
    return planned_ms if now_ms - planned_ms < SIGNED_BEFORE_MS_MAX // 2 else now_ms
