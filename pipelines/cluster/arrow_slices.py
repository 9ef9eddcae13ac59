"""Rows as Arrow streams of bounded size, for records of Kafka."""

from collections.abc import Iterator

import pyarrow as pa

from connectors.arrow_stream import arrow_stream

__all__ = ["read_slice_rows", "sliced"]


def sliced(rows: pa.Table, bytes_max: int) -> Iterator[tuple[pa.Table, bytes]]:
    """Yield consecutive parts of a table with their Arrow streams, each of at most `bytes_max` or of one row."""
    if not rows.num_rows:
        return
    (batch,) = rows.combine_chunks().to_batches()
    data = arrow_stream(batch, "zstd")
    if len(data) <= bytes_max or rows.num_rows == 1:
        yield rows, data
        return
    middle = rows.num_rows // 2
    yield from sliced(rows.slice(0, middle), bytes_max)
    yield from sliced(rows.slice(middle), bytes_max)


def read_slice_rows(data: bytes) -> pa.Table:
    """Return the rows of a stream."""
    return pa.ipc.open_stream(data).read_all()
