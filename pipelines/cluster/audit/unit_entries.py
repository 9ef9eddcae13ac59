"""Units on their way to the table `consume_queue`, as entries of the audit topic.

    key    KEY_FORMAT, topic, zero byte, state epoch, queue id i32, extent, kind u8
    value  UNIT_TABLE u8, Arrow stream of DELTA_SCHEMA

The entries of a queue are in one partition, in the order of the log of queues: of a place (extent.py) the offset is
that of a record of this log, and the ordinal counts the units that it has added.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import pyarrow as pa

from broker_state.consume_queue import ConsumeQueue, Units
from connectors.delta.all_columns import with_all_columns
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.build_units.unit_tables import delta_rows, store_dates
from pipelines.cluster.arrow_slices import read_slice_rows, sliced
from pipelines.cluster.decide.extent import EXTENT_BYTES, KEY_FORMAT, Extent
from pipelines.cluster.decide.outgoing import OutgoingRecord
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX, EntryKind, LogPlace
from popstream.wire.queue_name import QueueName

__all__ = ["UNIT_TABLE", "UnitsKey", "completed_units", "unit_records"]

UNIT_TABLE = 255
"""Where entries of audit rows have the number of their table."""

_QUEUE_ID = struct.Struct(">i")
_TAIL_BYTES = _QUEUE_ID.size + EXTENT_BYTES + 1


class UnitsKey(NamedTuple):
    """Names an entry.

    >>> from pipelines.cluster.decide.extent import START
    >>> key = UnitsKey("e1", "orders", 3, Extent(START, START, LogPlace(17, 2)))
    >>> UnitsKey.decode(key.encode()) == key, key.source
    (True, 'orders/3')
    """

    state_epoch: str
    """Identity of the state that has the queue."""
    topic: str
    queue_id: int
    extent: Extent

    @property
    def source(self) -> str:
        """The name of the order that its extent is of."""
        return f"{self.topic}/{self.queue_id}"

    def encode(self) -> bytes:
        """KEY_FORMAT, two texts with a zero byte in between, numbers, and the kind as the last byte."""
        texts = KEY_FORMAT + b"\0".join((self.topic.encode(), self.state_epoch.encode()))
        return texts + _QUEUE_ID.pack(self.queue_id) + self.extent.encode() + bytes((EntryKind.UNITS,))

    @classmethod
    def decode(cls, key: bytes) -> Self:
        """Decode a key. Raises struct.error for one that is too short."""
        topic, _, epoch = key[1:-_TAIL_BYTES].decode().partition("\0")
        tail = key[-_TAIL_BYTES:]
        (queue_id,) = _QUEUE_ID.unpack_from(tail)
        return cls(epoch, topic, queue_id, Extent.decode(tail[_QUEUE_ID.size : -1]))


def unit_records(
    queue: QueueName,
    state_epoch: str,
    built: Iterable[tuple[int, Sequence[tuple[ConsumeQueue, Units]]]],
    begin: LogPlace,
    topic: str,
    partitions: int,
) -> Iterator[OutgoingRecord]:
    """Yield the records of new units.

    Args:
        queue: Their queue.
        state_epoch: Identity of the state.
        built: What a micro-batch has made: by offset in the log of queues, new units with the record of their queue.
        begin: The place after the last unit that had left when it began (`QueueMeta.end`).
        topic: The audit topic.
        partitions: Its partitions.
    """
    committed = begin
    for log_offset, units in built:
        ordinal = 0
        for record, found in units:
            for part, data in sliced(delta_rows(queue, record.topic_id, record.queue_type, found), ENTRY_BYTES_MAX):
                ordinal += part.num_rows
                key = UnitsKey(state_epoch, *queue, Extent(committed, begin, LogPlace(log_offset, ordinal)))
                begin = key.extent.end
                partition = zlib.crc32(key.source.encode()) % partitions
                yield OutgoingRecord(topic, partition, key.encode(), bytes((UNIT_TABLE,)) + data)


def completed_units(key: bytes, value: bytes, state_epoch: str, begin: LogPlace | None = None) -> pa.Table:
    """Return the rows of an entry from a place on (None: all) with all columns of the table."""
    rows = read_slice_rows(value[1:])
    end = UnitsKey.decode(key).extent.end
    if begin is not None and begin.kafka_offset == end.kafka_offset:
        rows = rows.slice(max(0, begin.ordinal - (end.ordinal - rows.num_rows)))
    count = rows.num_rows
    added = {
        "build_seq": pa.repeat(pa.scalar(end.kafka_offset + 1, pa.int64()), count),
        "state_epoch": pa.repeat(state_epoch, count),
        "store_date": store_dates(rows),
    }
    return with_all_columns(CONSUME_QUEUE, rows, added)
