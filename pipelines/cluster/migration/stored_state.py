"""What a state holds, in the folder of an embedded job and in the checkpoint of one on a cluster; how both compare."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from broker_state.store.overlay import DEADLINES, OPS, STATE, Change
from broker_state.store.rocks_store import RocksStore
from pipelines.cluster.decide.shard_keys import shard_keys
from pipelines.cluster.decide.shard_rows import META_MAP, Content, ShardRow
from pipelines.cluster.decide.shard_state import ShardMaps

__all__ = ["Migrated", "content_of_store", "digest_of", "fill", "rows_of_checkpoint", "stored_map"]

_FIRST_KEY = b"\x01"
_CHANGES_AT_ONCE = 20_000


class Migrated(NamedTuple):
    """What was taken over: the number of keys, and a digest of them and their values, equal in both places."""

    keys: int
    digest: str


def content_of_store(state: RocksStore) -> Iterator[Content]:
    """Yield everything that the kernel has stored on disk."""
    for family in (STATE, OPS, DEADLINES):
        for key, value in state.scan(family, _FIRST_KEY):
            yield family, key, value


def rows_of_checkpoint(
    spark: SparkSession,
    query_checkpoint: str,
    ops_partitions: int,
    names: Iterable[str] = (META_MAP, *ShardMaps._fields),
) -> Iterator[ShardRow]:
    """Yield what maps of all shards hold after the last committed micro-batch, by Spark's own reader.

    Args:
        spark: A session with the state store of `cluster_session`.
        query_checkpoint: Path or URL of the checkpoint of the deciding query.
        ops_partitions: Partitions of the ops topic.
        names: The maps.
    """
    partition_of_key = {key: partition for partition, key in enumerate(shard_keys(spark, ops_partitions))}
    for name in names:
        at = f.lit(b"") if name == META_MAP else f.col("at")
        found = stored_map(spark, query_checkpoint, name).select("key.*", at, "value")
        for shard, key, value in found.toLocalIterator():
            yield ShardRow(partition_of_key[shard], name, bytes(key), bytes(value))


def stored_map(spark: SparkSession, query_checkpoint: str, name: str) -> DataFrame:
    """Return what a state variable of bytes holds after the last committed micro-batch.

    Args:
        spark: A session with the state store of `cluster_session`.
        query_checkpoint: Path or URL of the checkpoint of a query.
        name: Name of the variable: a single value by grouping key, or a map.

    Returns:
        Columns `key`, a struct of the grouping key, `at`, the key in the map (of a map alone), and `value`.
    """
    _ = spark.streams.active  # in a session without streams Spark's reader finds no coordinator of state stores
    frame = spark.read.format("statestore").option("path", query_checkpoint).option("stateVarName", name).load()
    if "user_map_key" not in frame.columns:
        return frame.select("key", f.col("value.bytes").alias("value"))
    return frame.select("key", f.col("user_map_key.bytes").alias("at"), f.col("user_map_value.bytes").alias("value"))


def fill(store: RocksStore, changes: Iterable[Change]) -> None:
    """Write changes to a store, some thousands at once."""
    waiting: list[Change] = []
    for change in changes:
        waiting.append(change)
        if len(waiting) == _CHANGES_AT_ONCE:
            store.write_changes(waiting)
            waiting = []
    store.write_changes(waiting)


def digest_of(content: Iterable[Content]) -> Migrated:
    """Return the number of keys, and a digest that does not depend on their order."""
    keys = total = 0
    for family, key, value in content:
        keys += 1
        each = hashlib.blake2b(family.encode() + len(key).to_bytes(2, "big") + key + value, digest_size=16)
        total = (total + int.from_bytes(each.digest(), "big")) % (1 << 128)
    return Migrated(keys, f"{total:032x}")
