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

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from popstream.payload.inner_batch import DIGITS_MAX
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
from popstream.wire.key_hash import KEY_HASH_BYTES
from popstream.wire.limits import INNER_BATCH_KEYS_BYTES_MAX, INNER_BATCH_MESSAGES_MAX
from popstream.wire.tag import HASH_BYTES

__all__ = ["unit_columns"]


def unit_columns(records: DataFrame, batch_topics: Collection[str] = ()) -> DataFrame:
    """Return a frame of `UNIT_SCHEMA` (build_units/unit_tables.py), one row per record of Spark's Kafka source.

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
