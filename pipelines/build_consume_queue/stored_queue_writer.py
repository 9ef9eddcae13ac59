"""The `QueueWriter` of the embedded job: the builder's store, its dispatches and its rows."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame

from broker_state.consume_queue import Scan, Units
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.dispatch_sender import DispatchSender
from pipelines.build_consume_queue.unit_flush import UnitFlush
from pipelines.build_units.unit_tables import units_by_queue
from pipelines.decide_ops.entry import EntryKind
from pipelines.failpoints import failpoint
from popstream.topics.message_topics import MessageTopic
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName

__all__ = ["StoredQueueWriter"]

ONE_TASK_RECORDS_MAX = 10_000
"""So few records are read by one task: a task for each queue would take longer than to read them."""


class _ReadUnits(NamedTuple):
    units: dict[QueueName, Units]
    records: int


class StoredQueueWriter:
    """The `QueueWriter` of the embedded job.

    Args:
        builder: Its store; nothing else may append to it.
        sender: Sends the dispatches.
        unit_flush: Writes the units to Delta.
    """

    def __init__(self, builder: Builder, sender: DispatchSender, unit_flush: UnitFlush) -> None:
        self._builder = builder
        self._sender = sender
        self._unit_flush = unit_flush
        self.lock = builder.lock
        self.queues = builder.queues

    def update_topics(self, topics: Mapping[str, MessageTopic], queue_types: Mapping[str, QueueType]) -> bool:
        """See `QueueWriter.update_topics`."""
        with self.lock:  # the operations of a queue are sent in the order of the WriteBatches
            self._sender.send(self._builder.update_topics(topics, queue_types))
        return False

    def wait_for_room(self, timeout_s: float) -> bool:
        """See `QueueWriter.wait_for_room`."""
        return self._sender.wait_for_room(timeout_s)

    def read(self, frame: DataFrame, ends: Mapping[QueueName, int], batch_topics: frozenset[str]) -> _ReadUnits:
        """See `QueueWriter.read`."""
        planned = sum(end - self.queues[queue].end_offset for queue, end in ends.items())
        if planned <= ONE_TASK_RECORDS_MAX:
            frame = frame.coalesce(1)
        table = frame.toArrow()
        return _ReadUnits(dict(units_by_queue(table, batch_topics=batch_topics)), table.num_rows)

    def write(self, read: _ReadUnits, ends: Mapping[QueueName, int]) -> int:
        """See `QueueWriter.write`."""
        with self.lock:
            scans = {}
            for queue, end in ends.items():
                first_offset = self.queues[queue].end_offset
                if end > first_offset:
                    scans[queue] = Scan(first_offset, end, read.units.get(queue, _NO_UNITS).between(first_offset, end))
            entries = self._builder.append(scans)
            failpoint("build_dispatch")
            self._sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
        return read.records

    def truncate(self, queue: QueueName, end_offset: int, *, is_same_log: bool = True) -> int:
        """See `QueueWriter.truncate`. All units are in Delta before."""
        self._unit_flush.flush()
        return self._builder.truncate(queue, end_offset, is_same_log=is_same_log)


_NO_UNITS = Units.of([])
