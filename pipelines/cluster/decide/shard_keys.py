"""The grouping keys of shards: chosen so that Spark spreads them evenly.

Spark gives a key to the state partition `pmod(hash(key), n)`. Hashes of 0, 1, 2 ... leave some partitions with twice as
many keys as others, and some with none; these keys fall on one after the other, for each n that divides CLASSES.
"""

from pyspark.sql import SparkSession

__all__ = ["shard_keys"]

CLASSES = 64
_CANDIDATES_PER_KEY = 4 * CLASSES


def shard_keys(spark: SparkSession, ops_partitions: int) -> list[int]:
    """Return a key for each partition of the ops topic. They are the same on every machine and at every start."""
    candidates = (
        spark.range((ops_partitions + CLASSES) * _CANDIDATES_PER_KEY // CLASSES * 2)
        .selectExpr("cast(id as int) as key", f"pmod(hash(cast(id as int)), {CLASSES}) as class")
        .collect()
    )
    by_class: dict[int, list[int]] = {number: [] for number in range(CLASSES)}
    for row in candidates:
        by_class[row["class"]].append(row["key"])
    return [by_class[partition % CLASSES][partition // CLASSES] for partition in range(ops_partitions)]
