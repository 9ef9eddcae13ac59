"""One Spark session for the job, the tests and the tools: Delta, UTC, and a JVM that stays below 1.5 GiB.

The JVM is started by the first session of a process; heap and flags of a later call have no effect.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["QUICK_COMPILER", "build_session"]

QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM whose work is many small plans: without the optimizing compiler a new job decides its first 800,000
operations in 153 s instead of 193 s, the last 200,000 of them as fast as with it, and has 100 MiB less resident. Long
scans, as of `popstream query`, may want it."""

_JVM_FLAGS: Final = (
    # One collector thread on two cores: G1's regions and remembered sets cost 100 MiB more resident here.
    "-XX:+UseSerialGC",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=192m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+ExitOnOutOfMemoryError",
    # Of Java 17.0.9 and 21.0.3 on; Spark lets a JVM ignore what it does not know.
    "-XX:TrimNativeHeapInterval=60000",
    "-Duser.timezone=UTC",
    f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties").as_uri()}"',
)

_CONF: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Of record headers with one name the last one counts (pipelines/build_consume_queue/unit_columns.py).
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Fair: a flush or a validation must not queue behind the other query's jobs.
    "spark.scheduler.mode": "FAIR",
    # How often an idle query asks Kafka for its end: at the default 10 ms that costs 15 % of a core.
    "spark.sql.streaming.pollingDelay": "40ms",
    # The default one asks a process of the operating system for each link status: 100 ms a file instead of 12.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Without native libraries each new file costs a process for its mode; the other one makes two files of each.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Reads for object stores: one takes as much direct memory as a row group is large, and if that is more than we
    # grant a query waits for 300 s and fails (a file of 66 MB, and MaxDirectMemorySize=128m).
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
    # A Delta snapshot is a Spark job of this many tasks (50 by default): most of the time of a small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM would note itself in the log, in two commits that nobody asks for and that another process may not make.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # VACUUM lists its files by so many tasks: at the default 10,000 that takes minutes on two cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # A flush spans one date, or two around midnight; with writers for both open Spark need not sort the rows by date.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # Short-lived objects that were promoted fill the old generation, slowly and to its end, before it is collected for
    # want of room; by default Spark asks for that every 30 minutes. What still grows then is a leak.
    "spark.cleaner.periodicGC.interval": "5min",
    # Each of these pools starts a thread for every piece of work until it has as many as this (by default 1,024, 1,024
    # and 128), idle ones or not: twenty minutes of small commits made 236.
    "spark.sql.resultQueryStage.maxThreadThreshold": "16",
    "spark.sql.shuffleExchange.maxThreadThreshold": "16",
    "spark.sql.broadcastExchange.maxThreadThreshold": "16",
    # Finished jobs are remembered for the UI only, and there is none.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}


def build_session(
    app_name: str,
    jars: Sequence[Path],
    *,
    master: str = "local[4]",
    driver_memory: str = "896m",
    java_options: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or give the session that runs already.

    Args:
        app_name: Name in Spark's logs.
        jars: Delta and the Kafka source (`connectors.jars`): PySpark brings neither.
        master: `local[n]`: n tasks at a time.
        driver_memory: Heap of the JVM. Resident memory goes up to about 650 MiB above it.
        java_options: Flags of the JVM after ours.
        conf: Spark settings on top of ours, which they override.
    """
    # glibc gives each thread an arena that it seldom returns; with Spark's threads that is hundreds of MiB.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    builder = (
        SparkSession.Builder()
        .appName(app_name)
        .master(master)
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", " ".join((*_JVM_FLAGS, *java_options)))
        .config("spark.jars", ",".join(str(jar) for jar in jars))
    )
    for key, value in {**_CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
