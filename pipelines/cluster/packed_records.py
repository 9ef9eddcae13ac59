"""Records of the ops topic on their way to a shard: those of one partition and one micro-batch as few Arrow values.

Spark hands rows to Python one by one, each cell by itself; packed, a micro-batch is one row for each partition, or for
each `PAYLOAD_BYTES_MAX` of it. A shard keeps them packed, and takes out as many as it decides at a time. Where it stops
follows from the records alone.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.decide_ops.decode import KafkaRecord

__all__ = ["PACKED_SCHEMA", "Payload", "bounded_slices", "pack", "unpack"]

PACKED_SCHEMA = "ops_partition int, first_offset bigint, payload binary"

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Of the keys and values of a payload, unless it has one record."""
SLICE_BYTES_MAX = 4 * 1024 * 1024
"""Of the values that are decided at a time: operations take up to 15 times as much while they are decided."""
RECORD_BYTES = 256
"""What a record counts besides its value."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


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


def unpack(data: bytes) -> Iterator[KafkaRecord]:
    """Yield the records of a payload."""
    table = pa.ipc.open_stream(data).read_all()
    return map(KafkaRecord._make, zip(*(column.to_pylist() for column in table.columns), strict=True))


def bounded_slices(payloads: Iterable[Payload]) -> Iterator[list[KafkaRecord]]:
    """Yield the records of one partition in the order of the log, as many at a time as are decided together.

    Args:
        payloads: Of one partition, in any order. Those of a partition follow one another, as one task reads it.
    """
    taken: list[KafkaRecord] = []
    size = 0
    for payload in sorted(payloads):
        for record in sorted(unpack(payload.data)):
            assert not taken or record.kafka_offset > taken[-1].kafka_offset, "payloads follow one another"
            record_bytes = RECORD_BYTES + len(record.value or b"")
            if taken and size + record_bytes > SLICE_BYTES_MAX:
                yield taken
                taken, size = [], 0
            taken.append(record)
            size += record_bytes
    if taken:
        yield taken


def _payloads(rows: pa.RecordBatch) -> Iterator[Payload]:
    """Yield consecutive rows of one partition, each time at most `PAYLOAD_BYTES_MAX` of them or one."""
    sizes = sum(pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy() for name in ("key", "value"))
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < rows.num_rows:
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + PAYLOAD_BYTES_MAX, side="right")))
        part = rows.slice(first, end - first)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
            writer.write_batch(part)
        yield Payload(part.column(1)[0].as_py(), sink.getvalue().to_pybytes())
        first = end
