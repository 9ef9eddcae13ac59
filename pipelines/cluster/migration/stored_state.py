"""What a state holds, in the folder of an embedded job and in the checkpoint of one on a cluster; how both compare."""

import functools
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from broker_state.store.overlay import DEADLINES, OPS, STATE, Change
from broker_state.store.rocks_store import RocksStore
from pipelines.cluster.decide.shard_keys import shard_keys
from pipelines.cluster.decide.shard_rows import META_MAP, Content, ShardRow
from pipelines.cluster.decide.shard_state import ShardMaps

__all__ = [
    "ContentDigest",
    "Migrated",
    "content_of_store",
    "digest_of",
    "fill",
    "rows_of_checkpoint",
    "shards_of_checkpoint",
    "stored_map",
    "together",
]

ALL_MAPS = (META_MAP, *ShardMaps._fields)
_FIRST_KEY = b"\x01"
_CHANGES_AT_ONCE = 20_000

_Named = TypeVar("_Named", bound=tuple[str, bytes, bytes])


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
    spark: SparkSession, query_checkpoint: str, ops_partitions: int, names: Iterable[str] = ALL_MAPS
) -> Iterator[ShardRow]:
    """Yield what maps of all shards hold after the last committed micro-batch, by Spark's own reader.

    Args:
        spark: A session with the state store of `cluster_session`.
        query_checkpoint: Path or URL of the checkpoint of the deciding query.
        ops_partitions: Partitions of the ops topic.
        names: The maps.
    """
    return _shard_rows(spark, _stored_maps(spark, query_checkpoint, names), ops_partitions)


def shards_of_checkpoint(spark: SparkSession, query_checkpoint: str, ops_partitions: int) -> Iterator[ShardRow]:
    """Do as `rows_of_checkpoint`, for all maps; the rows of a shard follow each other.

    Spark sorts them, and keeps on disk what does not fit into memory.
    """
    frame = _stored_maps(spark, query_checkpoint, ALL_MAPS)
    return _shard_rows(spark, together(frame, "shard", ops_partitions), ops_partitions)


def together(frame: DataFrame, column: str, values: int) -> DataFrame:
    """Return the rows in an order in which those with the same value of a column follow each other.

    Args:
        frame: The rows.
        column: The column.
        values: How many values it has: `toLocalIterator` holds a partition at a time, which has those of few.
    """
    return frame.repartition(values, column).sortWithinPartitions(column)


def _stored_maps(spark: SparkSession, query_checkpoint: str, names: Iterable[str]) -> DataFrame:
    maps = []
    for name in names:
        at = f.lit(b"") if name == META_MAP else f.col("at")
        found = stored_map(spark, query_checkpoint, name)
        maps.append(found.select(f.col("key.shard"), f.lit(name).alias("map"), at.alias("at"), "value"))
    return functools.reduce(DataFrame.union, maps)


def _shard_rows(spark: SparkSession, frame: DataFrame, ops_partitions: int) -> Iterator[ShardRow]:
    partition_of_key = {key: partition for partition, key in enumerate(shard_keys(spark, ops_partitions))}
    for shard, name, key, value in frame.toLocalIterator():
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


class ContentDigest:
    """Counts content as it passes, and digests it; the order does not count."""

    def __init__(self) -> None:
        self._keys = self._total = 0

    def through(self, content: Iterable[_Named]) -> Iterator[_Named]:
        """Yield (family or map, key, value) as given."""
        for each in content:
            family, key, value = each
            self._keys += 1
            hashed = hashlib.blake2b(family.encode() + len(key).to_bytes(2, "big") + key + value, digest_size=16)
            self._total = (self._total + int.from_bytes(hashed.digest(), "big")) % (1 << 128)
            yield each

    @property
    def migrated(self) -> Migrated:
        """What has passed."""
        return Migrated(self._keys, f"{self._total:032x}")


def digest_of(content: Iterable[tuple[str, bytes, bytes]]) -> Migrated:
    """Return the number of keys, and a digest that does not depend on their order."""
    digest = ContentDigest()
    for _ in digest.through(content):
        pass
    return digest.migrated
