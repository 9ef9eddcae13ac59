"""The Spark session of a job on a cluster: what the state store and the queries need; the rest is `spark-submit`'s."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from connectors.delta.session import TABLES_CONF

__all__ = ["CLUSTER_CONF", "cluster_session"]

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"

CLUSTER_CONF: Final = {
    **TABLES_CONF,
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    # A micro-batch stores what it changed; whole snapshots follow in the background.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A commit to Delta must not queue behind the micro-batches of the deciding query, but these come first.
    "spark.scheduler.mode": "FAIR",
    # Hadoop takes the path of a URL as it is, whatever letters are in it.
    "spark.scheduler.allocation.file": f"file://{Path(__file__).with_name('scheduler_pools.xml')}",
    # A snapshot of a table's log is a Spark job with this number of tasks (default 50): most of the time of a commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Shards live in the memory of Python workers: these must outlive a task.
    "spark.python.worker.reuse": "true",
    # A batch of rows between Spark and Python: records of the ops topic have up to 4 MiB, entries up to 256 KiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # A record under which a worker ends is found by the sixth attempt (shard_attempts.py).
    "spark.task.maxFailures": "8",
    "spark.sql.streaming.pollingDelay": "40ms",
    # Of Spark's own outcomes of micro-batches, which the checkpoint repeats.
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.ui.showConsoleProgress": "false",
}


def cluster_session(app_name: str, state_partitions: int, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session; what `spark-submit` has set, such as the master, stays.

    Args:
        app_name: Name of the application.
        state_partitions: Partitions of the state; for a checkpoint that exists Spark keeps those that it began with.
        conf: More Spark settings, which override those here.
    """
    builder = SparkSession.Builder().appName(app_name)
    for key, value in {
        **CLUSTER_CONF,
        "spark.sql.shuffle.partitions": str(state_partitions),
        **(conf or {}),
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
