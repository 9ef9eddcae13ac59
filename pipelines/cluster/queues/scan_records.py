"""Rows of message topics on their way to the log of queues, as tasks pack them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.cluster.arrow_slices import sliced
from pipelines.cluster.queues.queue_log import Scanned, encode_log_record
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.queue_name import QueueName

__all__ = ["SCANS_SCHEMA", "ScanSpan", "scan_packer"]

SCANS_SCHEMA = "topic string, partition int, key binary, value binary, end_offset bigint, records int"

SCAN_BYTES_MAX = 512 * 1024


class ScanSpan(NamedTuple):
    """What a micro-batch reads of a queue: [first_offset, end_offset) of the topic with this id."""

    topic_id: str
    first_offset: int
    end_offset: int


def scan_packer(
    spans: Mapping[QueueName, ScanSpan], log_topic: str, partitions: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`, from rows of UNIT_SCHEMA to rows of SCANS_SCHEMA.

    Each record continues where the one before ends. So the rows of a queue have to come in one task, in order; what
    follows its last row is not said here.

    Args:
        spans: What is read; rows of other queues are left out.
        log_topic: The topic of the log of queues.
        partitions: Its partitions.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ends = {queue: span.first_offset for queue, span in spans.items()}
        for batch in batches:
            packed = [
                (log_topic, partition_of(key, partitions), key, value, ends[queue], count)
                for queue, rows in _by_queue(batch)
                if queue in spans
                for key, value, count in _scans(queue, spans[queue], rows, ends)
            ]
            if packed:
                yield _batch_of(packed)

    return pack


def _scans(
    queue: QueueName, span: ScanSpan, rows: pa.Table, ends: dict[QueueName, int]
) -> Iterator[tuple[bytes, bytes, int]]:
    offsets = rows["queue_offset"].to_numpy()
    wanted = rows.filter(pa.array((offsets >= span.first_offset) & (offsets < span.end_offset)))
    for part, data in sliced(wanted, SCAN_BYTES_MAX):
        end = part["queue_offset"][part.num_rows - 1].as_py() + 1
        scanned = Scanned(span.topic_id, ends[queue], end, data)
        ends[queue] = end
        yield ops_key(*queue), encode_log_record(scanned), part.num_rows


def _by_queue(batch: pa.RecordBatch) -> Iterator[tuple[QueueName, pa.Table]]:
    """Yield the consecutive rows of each queue."""
    if not batch.num_rows:
        return
    table = pa.Table.from_batches([batch])
    codes = batch.column("topic").dictionary_encode().indices.to_numpy()
    ids = batch.column("queue_id").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(codes) | np.diff(ids)) + 1).tolist(), batch.num_rows]
    for first, end in pairwise(starts):
        yield (batch.column("topic")[first].as_py(), int(ids[first])), table.slice(first, end - first)


def _batch_of(packed: list[tuple[str, int, bytes, bytes, int, int]]) -> pa.RecordBatch:
    types = (pa.string(), pa.int32(), pa.binary(), pa.binary(), pa.int64(), pa.int32())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*packed, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "key", "value", "end_offset", "records"])
