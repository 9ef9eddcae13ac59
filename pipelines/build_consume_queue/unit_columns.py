"""The columns of a unit, as Spark tasks compute them from a record of a message topic.

| column | from the record's |
|---|---|
| `topic`, `queue_id`, `queue_offset` | topic, partition, offset |
| `store_time_ms` | timestamp |
| `size_bytes` | length of the value |
| `deliver_at_ms` | header `popstream-deliver-at` (popstream/wire/deliver_at.py); null: at once |
| `tag_hash` | header `popstream-tag` (popstream/wire/tag.py), bits of a u64 |
| `key_hash` | hash of the key (broker_state/consume_queue/unit.py), bits of a u64 |
| `dedup_hash` | header `popstream-dedup-id` (popstream/wire/dedup_id.py); null: none |
| `inner_count`, `inner_key_hashes`, `is_readable` | headers of an inner batch (popstream/payload/inner_batch.py) |

All of it is Spark SQL: it runs in parallel in the JVM, and key, value and other headers never reach Python.
"""

import datetime as dt
import itertools
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from broker_state.consume_queue import NO_DUPLICATE, Units
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.build_units.queue_change import Queue
from popstream.payload.inner_batch import DIGITS_MAX, KEY_HASH_BYTES
from popstream.wire.command import QueueType
from popstream.wire.dedup_id import DEDUP_HASH_BYTES, DEDUP_ID_BYTES_MAX
from popstream.wire.deliver_at import DELIVER_AT_DIGITS_MAX
from popstream.wire.headers import (
    BATCH_BYTES_HEADER,
    BATCH_COUNT_HEADER,
    BATCH_KEYS_HEADER,
    DEDUP_ID_HEADER,
    DELIVER_AT_HEADER,
    TAG_HEADER,
)
from popstream.wire.limits import INNER_BATCH_KEYS_BYTES_MAX, INNER_BATCH_MESSAGES_MAX
from popstream.wire.tag import HASH_BYTES

__all__ = ["DELTA_SCHEMA", "UNIT_SCHEMA", "delta_rows", "store_dates", "table_of", "unit_columns", "units_by_queue"]

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
_FIRST_DAY, _LAST_DAY = ((date - dt.date(1970, 1, 1)).days for date in (dt.date.min, dt.date.max))


def unit_columns(records: DataFrame, batch_topics: Collection[str] = ()) -> DataFrame:
    """Return a frame of `UNIT_SCHEMA`, one row per record of Spark's Kafka source.

    Args:
        records: The source's frame, with headers.
        batch_topics: Topics whose records may be inner batches with keys.
    """
    count, keys = _header(BATCH_COUNT_HEADER), _header(BATCH_KEYS_HEADER)
    size = f.coalesce(f.length("value"), f.lit(0))
    keys_bytes = f.coalesce(f.length(keys), f.lit(0))
    false = f.expr("false")
    is_batch = f.coalesce(f.map_contains_key(_headers(), BATCH_COUNT_HEADER), false)
    is_consistent = (
        f.coalesce(_number(count).between(1, INNER_BATCH_MESSAGES_MAX), false)
        & f.coalesce(_number(_header(BATCH_BYTES_HEADER)) == size, false)
        & (keys_bytes % KEY_HASH_BYTES == 0)
        & (keys_bytes <= INNER_BATCH_KEYS_BYTES_MAX)
    )
    return records.select(
        "topic",
        f.col("partition").alias("queue_id"),
        f.col("offset").alias("queue_offset"),
        f.unix_millis("timestamp").alias("store_time_ms"),
        size.alias("size_bytes"),
        _tag_hash(_header(TAG_HEADER)).alias("tag_hash"),
        f.when(f.col("key").isNull(), f.lit(0)).otherwise(_never_zero(f.xxhash64("key"))).alias("key_hash"),
        f.when(is_batch & is_consistent, _number(count).cast("int")).otherwise(f.lit(1)).alias("inner_count"),
        # Not for other topics, which have no use for them, however long they are.
        f.when(is_batch & is_consistent & f.col("topic").isin(*batch_topics) & (keys_bytes > 0), keys)
        .cast("binary")
        .alias("inner_key_hashes"),
        (~is_batch | is_consistent).alias("is_readable"),
        f.nullif(_number(_header(DELIVER_AT_HEADER), DELIVER_AT_DIGITS_MAX), f.lit(0)).alias("deliver_at_ms"),
        _dedup_hash(_header(DEDUP_ID_HEADER)).alias("dedup_hash"),
    )


def units_by_queue(table: pa.Table, *, batch_topics: frozenset[str] = frozenset()) -> Iterator[tuple[Queue, Units]]:
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


def table_of(queue: Queue, units: Units) -> pa.Table:
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


def delta_rows(queue: Queue, topic_id: str, queue_type: QueueType, units: Units) -> pa.Table:
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


def _headers() -> Column:
    """Return the headers as a map; the last header of a name wins (the session's `spark.sql.mapKeyDedupPolicy`).

    Not `filter`, which every task compiles anew: for a small micro-batch that would take most of the time.
    """
    return f.map_from_entries("headers")


def _header(name: str) -> Column:
    return f.try_element_at(_headers(), f.lit(name))


def _number(text: Column, digits_max: int = DIGITS_MAX) -> Column:
    """Return the number in ASCII digits, null for any other text."""
    digits = text.cast("string")
    return f.when(digits.rlike(rf"^[0-9]{{1,{digits_max}}}\z"), digits.cast("bigint"))


def _tag_hash(tag: Column) -> Column:
    hashed = f.conv(f.substring(f.sha2(tag, 256), 1, 2 * HASH_BYTES), 16, -10).cast("bigint")
    return f.when(f.coalesce(f.length(tag), f.lit(0)) == 0, f.lit(0)).otherwise(_never_zero(hashed))


def _dedup_hash(dedup_id: Column) -> Column:
    hashed = f.unhex(f.substring(f.sha2(dedup_id, 256), 1, 2 * DEDUP_HASH_BYTES))
    return f.when(f.length(dedup_id).between(1, DEDUP_ID_BYTES_MAX), hashed)


def _never_zero(hashed: Column) -> Column:
    return f.when(hashed == 0, f.lit(1)).otherwise(hashed)
