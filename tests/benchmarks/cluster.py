"""The job on a standalone Spark cluster: a filled log by one and two executors of one core, latency, and kills."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from connectors.delta.log.table_log import read_data_files
from connectors.delta.tables import TABLES, table_path
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.local_servers.process_tree import kill_tree
from connectors.spark_cluster.standalone import StandaloneCluster
from popstream import ClientSettings, Transport
from popstream.wire.command import Command, Tick
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.cluster_driver import EXECUTOR
from tests.benchmarks.drain import fill
from tests.benchmarks.latency import quantiles
from tests.benchmarks.measured_operations import single_entry_ops, single_pops, whole_pop_ops

__all__ = ["measure_cluster", "measure_cluster_kills", "measure_cluster_lanes"]

ROOT = Path(__file__).parents[2]
OPS_PARTITIONS = 16
QUEUES = 64
RESULTS_PARTITIONS = 8
_ENTRIES = 1_000
_TOPIC, _GROUP = "bench", "group"
_SINGLE_PER_BATCH, _LARGE_PER_BATCH, _LANES_PER_BATCH = 60_000, 400, 20_000


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
        count = messages if entries == 1 else pops * entries
        streams = [_operations(queue_id, messages if entries == 1 else pops, entries) for queue_id in range(QUEUES)]
        per_batch = _SINGLE_PER_BATCH if entries == 1 else _LARGE_PER_BATCH
        prefix = f"cluster_{name}"
        with _site(options, kafka, prefix, executors, count, streams) as site:
            with _driver(site, per_batch) as (drained, _):
                report[name] = drained
                if entries > 1:
                    report[name]["acked_entries_per_s"] = round(drained["records_per_s"] / 2 * entries)
                elif executors > 1:
                    report["ten_operations_ms"] = _latency(kafka, prefix, options.seconds)
            # Now that its rows are written.
            report[name] |= _written(site)
    one, two = (report[name]["records_per_s"] for name in ("single_1_executor", "single_2_executors"))
    return {**report, "two_executors_to_one": round(two / one, 2)}


def measure_cluster_kills(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Kill an executor, and then the driver, while as many messages are leased as half of the operations."""
    prefix, leases = "cluster_kills", options.operations // 2 // QUEUES
    streams = [single_pops(_TOPIC, queue_id, _GROUP, leases) for queue_id in range(QUEUES)]
    with _site(options, kafka, prefix, 2, leases, streams) as site:
        with _driver(site, _SINGLE_PER_BATCH) as (drained, driver):
            options.on_progress("killing an executor")
            began_s = time.perf_counter()
            _executor(site.cluster).kill()
            after_executor_s = _until_all_answer(kafka, prefix, began_s)
            options.on_progress("killing the driver")
            began_s = time.perf_counter()
            kill_tree(driver)
        with _driver(site._replace(records=0), _SINGLE_PER_BATCH):
            after_driver_s = _until_all_answer(kafka, prefix, began_s)
    return {
        "leases": leases * QUEUES,
        "state_keys": drained["state_keys"],
        "killed_executor_until_all_queues_answer_s": after_executor_s,
        "killed_driver_until_all_queues_answer_s": after_driver_s,
    }


def measure_cluster_lanes(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Compare what the driver holds after as many pops with ten lanes and with some 100,000."""
    report: dict[str, Any] = {}
    for queues, groups in ((10, 1), (QUEUES, 100_000 // QUEUES)):
        lanes = queues * groups
        streams = [_pops_of_groups(queue_id, groups, 100_000 // lanes) for queue_id in range(queues)]
        with (
            _site(options, kafka, f"cluster_{lanes}_lanes", 2, 1, streams) as site,
            _driver(site, _LANES_PER_BATCH) as (drained, _),
        ):
            report[f"with_{lanes}_lanes"] = {name: drained[name] for name in ("driver_heap_mib", "driver_python_mib")}
    return report


def _pops_of_groups(queue_id: int, groups: int, pops: int) -> Iterator[Command]:
    """Yield the pops of each group."""
    for group in range(groups):
        yield from single_pops(_TOPIC, queue_id, f"group-{group}", pops)


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


class _Site(NamedTuple):
    """A filled log, and a cluster for its job."""

    options: BenchOptions
    kafka: EmbeddedKafka
    prefix: str
    folder: Path
    cluster: StandaloneCluster
    executors: int
    records: int
    """How many are decided before the job counts as running."""


@contextlib.contextmanager
def _site(
    options: BenchOptions,
    kafka: EmbeddedKafka,
    prefix: str,
    executors: int,
    messages: int,
    streams: Sequence[Iterable[Command]],
) -> Iterator[_Site]:
    """Fill the log of a new prefix as `fill` does, and run a cluster."""
    ensure_topics(kafka.connection, Topics.of(prefix), TopicSettings(ops_partitions=OPS_PARTITIONS))
    records = fill(kafka, prefix, _TOPIC, messages, streams, options.on_progress)
    folder = options.work / prefix
    with StandaloneCluster(folder / "cluster", workers=executors, environment=_environment()) as cluster:
        yield _Site(options, kafka, prefix, folder, cluster, executors, records)


@contextlib.contextmanager
def _driver(site: _Site, per_batch: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Run a job until its log is decided, and yield its report and process id; it goes on in the block."""
    options, kafka, prefix, folder, cluster, executors, records = site
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


def _written(site: _Site) -> dict[str, Any]:
    """Return what a job has appended to its topics, and written to its tables, for each record of its log."""
    topics, logs = Topics.of(site.prefix), site.kafka.folder / "data"
    internal = ClusterTopics.of(site.prefix)
    log_bytes = {
        name: sum(file.stat().st_size for file in logs.glob(f"{topic}-*/*.log"))
        for name, topic in (("ops", topics.ops), ("results", topics.results), ("audit", internal.audit))
    }
    tables = [read_data_files(table_path(site.folder / "tables", name)) for name in TABLES]
    files = [file for table in tables if table is not None for file in table.files]
    rows = sum(json.loads(file.stats)["numRecords"] for file in files if file.stats)
    return {
        "log_bytes_per_record": {name: round(size / site.records, 1) for name, size in log_bytes.items()},
        "table_rows_per_record": round(rows / site.records, 2),
        "table_bytes_per_record": round(sum(file.size for file in files) / site.records, 1),
    }


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
    return {"count": len(took_ms), **quantiles(took_ms)}
