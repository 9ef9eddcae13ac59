"""Units on their way to the table `consume_queue`, as entries of the audit topic.

    key    topic, queue id i32, build_seq u64, ordinal u32, kind u8
    value  UNIT_TABLE u8, Arrow stream of DELTA_SCHEMA

The entries of a queue are in one partition, in the order of (build_seq, ordinal).
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

import pyarrow as pa

from broker_state.consume_queue import ConsumeQueue, Units
from connectors.delta.all_columns import with_all_columns
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.build_consume_queue.unit_columns import delta_rows, store_dates
from pipelines.build_units.queue_change import Queue
from pipelines.cluster.arrow_slices import read_slice_rows, sliced
from pipelines.cluster.outgoing import OutgoingRecord
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX, EntryKind

__all__ = ["UNIT_TABLE", "UnitsKey", "completed_units", "unit_records"]

UNIT_TABLE = 255
"""Where entries of audit rows have the number of their table."""

_TAIL = struct.Struct(">iQIB")


class UnitsKey(NamedTuple):
    """Names an entry.

    >>> key = UnitsKey("orders", 3, 17, 2)
    >>> UnitsKey.decode(key.encode()) == key, key.source
    (True, 'orders/3')
    """

    topic: str
    queue_id: int
    build_seq: int
    ordinal: int

    @property
    def source(self) -> str:
        """What the entries with a common order have in common."""
        return f"{self.topic}/{self.queue_id}"

    @property
    def at(self) -> tuple[int, int]:
        """Its place in that order."""
        return self.build_seq, self.ordinal

    def encode(self) -> bytes:
        """The topic, then three big-endian numbers and the kind."""
        return self.topic.encode() + _TAIL.pack(self.queue_id, self.build_seq, self.ordinal, EntryKind.UNITS)

    @classmethod
    def decode(cls, key: bytes) -> Self:
        """Decode a key. Raises struct.error for one that is too short."""
        queue_id, build_seq, ordinal, _ = _TAIL.unpack(key[-_TAIL.size :])
        return cls(key[: -_TAIL.size].decode(), queue_id, build_seq, ordinal)


def unit_records(
    queue: Queue, build_seq: int, units: Iterable[tuple[ConsumeQueue, Units]], topic: str, partitions: int
) -> Iterator[OutgoingRecord]:
    """Yield the records of new units.

    Args:
        queue: Their queue.
        build_seq: Number of the write that added them.
        units: The units, each with the record of the queue.
        topic: The audit topic.
        partitions: Its partitions.
    """
    slices = (
        data
        for record, found in units
        for _, data in sliced(delta_rows(queue, record.topic_id, record.queue_type, found), ENTRY_BYTES_MAX)
    )
    for ordinal, data in enumerate(slices):
        key = UnitsKey(*queue, build_seq, ordinal)
        partition = zlib.crc32(key.source.encode()) % partitions
        yield OutgoingRecord(topic, partition, key.encode(), bytes((UNIT_TABLE,)) + data)


def completed_units(key: bytes, value: bytes, state_epoch: str) -> pa.Table:
    """Return the rows of an entry with all columns of the table."""
    rows = read_slice_rows(value[1:])
    count = rows.num_rows
    added = {
        "build_seq": pa.repeat(pa.scalar(UnitsKey.decode(key).build_seq, pa.int64()), count),
        "state_epoch": pa.repeat(state_epoch, count),
        "store_date": store_dates(rows),
    }
    return with_all_columns(CONSUME_QUEUE, rows, added)
