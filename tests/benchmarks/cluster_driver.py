"""A job on a cluster that decides a filled log and prints what that took: `python -m tests.benchmarks.cluster_driver`.

The measurement begins when two micro-batches are committed, and ends with the last record; its report is one line of
JSON. Then the job goes on until standard input ends, and a second line says what the last micro-batches took.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.session import QUICK_COMPILER
from connectors.jars.resolve import spark_jars
from connectors.spark_cluster.storage import checkpoint_conf
from pipelines.cluster.checkpoint_layout import DECIDE_OPS
from pipelines.cluster.cluster_job import CORES_COUNTED_MAX, ClusterJob, ClusterSettings, look_early
from pipelines.cluster.session import cluster_session
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from tests.benchmarks.cpu_use import cpu_s

EXECUTOR = "CoarseGrainedExecutorBackend"
WARM_UP_BATCHES = 2
EMPTY_TASKS = 2_000
_POLL_S = 0.05


def main() -> None:
    """Run the job, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--var", type=Path, required=True)
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--records", type=int, required=True, help="0: the job only runs")
    parser.add_argument("--records-per-batch", type=int, required=True)
    options = parser.parse_args()
    connection = KafkaConnection(options.servers)
    early_look = look_early(connection, options.prefix)
    jars = ":".join(str(jar) for jar in spark_jars(options.var))
    java = f"{QUICK_COMPILER} -XX:+UseSerialGC -Duser.timezone=UTC"
    spark = cluster_session(
        "popstream-bench",
        options.executors,
        {
            **checkpoint_conf(str(options.folder)),
            "spark.master": options.master,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.cores.max": str(options.executors),
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
        },
    )
    settings = JobSettings(
        folder=options.folder,
        topic_prefix=options.prefix,
        records_per_micro_batch_max=options.records_per_batch // min(options.executors, CORES_COUNTED_MAX),
    )
    cluster = ClusterSettings(
        checkpoint=str(options.folder / "state"), tables=str(options.folder / "tables"), tasks=options.executors
    )
    with ClusterJob(settings, cluster, connection, spark, early_look=early_look) as job:
        query = next(each for each in spark.streams.active if each.name == DECIDE_OPS)
        report = {**_measured(job, query, options.records), **_memory(spark)} if options.records else {}
        if options.records:
            report["driver_ms_per_task"] = _driver_ms_per_task(spark)
        print(json.dumps(report), flush=True)
        sys.stdin.read()
        print(json.dumps({"micro_batch_ms": _durations_ms(query)}), flush=True)
    spark.stop()


def _measured(job: ClusterJob, query: StreamingQuery, records: int) -> dict[str, object]:
    decided = calls = 0
    calls_before = 0
    begin: tuple[int, float, dict[str, float]] | None = None
    last_batch = -1
    while decided < records:
        if job.failure is not None:
            raise job.failure
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > last_batch:
            last_batch = progress["batchId"]
            decided = sum(each["numInputRows"] for each in query.recentProgress)
            calls = sum(map(_state_calls, query.recentProgress))
            if begin is None and last_batch + 1 >= WARM_UP_BATCHES:
                begin = decided, time.perf_counter(), _cpu_by_kind()
                calls_before = calls
        time.sleep(_POLL_S)
    assert begin is not None, "there are more records than in the micro-batches of the warm-up"
    warm = decided - begin[0]
    used = {name: (seconds - begin[2].get(name, 0.0)) * 1e6 / warm for name, seconds in _cpu_by_kind().items()}
    last = query.lastProgress
    assert last is not None, "micro-batches were committed"
    state = last["stateOperators"][0]
    return {
        "records": warm,
        "records_per_s": round(warm / (time.perf_counter() - begin[1])),
        "cpu_us_per_record": {name: round(us, 1) for name, us in used.items()},
        "cpu_us_per_record_without_kafka": round(sum(us for name, us in used.items() if name != "kafka"), 1),
        "state_keys": state["numRowsTotal"],
        "state_calls_per_1000_records": round((calls - calls_before) / warm * 1_000, 1),
    }


def _state_calls(progress: Mapping[str, Any]) -> int:
    """Return how often a micro-batch has read, written or deleted a key of the state store.

    Spark, which counts the keys, reads each one before it writes or deletes it.
    """
    return sum(operator["customMetrics"]["rocksdbGetCount"] for operator in progress["stateOperators"])


def _durations_ms(query: StreamingQuery) -> dict[str, float]:
    """Return the median of what each step of the last micro-batches took."""
    recent = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
    return {step: statistics.median(each.get(step, 0) for each in recent) for step in sorted({*chain(*recent)})}


def _memory(spark: SparkSession) -> dict[str, float]:
    """Return what the driver holds, in MiB: live objects of its JVM, and its Python."""
    jvm: Any = spark._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    jvm.java.lang.System.gc()
    return {
        "driver_heap_mib": round((runtime.totalMemory() - runtime.freeMemory()) / 2**20, 1),
        "driver_python_mib": round(psutil.Process().memory_info().rss / 2**20, 1),
    }


def _driver_ms_per_task(spark: SparkSession) -> float:
    """Return what a task costs the driver, in milliseconds of its CPU: of a job of many that have nothing to do."""
    before_s = _cpu_by_kind()["driver_jvm"]
    spark.range(0, EMPTY_TASKS, 1, EMPTY_TASKS).write.format("noop").mode("overwrite").save()
    return round((_cpu_by_kind()["driver_jvm"] - before_s) / EMPTY_TASKS * 1e3, 2)


def _cpu_by_kind() -> dict[str, float]:
    """Return the seconds of CPU of the processes of this job and of its broker, by kind."""
    own = psutil.Process()
    seconds = {"driver_python": cpu_s(own)}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = " ".join(process.info["cmdline"] or [])
        if EXECUTOR in command:
            kind = "executor_jvm"
        elif "pyspark.daemon" in command or "pyspark/daemon" in command:
            kind = "executor_python"
        elif "kafka.Kafka" in command:
            kind = "kafka"
        elif process.info["ppid"] == own.pid and "java" in command:
            kind = "driver_jvm"
        else:
            continue
        try:
            seconds[kind] = seconds.get(kind, 0.0) + cpu_s(process)
        except psutil.NoSuchProcess:
            continue
    return seconds


if __name__ == "__main__":
    main()
