"""The job on a standalone Spark cluster: a filled log by one and two executors of one core, latency, and kills."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.local_servers.process_tree import kill_tree
from connectors.spark_cluster.standalone import StandaloneCluster
from popstream import ClientSettings, Transport
from popstream.wire.command import Command, Pop, Tick
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.cluster_driver import EXECUTOR
from tests.benchmarks.drain import fill
from tests.benchmarks.measured_operations import single_entry_ops, single_pops, whole_pop_ops

__all__ = ["measure_cluster", "measure_cluster_kills", "measure_cluster_lanes"]

ROOT = Path(__file__).parents[2]
OPS_PARTITIONS = 16
QUEUES = 64
RESULTS_PARTITIONS = 8
_ENTRIES = 1_000
_TOPIC, _GROUP = "bench", "group"
_SINGLE_PER_BATCH, _LARGE_PER_BATCH, _LANES_PER_BATCH = 60_000, 400, 20_000
_POPS = 100_000


def measure_cluster(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Decide single operations with one and two executors, acks of 1,000 entries with two; answer ten operations."""
    messages = options.operations // 2 // QUEUES
    pops = max(1, options.operations * 2 // 1_000 // QUEUES)
    report: dict[str, Any] = {}
    for name, executors, entries in (
        ("single_1_executor", 1, 1),
        ("single_2_executors", 2, 1),
        ("entries_2_executors", 2, _ENTRIES),
    ):
        prefix = f"cluster_{name}"
        ensure_topics(kafka.connection, Topics.of(prefix), TopicSettings(ops_partitions=OPS_PARTITIONS))
        count = messages if entries == 1 else pops * entries
        streams = [_operations(queue_id, messages if entries == 1 else pops, entries) for queue_id in range(QUEUES)]
        records = fill(kafka, prefix, _TOPIC, count, streams, options.on_progress)
        folder = options.work / prefix
        per_batch = _SINGLE_PER_BATCH if entries == 1 else _LARGE_PER_BATCH
        with (
            StandaloneCluster(folder / "cluster", workers=executors, environment=_environment()) as cluster,
            _driver(options, kafka, prefix, folder, cluster, executors, records, per_batch) as (drained, _),
        ):
            report[name] = drained
            if entries > 1:
                report[name]["acked_entries_per_s"] = round(drained["records_per_s"] / 2 * entries)
            elif executors > 1:
                report["ten_operations_ms"] = _latency(kafka, prefix, options.seconds)
    one, two = (report[name]["records_per_s"] for name in ("single_1_executor", "single_2_executors"))
    return {**report, "two_executors_to_one": round(two / one, 2)}


def measure_cluster_kills(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Kill an executor, and then the driver, while as many messages are leased as half of the operations."""
    prefix, folder = "cluster_kills", options.work / "cluster_kills"
    ensure_topics(kafka.connection, Topics.of(prefix), TopicSettings(ops_partitions=OPS_PARTITIONS))
    leases = options.operations // 2 // QUEUES
    streams = [single_pops(_TOPIC, queue_id, _GROUP, leases) for queue_id in range(QUEUES)]
    records = fill(kafka, prefix, _TOPIC, leases, streams, options.on_progress)
    with StandaloneCluster(folder / "cluster", workers=2, environment=_environment()) as cluster:
        job = options, kafka, prefix, folder, cluster, 2
        with _driver(*job, records, _SINGLE_PER_BATCH) as (drained, driver):
            options.on_progress("killing an executor")
            began_s = time.perf_counter()
            _executor(cluster).kill()
            after_executor_s = _until_all_answer(kafka, prefix, began_s)
            options.on_progress("killing the driver")
            began_s = time.perf_counter()
            kill_tree(driver)
        with _driver(*job, 0, _SINGLE_PER_BATCH):
            after_driver_s = _until_all_answer(kafka, prefix, began_s)
    return {
        "leases": leases * QUEUES,
        "state_keys": drained["state_keys"],
        "killed_executor_until_all_queues_answer_s": after_executor_s,
        "killed_driver_until_all_queues_answer_s": after_driver_s,
    }


def measure_cluster_lanes(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Compare what the driver holds with ten and with 100,000 lanes."""
    report: dict[str, Any] = {}
    for lanes in (10, 100_000):
        prefix = f"cluster_lanes_{lanes}"
        folder = options.work / prefix
        ensure_topics(kafka.connection, Topics.of(prefix), TopicSettings(ops_partitions=OPS_PARTITIONS))
        queues = min(lanes, QUEUES)
        streams = [_pops_of_groups(queue_id, _POPS // queues, lanes // queues) for queue_id in range(queues)]
        records = fill(kafka, prefix, _TOPIC, 1, streams, options.on_progress)
        with (
            StandaloneCluster(folder / "cluster", workers=2, environment=_environment()) as cluster,
            _driver(options, kafka, prefix, folder, cluster, 2, records, _LANES_PER_BATCH) as (drained, _),
        ):
            report[f"with_{lanes}_lanes"] = {name: drained[name] for name in ("driver_heap_mib", "driver_python_mib")}
    return report


def _pops_of_groups(queue_id: int, pops: int, groups: int) -> Iterator[Command]:
    for number in range(pops):
        yield Pop(
            topic=_TOPIC,
            queue_id=queue_id,
            v=1,
            op_id=f"{queue_id}-{number}",
            group=f"group-{number % groups}",
            max_messages=1,
            invisible_time_ms=3_600_000,
            init="min",
            reply_to=0,
        )


def _executor(cluster: StandaloneCluster) -> psutil.Process:
    """Return the process of an executor of a cluster."""
    return next(
        process
        for worker in range(2)
        for process in psutil.Process(cluster.worker_pid(worker)).children(recursive=True)
        if EXECUTOR in " ".join(process.cmdline())
    )


def _until_all_answer(kafka: EmbeddedKafka, prefix: str, began_s: float) -> float:
    """Return the seconds from a time until every queue has answered an operation that is sent now."""
    settings = ClientSettings(bootstrap_servers=kafka.bootstrap_servers, client_id="bench", prefix=prefix)
    with Transport(settings) as transport:
        answers = [transport.submit(Tick(topic=_TOPIC, queue_id=queue_id, v=1)) for queue_id in range(QUEUES)]
        for answer in answers:
            answer.result()
    return round(time.perf_counter() - began_s, 1)


def _operations(queue_id: int, pops: int, entries: int) -> Iterable[Command]:
    """Return pops and acks of one message each, or of `entries`, which are acked one by one in a record."""
    reply_to = queue_id % RESULTS_PARTITIONS
    if entries == 1:
        return single_entry_ops(_TOPIC, queue_id, _GROUP, pops, reply_to=reply_to)
    return whole_pop_ops(_TOPIC, queue_id, _GROUP, pops, entries, entry_offsets=1, reply_to=reply_to)


@contextlib.contextmanager
def _driver(
    options: BenchOptions,
    kafka: EmbeddedKafka,
    prefix: str,
    folder: Path,
    cluster: StandaloneCluster,
    executors: int,
    records: int,
    per_batch: int,
) -> Iterator[tuple[dict[str, Any], int]]:
    """Run a job until its log is decided, and yield its report and process id; it goes on in the block."""
    command = [sys.executable, "-m", "tests.benchmarks.cluster_driver", "--servers", kafka.bootstrap_servers]
    command += ["--prefix", prefix, "--master", cluster.master_url, "--folder", str(folder), "--var", str(options.var)]
    command += ["--executors", str(executors), "--records", str(records), "--records-per-batch", str(per_batch)]
    environment = {**os.environ, **_environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        (folder / "driver.log").open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment, text=True
        ) as driver,
    ):
        assert driver.stdin is not None
        assert driver.stdout is not None
        lines = (json.loads(line) for line in driver.stdout if line.startswith("{"))
        report = next(lines, None)
        try:
            if report is None:
                message = f"the driver has ended, see {folder / 'driver.log'}"
                raise RuntimeError(message)
            yield report, driver.pid
        finally:
            driver.stdin.close()
            for more in lines:
                (report or {}).update(more)


def _environment() -> dict[str, str]:
    """Executors run this Python and this code, as if both were installed on every node."""
    return {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def _latency(kafka: EmbeddedKafka, prefix: str, seconds: int) -> dict[str, float]:
    """Return milliseconds from the send of ten operations until all are answered."""
    took_ms = []
    settings = ClientSettings(bootstrap_servers=kafka.bootstrap_servers, client_id="bench", prefix=prefix)
    with Transport(settings) as transport:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            began_s = time.perf_counter()
            answers = [transport.submit(Tick(topic=_TOPIC, queue_id=queue_id, v=1)) for queue_id in range(10)]
            for answer in answers:
                answer.result()
            took_ms.append((time.perf_counter() - began_s) * 1_000)
    took_ms = took_ms[len(took_ms) // 5 :]
    percentiles = statistics.quantiles(took_ms, n=100)
    return {"count": len(took_ms), "p50": round(statistics.median(took_ms)), "p99": round(percentiles[98])}
