"""The Spark session of the job, the tests and the tools: Delta, UTC, and a JVM that stays below 1.5 GiB.

The first session of a process starts the JVM. Heap and flags of a later call have no effect.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from connectors.jars.class_archive import flags_to_use
from connectors.malloc_arenas import ARENAS_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["QUICK_COMPILER", "TABLES_CONF", "build_session", "join_pool"]

QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that runs many small plans. Without the optimizing compiler a new job decides its first 800,000 operations
in 153 s instead of 193 s, the last 200,000 of them as fast as with it, and uses 100 MiB less resident memory. Long
scans, as in `popstream query`, may benefit from the compiler."""

_JVM_FLAGS: Final = (
    # On two cores G1's regions and remembered sets cost 100 MiB more resident memory.
    "-XX:+UseSerialGC",
    "-XX:MaxMetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=192m",
    "-XX:MaxDirectMemorySize=192m",
    "-XX:+ExitOnOutOfMemoryError",
    # Since Java 17.0.9 and 21.0.3; Spark makes older JVMs ignore unknown flags.
    "-XX:TrimNativeHeapInterval=60000",
    "-Duser.timezone=UTC",
    f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties").as_uri()}"',
)

TABLES_CONF: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Of several record headers with one name, the last one counts (pipelines/build_consume_queue/unit_columns.py).
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""What every session needs, wherever Spark runs."""

_CONF: Final = {
    **TABLES_CONF,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A flush or a validation must not queue behind the jobs of a streaming query.
    "spark.scheduler.mode": "FAIR",
    # How often an idle query asks Kafka for new records: the default of 10 ms costs 15 % of a core.
    "spark.sql.streaming.pollingDelay": "40ms",
    # The default manager starts a process for the link status of each file: 100 ms per file instead of 12 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Without native libraries Hadoop's own starts `chmod` for each new file, two in every micro-batch, and its default
    # writes a checksum file beside each.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    # Vectored reads, meant for object stores, need direct memory of the size of a row group. Beyond
    # MaxDirectMemorySize a query waits 300 s and fails (a file of 66 MB).
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
    # A Delta snapshot is a Spark job with this number of tasks (default 50): most of the time of a small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM would log itself in two commits, which a second process must not write.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # VACUUM lists its files with this number of tasks: the default of 10,000 takes minutes on two cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Promoted short-lived objects slowly fill the old generation, which is collected only when it is full. Spark's
    # default interval for a collection is 30 minutes. Memory that still grows is a leak.
    "spark.cleaner.periodicGC.interval": "5min",
    # Each pool starts a new thread per task up to this limit (by default 1,024, 1,024 and 128), even if others are
    # idle: twenty minutes of small commits started 236 threads.
    "spark.sql.resultQueryStage.maxThreadThreshold": "16",
    "spark.sql.shuffleExchange.maxThreadThreshold": "16",
    "spark.sql.broadcastExchange.maxThreadThreshold": "16",
    # Finished jobs are kept for the UI only, which is off.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}

_UMASK: Final = "spark.hadoop.fs.permissions.umask-mode"
"""Hadoop sets permissions itself, whatever the umask of the process."""


def build_session(
    app_name: str,
    jars: Sequence[Path],
    *,
    master: str = "local[4]",
    driver_memory: str = "896m",
    java_options: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the running session.

    Args:
        app_name: Name in Spark's logs.
        jars: Delta and the Kafka source (`connectors.jars`), which PySpark lacks.
        master: `local[n]`: n parallel tasks.
        driver_memory: Heap of the JVM. Resident memory is up to about 650 MiB more.
        java_options: More flags of the JVM.
        conf: More Spark settings, which override those here.

    Raises:
        JarError: There is no Java.
    """
    for name, value in ARENAS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Spark's default is the `python3` of the path, which may be of another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark would look up the name of the machine, and not start where it has no address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options = (*_JVM_FLAGS, *flags_to_use("spark", jars), *java_options)
    builder = (
        SparkSession.Builder()
        .appName(app_name)
        .master(master)
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", " ".join(options))
        # Not `spark.jars`, which are copied at each start, and whose classes no archive of classes can have.
        .config("spark.driver.extraClassPath", os.pathsep.join(str(jar) for jar in jars))
    )
    for key, value in {**_CONF, _UMASK: _own_umask(), **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _own_umask() -> str:
    """Return the umask of this process. It can only be read by setting it: for a moment to the strictest."""
    umask = os.umask(0o077)
    os.umask(umask)
    return f"{umask:03o}"


def join_pool(spark: SparkSession, pool: str) -> None:
    """Let Spark schedule the work of this thread fairly beside that of other pools."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
