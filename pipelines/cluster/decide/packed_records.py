"""Records of the ops topic on their way to a shard: those of one partition and one micro-batch as few Arrow values.

Spark hands rows to Python one by one, each cell by itself; packed, a micro-batch is one row for each partition, or for
each `PAYLOAD_BYTES_MAX` of it. A shard keeps them packed, and takes out as many as it decides at a time. Where it stops
follows from the records alone.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.arrow_stream import arrow_stream
from connectors.bounded_lists import bounded_lists
from pipelines.decide_ops.decode import KafkaRecord

__all__ = ["PACKED_SCHEMA", "Payload", "bounded_slices", "pack", "unpack"]

PACKED_SCHEMA = "ops_partition int, first_offset bigint, payload binary"

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Of the keys and values of a payload, unless it has one record."""
UNPACKED_BYTES_MAX = 4 * 1024 * 1024
"""Of the values that are decided at a time. Decoded they take up to eight times as much; what is made of them has a
bound of its own (shard.py)."""
RECORD_BYTES = 256
"""What a record counts besides its value."""


_PLAIN = ("kafka_offset", "timestamp_ms", "key", "value")
"""What is packed of records of which none is over the cap: the rest follows from it."""


class Payload(NamedTuple):
    """Packed records of one partition, in the order of the log."""

    first_offset: int
    data: bytes


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack record batches with the columns of KafkaRecord (a function for `mapInArrow`)."""
    for batch in batches:
        of_rows = batch.column(0).to_numpy()
        partitions = np.unique(of_rows)
        packed: list[tuple[int, int, bytes]] = []
        for partition in partitions.tolist():
            rows = batch if len(partitions) == 1 else batch.filter(pa.array(of_rows == partition))
            packed += ((partition, *payload) for payload in _payloads(rows))
        types = (pa.int32(), pa.int64(), pa.binary())
        columns = zip(*packed, strict=True) if packed else ((), (), ())
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)],
            names=["ops_partition", "first_offset", "payload"],
        )


def unpack(partition: int, data: bytes) -> Iterator[KafkaRecord]:
    """Yield the records of a payload of a partition, in the order of the log."""
    columns = [column.to_pylist() for column in pa.ipc.open_stream(data).read_all().columns]
    if len(columns) > len(_PLAIN):
        return map(KafkaRecord, repeat(partition), *columns)
    sizes = [0 if value is None else len(value) for value in columns[-1]]
    return map(KafkaRecord, repeat(partition), *columns, sizes)


def bounded_slices(partition: int, payloads: Iterable[Payload]) -> Iterator[list[KafkaRecord]]:
    """Return the records of one partition in the order of the log, as many at a time as are decided together.

    Args:
        partition: The partition.
        payloads: Of one partition, in any order. Those of a partition follow one another, as one task reads it.
    """
    return bounded_lists(
        _unpacked(partition, payloads), lambda record: RECORD_BYTES + len(record.value or b""), UNPACKED_BYTES_MAX
    )


def _unpacked(partition: int, payloads: Iterable[Payload]) -> Iterator[KafkaRecord]:
    last = -1
    for payload in sorted(payloads):
        for record in unpack(partition, payload.data):
            assert record.kafka_offset > last, "payloads follow one another"
            last = record.kafka_offset
            yield record


def _payloads(rows: pa.RecordBatch) -> Iterator[Payload]:
    """Yield consecutive rows of one partition, each time at most `PAYLOAD_BYTES_MAX` of them or one."""
    key_bytes, value_bytes = (pc.fill_null(pc.binary_length(rows.column(at)), 0).to_numpy() for at in (3, 4))
    ends = np.cumsum(key_bytes + value_bytes, dtype=np.int64)
    offsets = rows.column(1)
    is_plain = rows.column(6).null_count == rows.num_rows and np.array_equal(rows.column(5).to_numpy(), value_bytes)
    packed = pa.RecordBatch.from_arrays(rows.columns[1:5], _PLAIN) if is_plain else _without_partition(rows)
    first = 0
    while first < rows.num_rows:
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + PAYLOAD_BYTES_MAX, side="right")))
        part = packed.slice(first, end - first)
        yield Payload(offsets[first].as_py(), arrow_stream(part, "lz4"))
        first = end


def _without_partition(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.columns[1:], KafkaRecord._fields[1:])
