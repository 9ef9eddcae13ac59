"""Records of the ops topic on their way to a shard: those of one partition and one micro-batch as one Arrow value.

Spark hands rows to Python one by one, each cell by itself; packed, a micro-batch is one row for each partition.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.decide_ops.decode import KafkaRecord

__all__ = ["PACKED_SCHEMA", "pack", "unpack"]

PACKED_SCHEMA = "ops_partition int, payload binary"


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack record batches with the columns of KafkaRecord (a function for `mapInArrow`)."""
    for batch in batches:
        of_rows = batch.column(0).to_numpy()
        partitions = np.unique(of_rows)
        payloads = []
        for partition in partitions:
            rows = batch if len(partitions) == 1 else batch.filter(pa.array(of_rows == partition))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_batch(rows)
            payloads.append(sink.getvalue().to_pybytes())
        yield pa.RecordBatch.from_arrays(
            [pa.array(partitions, pa.int32()), pa.array(payloads, pa.binary())], names=["ops_partition", "payload"]
        )


def unpack(payload: bytes) -> Iterator[KafkaRecord]:
    """Yield the records of a payload."""
    table = pa.ipc.open_stream(payload).read_all()
    return map(KafkaRecord._make, zip(*(column.to_pylist() for column in table.columns), strict=True))
