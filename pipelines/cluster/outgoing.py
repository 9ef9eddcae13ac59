"""What leaves a shard, as rows of the Kafka sink. Kafka is the outbox: a repeated task writes the same records again.

    topic               key                                    value
    results             -                                      frame of answers
    notifications       as in apply_ops                        the notification
    cluster_audit       EntryKey                               audit rows or a dead letter, as in entry.py
    cluster_deadlines   partition of the ops topic, decimal    MessagePack of Deadlines

The entries of a shard are in one partition of `cluster_audit`, in the order of (apply_seq, ordinal).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import msgspec
from pyspark.sql import Row

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from pipelines.cluster.shard import QueueDeadline
from pipelines.decide_ops.entries import read_frame, read_notifications
from pipelines.decide_ops.entry import Entry, EntryKind

__all__ = ["OUTGOING_SCHEMA", "Deadlines", "EntryKey", "OutgoingRecord", "deadlines_record", "records_of"]

OUTGOING_SCHEMA = "topic string, partition int, key binary, value binary"

_ENTRY_KEY = struct.Struct(">IQIB")


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

    >>> EntryKey.decode(EntryKey(3, 17, 2, 4).encode())
    EntryKey(ops_partition=3, apply_seq=17, ordinal=2, kind=4)
    """

    ops_partition: int
    apply_seq: int
    ordinal: int
    """Its place among the audit entries of this write."""
    kind: int

    @property
    def source(self) -> str:
        """What the entries with a common order have in common."""
        return str(self.ops_partition)

    @property
    def at(self) -> tuple[int, int]:
        """Its place in that order."""
        return self.apply_seq, self.ordinal

    def encode(self) -> bytes:
        """Four big-endian numbers."""
        return _ENTRY_KEY.pack(*self)

    @classmethod
    def decode(cls, key: bytes) -> Self:
        """Decode a key. Raises struct.error for other lengths."""
        return cls._make(_ENTRY_KEY.unpack(key))


class Deadlines(msgspec.Struct, array_like=True):
    """The queues of a shard that are due next.

    Attributes:
        newest_ms: Timestamp of the newest record that the shard has decided.
        queues: In order; with the ones that it names, those of the shard that an earlier record named are replaced.
    """

    newest_ms: int
    queues: list[QueueDeadline]


def records_of(
    entries: Iterable[Entry], ops_partition: int, topics: Topics, internal: ClusterTopics, audit_partitions: int
) -> Iterator[OutgoingRecord]:
    """Yield the records that the entries of a shard become."""
    ordinals: dict[int, int] = {}
    for entry in entries:
        if entry.kind == EntryKind.ANSWERS:
            partition, frame = read_frame(entry.value)
            yield OutgoingRecord(topics.results, partition, None, frame)
        elif entry.kind == EntryKind.NOTIFICATIONS:
            for key, value in read_notifications(entry.value):
                yield OutgoingRecord(topics.notifications, None, key, value)
        else:
            ordinal = ordinals[entry.apply_seq] = ordinals.get(entry.apply_seq, -1) + 1
            key = EntryKey(ops_partition, entry.apply_seq, ordinal, entry.kind).encode()
            yield OutgoingRecord(internal.audit, ops_partition % audit_partitions, key, entry.value)


def deadlines_record(
    deadlines: list[QueueDeadline], newest_ms: int, ops_partition: int, internal: ClusterTopics
) -> OutgoingRecord:
    """Return the record that tells the ticker of a shard's deadlines."""
    value = msgspec.msgpack.encode(Deadlines(newest_ms, deadlines))
    return OutgoingRecord(internal.deadlines, 0, str(ops_partition).encode(), value)
