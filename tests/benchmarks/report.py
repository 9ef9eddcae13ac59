"""Runs the measurements and writes `var/bench/<time>.json`.

machine      cores, load average before and after, Python
kernel       rates of kernel and store, {unit, median, least, greatest, runs}
orderly      1,000,000 messages through one orderly lane by pops of 10,000
batch_change 1,000 changes of invisible time made durable, three ways: beside the report, and in the temporary folder
expiry       1,000,000 leases of one queue ending at one record, by messages a pop
snapshot     milliseconds of the longest of many writes beside each snapshot of 1,000,000 leases, and without one
positions    a position alone: `bytes` stored of 1,000,000 offsets by pattern, `rates` of marks, a range counting once,
             `ns_a_mark` by the span of offsets over which marks are spread, [median, least, greatest]
drain        the job on a filled topic: `delta_beside` flushes every 5 s, `delta_after` when all is answered
latency      milliseconds: `operation` send -> answer, `message` send -> handler of a waiting consumer,
             `wake_up` a blocked orderly lane is free -> answer of the pop that waits for it,
             `others_while_leases_end` send -> answer on other queues while 1,000,000 leases of one queue end at once
             `idle` shares of a core that job and JVM use with nothing to do, a sample a second
             `large_records` growth of a consumer's memory while it drains 2,000 records of 1 MiB
build        `filled`: from a filled topic of messages of 100 bytes until all are poppable, the first one cold, and
             until all units are in Delta; `poppable`: milliseconds from the send of a message until it can be popped
client       `renewal` CPU seconds of a client that renews 100,000 messages, `ack_bytes_a_message` on the wire,
producer     messages of 100 bytes a second: `rates` asynchronous and waited, against kafka-python in the same run;
             `waited_by_threads` with batches and without, `delay_ms...` [median, 99 of 100], `memory...` of its account
profile      the ten functions in which the kernel spends most of its own time
"""

import json
import multiprocessing
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.process.host import Host
from pipelines.settings import JobSettings
from tests.benchmarks.batch_change import batch_change_through_the_store
from tests.benchmarks.build import build_filled_topic, fill_messages, message_to_poppable
from tests.benchmarks.client import ack_bytes_a_message, drain_large_records, renewal_cpu
from tests.benchmarks.drain import drain, fill
from tests.benchmarks.idle import idle_shares
from tests.benchmarks.kernel import expire_at_once, kernel_rates, orderly_lane, profile_top
from tests.benchmarks.latency import end_leases, lease_many, message_latency, operation_latency, wake_up_latency
from tests.benchmarks.positions import mark_costs, mark_rates, position_sizes
from tests.benchmarks.producer import measure_producer
from tests.benchmarks.snapshot import snapshot_pauses

__all__ = ["run_bench"]

_QUEUES = 8
LEASES = 1_000_000


def run_bench(
    *,
    operations: int = 2_000_000,
    runs: int = 5,
    seconds: int = 60,
    var: Path = Path("var"),
    on_progress: Callable[[str], None] = print,
) -> Path:
    """Measure everything and write the document; `operations` sizes the drain, `seconds` the latency runs."""
    folder = var / "bench"
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    load_before = os.getloadavg()
    report: dict[str, Any] = {}
    on_progress("kernel and store")
    report["kernel"] = msgspec.to_builtins(kernel_rates(min(operations // 4, 100_000), runs))
    on_progress("an orderly lane")
    report["orderly"] = orderly_lane(1_000_000, 10_000)
    on_progress("a batch of changes through the store")
    with tempfile.TemporaryDirectory(dir=work) as here, tempfile.TemporaryDirectory() as there:
        report["batch_change"] = [batch_change_through_the_store(Path(place)) for place in (here, there)]
    on_progress(f"{LEASES:,} leases ending at once")
    report["expiry"] = [expire_at_once(LEASES, messages_a_pop=size) for size in (10_000, 100, 1)]
    report["profile"] = profile_top(20_000)
    on_progress(f"snapshots of {LEASES:,} leases")
    report["snapshot"] = snapshot_pauses(work / "snapshot", leases=LEASES)
    on_progress("positions")
    report["positions"] = {
        "bytes": position_sizes(),
        "rates": msgspec.to_builtins(mark_rates(runs)),
        "ns_a_mark": mark_costs(runs),
    }
    on_progress("the client")
    report["client"] = {"renewal": renewal_cpu(100_000), "ack_bytes_a_message": ack_bytes_a_message()}
    with EmbeddedKafka(work / "kafka", jars=kafka_jars(var)) as kafka:
        on_progress("the producer")
        report["producer"] = measure_producer(kafka)
        report["drain"] = {}
        on_progress(f"filling a topic with {operations:,} operations")
        records = fill(kafka, "bench", operations, _QUEUES, on_progress)
        for name, interval_s in (("delta_beside", 5.0), ("delta_after", 3600.0)):
            on_progress(f"draining it, {name}")
            report["drain"][name] = drain(kafka, "bench", work / name, var, records, flush_interval_s=interval_s)
        on_progress("building queues")
        report["build"] = _build(kafka, work, var, 2 * operations, seconds, on_progress)
        on_progress("latency")
        report["latency"] = _latency(kafka, work / "latency", var, seconds)
    report["machine"] = {
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "python": platform.python_version(),
    }
    shutil.rmtree(work, ignore_errors=True)
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    file.write_text(json.dumps(report, indent=2))
    return file


def _build(
    kafka: EmbeddedKafka, work: Path, var: Path, messages: int, seconds: int, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    fill_messages(kafka.bootstrap_servers, "filled", messages, _QUEUES, on_progress)
    filled = build_filled_topic(kafka, "filled", work / "filled", var, messages)
    settings = JobSettings(
        folder=work / "poppable",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix="poppable",
        message_topics="poppable-*",
    )
    with Host(settings, var=var) as host:
        message_to_poppable(host.job, "poppable-warm", rate=10, seconds=seconds)
        return {"filled": filled, "poppable": message_to_poppable(host.job, "poppable-10", rate=10, seconds=seconds)}


def _latency(kafka: EmbeddedKafka, folder: Path, var: Path, seconds: int) -> dict[str, Any]:
    settings = JobSettings(folder=folder, bootstrap_servers=kafka.bootstrap_servers, topic_prefix="latency")
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    servers = kafka.bootstrap_servers

    def measure(what: Callable[..., dict[str, Any]], rate: int, for_s: int) -> dict[str, Any]:
        """In a process of its own, as clients are: they must not share the job's interpreter lock."""
        return clients.submit(what, servers, "latency", rate=rate, seconds=for_s).result()

    with clients:
        with Host(settings, var=var):
            measure(operation_latency, 100, 30)  # warm
            report = {
                "operation": measure(operation_latency, 500, seconds),
                "message": measure(message_latency, 20, seconds),
                "wake_up": measure(wake_up_latency, 1, seconds),
                "idle": idle_shares(seconds),
                "large_records": clients.submit(drain_large_records, servers, "latency").result(),
            }
        with Host(settings.model_copy(update={"ticks": False}), var=var):  # so they end all at one record: ours
            ends_ms = lease_many(servers, "latency", LEASES)
            time.sleep(max(0.0, ends_ms / 1000 - time.time()) + 1)
            others = clients.submit(operation_latency, servers, "latency", rate=100, seconds=60)
            time.sleep(20)
            end_leases(servers, "latency")
            report["others_while_leases_end"] = others.result()
    return report
