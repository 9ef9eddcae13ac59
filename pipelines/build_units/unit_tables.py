"""Units in Arrow tables: as they are read of message logs, as queues hold them, and as rows of `consume_queue`.

```
records ─ columns of UNIT_SCHEMA ── units_by_queue ──> Units of each queue ── delta_rows ──> rows of DELTA_SCHEMA
                                 <──── table_of ─────
```
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.consume_queue import NO_DUPLICATE, Units
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from popstream.wire.command import QueueType
from popstream.wire.key_hash import KEY_HASH_BYTES
from popstream.wire.queue_name import QueueName

__all__ = ["DELTA_SCHEMA", "UNIT_SCHEMA", "delta_rows", "store_dates", "table_of", "units_by_queue"]

_NOT_NUMBERS = frozenset(("topic", "inner_key_hashes", "dedup_hash"))
_OF_THE_BUILD = ("build_seq", "state_epoch", "store_date")

UNIT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("queue_offset", pa.int64()),
        pa.field("store_time_ms", pa.int64()),
        pa.field("size_bytes", pa.int32()),
        pa.field("tag_hash", pa.int64()),
        pa.field("key_hash", pa.int64()),
        pa.field("inner_count", pa.int32()),
        pa.field("inner_key_hashes", pa.binary()),
        pa.field("is_readable", pa.bool_()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("dedup_hash", pa.binary()),
    ]
)

DELTA_SCHEMA = pa.schema(
    [
        arrow_schema(CONSUME_QUEUE).field(each.name)
        for each in CONSUME_QUEUE.decided_columns
        if each.name not in _OF_THE_BUILD
    ]
)
"""The columns of the table `consume_queue` that follow from the message log."""

_MS_PER_DAY = 86_400_000
_FIRST_DAY, _LAST_DAY = np.array(["0001-01-01", "9999-12-31"], "datetime64[D]").astype(np.int64).tolist()


def units_by_queue(table: pa.Table, *, batch_topics: frozenset[str] = frozenset()) -> Iterator[tuple[QueueName, Units]]:
    """Yield the units of each queue in the order of their offsets, with provisional message bases.

    Args:
        table: Of `UNIT_SCHEMA`.
        batch_topics: Topics whose records may be inner batches; all other units are one message that can be read.
    """
    table = table.combine_chunks()
    topics = table["topic"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.chunk(0) if topics.num_chunks else pa.array([], pa.string()).dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    table = table.set_column(
        table.schema.get_field_index("deliver_at_ms"), "deliver_at_ms", pc.fill_null(table["deliver_at_ms"], 0)
    )
    columns = {name: table[name].to_numpy() for name in table.schema.names if name not in _NOT_NUMBERS}
    columns["dedup_high"], columns["dedup_low"] = _halves(table["dedup_hash"])
    order = np.lexsort((columns["queue_offset"], columns["queue_id"], codes))
    ends = np.flatnonzero(np.diff(codes[order]) | np.diff(columns["queue_id"][order])) + 1
    keys = table["inner_key_hashes"]
    for rows in np.split(order, ends) if len(order) else ():
        topic = topics.dictionary[int(codes[rows[0]])].as_py()
        is_batch = topic in batch_topics
        more = keys.take(pa.array(rows)).to_pylist() if is_batch and keys.null_count < len(keys) else []
        yield (topic, int(columns["queue_id"][rows[0]])), _units(columns, rows, more, is_batch=is_batch)


def table_of(queue: QueueName, units: Units) -> pa.Table:
    """Return units as a table of `UNIT_SCHEMA`; the inverse of `units_by_queue`."""
    count = len(units)
    has_ids = (units.dedup_high | units.dedup_low).astype(np.bool_).tolist()
    more, ends = units.more_key_hashes.astype(">u8").tobytes(), [0, *units.more_key_ends.tolist()]
    cuts = [more[KEY_HASH_BYTES * a : KEY_HASH_BYTES * b] or None for a, b in itertools.pairwise(ends)]
    columns = {
        "topic": pa.repeat(queue[0], count),
        "queue_id": pa.repeat(pa.scalar(queue[1], pa.int32()), count),
        "queue_offset": units.queue_offset,
        "store_time_ms": units.store_time_ms,
        "size_bytes": units.size_bytes.astype(np.int32),
        "tag_hash": units.tag_hash.view(np.int64),
        "key_hash": units.key_hash.view(np.int64),
        "inner_count": units.inner_count.astype(np.int32),
        "inner_key_hashes": pa.array(cuts, pa.binary()),
        "is_readable": units.is_readable,
        "deliver_at_ms": pa.array(units.deliver_at_ms, mask=units.deliver_at_ms == 0),
        "dedup_hash": pa.array(
            [units.dedup_hash(row) if has_id else None for row, has_id in enumerate(has_ids)], pa.binary()
        )
        if any(has_ids)
        else pa.nulls(count, pa.binary()),
    }
    return pa.table(columns, schema=UNIT_SCHEMA)


def delta_rows(queue: QueueName, topic_id: str, queue_type: QueueType, units: Units) -> pa.Table:
    """Return units as a table of `DELTA_SCHEMA`."""
    rows = table_of(queue, units)
    added = {
        "topic_id": pa.repeat(topic_id, len(units)),
        "queue_type": pa.repeat(queue_type, len(units)),
        "message_base": pa.array(units.message_base),
        "duplicate_of": pa.array(units.duplicate_of, mask=units.duplicate_of == NO_DUPLICATE),
    }
    return pa.table([added[name] if name in added else rows[name] for name in DELTA_SCHEMA.names], schema=DELTA_SCHEMA)


def store_dates(rows: pa.Table) -> pa.Array:
    """Return the UTC date of each `store_time_ms`, any number that a producer chose: between the years 1 and 9999."""
    days = np.clip(rows["store_time_ms"].to_numpy() // _MS_PER_DAY, _FIRST_DAY, _LAST_DAY)
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _units(columns: dict[str, np.ndarray], rows: np.ndarray, more: list[bytes | None], *, is_batch: bool) -> Units:
    offsets = columns["queue_offset"][rows]
    ones = np.ones(len(rows), np.int64)
    return Units(
        queue_offset=offsets,
        size_bytes=columns["size_bytes"][rows].astype(np.int64),
        store_time_ms=columns["store_time_ms"][rows],
        message_base=offsets,
        inner_count=columns["inner_count"][rows].astype(np.int64) if is_batch else ones,
        tag_hash=columns["tag_hash"][rows].view(np.uint64),
        key_hash=columns["key_hash"][rows].view(np.uint64),
        more_key_ends=np.cumsum([len(keys or b"") // KEY_HASH_BYTES for keys in more], dtype=np.int64)
        if more
        else 0 * ones,
        more_key_hashes=np.frombuffer(b"".join(keys or b"" for keys in more), ">u8").astype(np.uint64),
        is_readable=columns["is_readable"][rows].astype(np.bool_) if is_batch else ones.astype(np.bool_),
        deliver_at_ms=columns["deliver_at_ms"][rows],
        dedup_high=columns["dedup_high"][rows],
        dedup_low=columns["dedup_low"][rows],
        duplicate_of=ones * NO_DUPLICATE,
    )


def _halves(hashes: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return both halves of hashes of 16 bytes; 0 for null."""
    found = np.zeros((len(hashes), 2), np.uint64)
    if hashes.null_count < len(hashes):
        is_given = hashes.is_valid().to_numpy()
        found[is_given] = np.frombuffer(b"".join(hashes.drop_null().to_pylist()), ">u8").reshape(-1, 2)
    return found[:, 0], found[:, 1]
