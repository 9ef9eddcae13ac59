"""What leaves a shard, as rows of the Kafka sink. Kafka is the outbox: a repeated task writes the same records again.

    topic               key                                    value
    results             -                                      frame of answers
    notifications       as in apply_ops                        the notification
    cluster_audit       EntryKey                               audit rows or a dead letter, as in entry.py
    cluster_deadlines   partition of the ops topic, decimal    MessagePack of Deadlines

The entries of a shard are in one partition of `cluster_audit`, those of each table in the order of the log. Nothing in
a key depends on how the log was cut into micro-batches, nor on the attempts that a task has taken (extent.py).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

import msgspec
from pyspark.sql import Row

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from pipelines.cluster.decide.extent import EXTENT_BYTES, KEY_FORMAT, START, Extent
from pipelines.cluster.decide.shard import LETTERS, QueueDeadline, order_number
from pipelines.decide_ops.entries import TABLE_NUMBERS, read_frame, read_notifications
from pipelines.decide_ops.entry import EntryKind, LogPlace, PlacedEntry

__all__ = ["OUTGOING_SCHEMA", "Deadlines", "EntryKey", "OutgoingRecord", "Outlet", "deadlines_record", "records_of"]

OUTGOING_SCHEMA = "topic string, partition int, key binary, value binary"

_HEAD = struct.Struct(">IB")
_NAMES = {number: table for table, number in TABLE_NUMBERS.items()} | {LETTERS: "dead letters"}


class OutgoingRecord(NamedTuple):
    """A row of the sink."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes

    @property
    def row(self) -> Row:
        """The same for Spark."""
        return Row(**self._asdict())


class EntryKey(NamedTuple):
    """Names an entry of the audit topic.

    >>> key = EntryKey("e1", 3, 0, Extent(START, START, LogPlace(17, 2)), EntryKind.AUDIT)
    >>> EntryKey.decode(key.encode()) == key, key.source
    (True, '3 operations')
    """

    state_epoch: str
    """Identity of the state that decided it."""
    ops_partition: int
    order: int
    """The number of its table, or LETTERS."""
    extent: Extent
    kind: int

    @property
    def source(self) -> str:
        """The name of the order that its extent is of."""
        return f"{self.ops_partition} {_NAMES[self.order]}"

    def encode(self) -> bytes:
        """KEY_FORMAT, two big-endian numbers, the extent, the state epoch, and the kind as the last byte."""
        head = KEY_FORMAT + _HEAD.pack(self.ops_partition, self.order)
        return head + self.extent.encode() + self.state_epoch.encode() + bytes((self.kind,))

    @classmethod
    def decode(cls, key: bytes) -> Self:
        """Decode a key. Raises struct.error for one that is too short."""
        partition, order = _HEAD.unpack_from(key, 1)
        extent_end = 1 + _HEAD.size + EXTENT_BYTES
        extent = Extent.decode(key[1 + _HEAD.size : extent_end])
        return cls(key[extent_end:-1].decode(), partition, order, extent, key[-1])


class Deadlines(msgspec.Struct, array_like=True):
    """The queues of a shard that are due next.

    Attributes:
        newest_ms: Timestamp of the newest record that the shard has decided.
        queues: In order; with the ones that it names, those of the shard that an earlier record named are replaced.
    """

    newest_ms: int
    queues: list[QueueDeadline]


class Outlet(NamedTuple):
    """Where the entries of a shard go.

    Attributes:
        state_epoch: Identity of the state.
        ops_partition: The partition of the ops topic.
        topics: The topics of every job.
        internal: Those of a job on a cluster.
        audit_partitions: Partitions of the audit topic.
    """

    state_epoch: str
    ops_partition: int
    topics: Topics
    internal: ClusterTopics
    audit_partitions: int


def records_of(
    entries: Iterable[PlacedEntry], outlet: Outlet, committed: Mapping[int, LogPlace], begins: Mapping[int, LogPlace]
) -> Iterator[OutgoingRecord]:
    """Yield the records that the entries of a shard become.

    Args:
        entries: In their order.
        outlet: Where they go.
        committed: How far each order had left (`ShardMeta.ends`) when the micro-batch began.
        begins: The same when the first entry was made.
    """
    ends = dict(begins)
    topics, partition = outlet.topics, outlet.ops_partition
    for entry in entries:
        if entry.kind == EntryKind.ANSWERS:
            reply_to, frame = read_frame(entry.value)
            yield OutgoingRecord(topics.results, reply_to, None, frame)
        elif entry.kind == EntryKind.NOTIFICATIONS:
            for key, value in read_notifications(entry.value):
                yield OutgoingRecord(topics.notifications, None, key, value)
        else:
            assert entry.end is not None, "rows and letters have places"
            order = order_number(entry)
            extent = Extent(committed.get(order, START), ends.get(order, START), entry.end)
            ends[order] = entry.end
            name = EntryKey(outlet.state_epoch, partition, order, extent, entry.kind).encode()
            yield OutgoingRecord(outlet.internal.audit, partition % outlet.audit_partitions, name, entry.value)


def deadlines_record(
    deadlines: list[QueueDeadline], newest_ms: int, ops_partition: int, internal: ClusterTopics
) -> OutgoingRecord:
    """Return the record that tells the ticker of a shard's deadlines."""
    value = msgspec.msgpack.encode(Deadlines(newest_ms, deadlines))
    return OutgoingRecord(internal.deadlines, 0, str(ops_partition).encode(), value)
