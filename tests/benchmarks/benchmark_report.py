"""Runs the measurements and writes `var/bench/<time>.json`, with a key for each part, as each part ends.

A part is measured by the function `measure_<part>`, in the module whose name begins with it, unless the table names
another, in a process of its own. Parts below the line have a Kafka each; the ones before it need none. With repeats
each number is [median, least, greatest] of the runs, and the loads are those of each run.

part          what is measured
------------  ---------------------------------------------------------------------------------------------------------
machine       cores, Python, form of the kernel; `parts`: for each the load before and after, and how long it took
kernel        rates of kernel and store, {unit, median, least, greatest, runs}
orderly       1,000,000 messages through one orderly lane by pops of 10,000 (`kernel`)
batch_change  1,000 changes of invisible time made durable in three ways, beside the report and in the temporary folder
expiry        1,000,000 leases of one queue that end together, by messages per pop (`kernel`)
profile       the ten functions in which the kernel spends most of its own time (`kernel`)
snapshot      milliseconds of the longest of many writes beside each snapshot of 1,000,000 leases, and without one
positions     a position alone: stored `bytes` of 1,000,000 offsets by pattern, `rates` of marks (a range counts once),
              `ns_a_mark` by the span of offsets over which marks are spread, [median, least, greatest]
long_log      a table with 10,000 commits: milliseconds of a flush at its beginning and end (medians), and to open it
size          operations a second of kernel and store: `leases`, single ones beside 1,000 and beside 10,000,000 leases;
              `lanes`, in turn over 10 and over 100,000 lanes of a queue; `put_off`, behind 0 and behind 1,000,000
              messages with a delivery time to come
protection    CPU us of an operation with and without quotas; the scrub of a cold store of 1 GiB with one flipped byte:
              seconds until it is reported, at the scrub's own pace (17 minutes), and the share of a core meanwhile
client        `renewal`: CPU seconds of a client that renews 100,000 messages; `ack_bytes_a_message` on the wire
cluster_sizes `shard`: bytes that it has in memory for a key, a deadline and an op_id, of 500,000 leases; `part...`: by
              how many MB a worker grows that decides a part, of single operations and of acks of 1,000 entries;
              `environment`: `mb` of the packed one, and seconds until Spark has unpacked it; `row`: CPU us of a row of
              `deliveries`, by tasks that write it and by Spark
------------  ---------------------------------------------------------------------------------------------------------
producer      messages of 100 bytes a second: `rates` asynchronous and waited, against kafka-python in the same run;
              `waited_by_threads` with batches and without, `delay_ms...` [median, 99 of 100], `memory...` in use
drain         the job on a filled topic: `delta_beside` flushes every 5 s, `delta_after` when all is answered
tls           the drain of a quarter of the operations by turns from two brokers, `plaintext` and `sasl_ssl`;
              `rate_ratio` and `cpu_ratio`: with encryption by without
batches       the same for acks of 1,000 entries each, and for pops of 10,000 messages that are acked as a whole
verify        `popstream verify` of a job that was drained: `records_per_s` with its start, rows compared, CPU a record
restart       a job with 10,000,000 leases: `bytes_a_lease` in its state, `first_answer_s` from a start with no JVM
build         `filled`: from a filled topic of messages of 100 bytes until all are poppable, the first one cold, and
              until all units are in Delta; `poppable`: milliseconds from the send of a message until it can be popped
latency       milliseconds: `operation` send -> answer, at 500 and at 5,000 operations a second, `message` send ->
              handler of a waiting consumer, `wake_up` a blocked orderly lane is free -> answer of its waiting pop;
              `large_records`: growth of a consumer's memory while it drains 2,000 records of 1 MiB
lease_ends    milliseconds send -> answer on `others`, queues without leases, while at most 1,000,000 leases of one
              queue, one for each operation, end as fast as they can; `ticks`, the records that this takes
idle          shares of a core that an idle job and its JVM use, a sample a second
consume       a handler that does nothing, by the way to consume: `cpu_us` of the client a message, `in_memory` (without
              the CPU of the job) and with a `job`, there also `messages_a_second` of 100 bytes from 8 queues, or as
              many as the name says
redelivery    `after_kill_s` until the message of a killed consumer with leases of 10 s is popped again; `after_time_ms`
              from the delivery time of a message to its handler, [median, greatest]
fetch         records of 100 bytes of 8 queues in turn, `cpu_us` a message and `messages_a_second` (medians): with each
              Kafka client alone, which is the floor, and with the fetcher of consumers on top of it
redrive       dead letters of 1,000 bytes a second: `listed`, and `redriven` to their group; `cpu_us` a redriven letter
timeline      milliseconds of each stage between an operation and its answer, at 500 and at 5,000 operations a second:
              `operation` send -> answer, `append_to_fetch` until the micro-batch begins that has the operation, `spark`
              and `job` for each micro-batch, `answer_to_client` from the job's producer to the client
fairness      milliseconds send -> answer of pops from other queues, by the partition of the ops topic: in calm, beside
              150,000 pops of one client, without and with a quota, and beside 2,000 resets of a lane; `flood_s`
lag           at most 100,000 lanes (1,000 groups on 100 queues): `visible_s` from a dispatch to each queue until it is
              in the lag of all groups, and `scrape_ms` of the endpoint meanwhile, [median, greatest]
cluster       the job on a standalone Spark cluster with executors of one core: records a second and
              `cpu_us_per_record` of single operations and of acks of 1,000 entries; `ten_operations_ms` till answered;
              `driver_ms_per_task`, and what a record leaves in Kafka and tables (for tests/benchmarks/cluster_model.py)
cluster_kills seconds from the SIGKILL of an executor, and of the driver, until every queue answers, with as many
              leases as half of the operations
cluster_lanes what the driver holds after some 100,000 pops of 10 and of as many lanes
"""

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from broker_state import KERNEL_FORM
from connectors.kafka.embedded import EmbeddedKafka
from tests.benchmarks.batch_change import measure_batch_change
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.build import measure_build
from tests.benchmarks.client_cost import measure_client
from tests.benchmarks.cluster import measure_cluster, measure_cluster_kills, measure_cluster_lanes
from tests.benchmarks.cluster_sizes import measure_cluster_sizes
from tests.benchmarks.consume import measure_consume
from tests.benchmarks.drain import measure_batches, measure_drain
from tests.benchmarks.fairness import measure_fairness
from tests.benchmarks.fetch import measure_fetch
from tests.benchmarks.figures import figure_table, parts_of
from tests.benchmarks.idle import measure_idle
from tests.benchmarks.kernel import measure_expiry, measure_kernel, measure_orderly, measure_profile
from tests.benchmarks.lag import measure_lag
from tests.benchmarks.latency import measure_latency
from tests.benchmarks.lease_ends import measure_lease_ends
from tests.benchmarks.long_log import measure_long_log
from tests.benchmarks.part_process import PartError, measure_with_kafka, run_apart
from tests.benchmarks.positions import measure_positions
from tests.benchmarks.producer_speed import measure_producer
from tests.benchmarks.protection import measure_protection
from tests.benchmarks.redelivery import measure_redelivery
from tests.benchmarks.redrive import measure_redrive
from tests.benchmarks.repeated import merged
from tests.benchmarks.size import measure_restart, measure_size
from tests.benchmarks.snapshot_delay import measure_snapshot
from tests.benchmarks.timeline import measure_timeline
from tests.benchmarks.tls import measure_tls
from tests.benchmarks.verify import measure_verify

__all__ = ["PARTS", "run_bench"]

LIMIT_S = 1_800.0
"""No part takes longer, unless something is wrong."""

_PARTS: dict[str, Callable[[BenchOptions], Any]] = {
    "kernel": measure_kernel,
    "orderly": measure_orderly,
    "batch_change": measure_batch_change,
    "expiry": measure_expiry,
    "profile": measure_profile,
    "snapshot": measure_snapshot,
    "positions": measure_positions,
    "long_log": measure_long_log,
    "size": measure_size,
    "protection": measure_protection,
    "client": measure_client,
    "cluster_sizes": measure_cluster_sizes,
}
_PARTS_WITH_KAFKA: dict[str, Callable[[BenchOptions, EmbeddedKafka], Any]] = {
    "producer": measure_producer,
    "drain": measure_drain,
    "tls": measure_tls,
    "batches": measure_batches,
    "verify": measure_verify,
    "restart": measure_restart,
    "build": measure_build,
    "latency": measure_latency,
    "lease_ends": measure_lease_ends,
    "idle": measure_idle,
    "consume": measure_consume,
    "redelivery": measure_redelivery,
    "fetch": measure_fetch,
    "redrive": measure_redrive,
    "timeline": measure_timeline,
    "fairness": measure_fairness,
    "lag": measure_lag,
    "cluster": measure_cluster,
    "cluster_kills": measure_cluster_kills,
    "cluster_lanes": measure_cluster_lanes,
}
_MEASURES = _PARTS | {name: partial(measure_with_kafka, each) for name, each in _PARTS_WITH_KAFKA.items()}
PARTS = tuple(_MEASURES)


def run_bench(
    *,
    operations: int = 2_000_000,
    runs: int = 5,
    repeats: int = 1,
    seconds: int = 60,
    var: Path = Path("var"),
    parts: Sequence[str] = PARTS,
    on_progress: Callable[[str], None] = print,
) -> tuple[Path, list[str]]:
    """Measure the chosen parts, and write the report anew after each; return its file and the parts that failed.

    A part that raises, or takes longer than LIMIT_S, is in the report as `{"failure": why}`, and the others follow.
    Each part is measured `repeats` times. The other parameters are those of `BenchOptions`; `on_progress` can be
    pickled, and is told the planned figures of each part, too, as it ends.
    """
    folder = var / "bench"
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    failed: list[str] = []
    report: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": KERNEL_FORM,
            "parts": {},
        }
    }

    for name, measure in _MEASURES.items():
        if name not in parts:
            continue
        options = BenchOptions(
            operations=operations, runs=runs, seconds=seconds, var=var, work=work / name, on_progress=on_progress
        )
        results: list[Any] = []
        loads: list[dict[str, Any]] = []
        for number in range(1, repeats + 1):
            on_progress(f"measuring {name}" + (f", run {number} of {repeats}" if repeats > 1 else ""))
            options.work.mkdir(parents=True)
            load, began_s = os.getloadavg(), time.perf_counter()
            try:
                results.append(run_apart(partial(measure, options), LIMIT_S))
            except PartError as error:
                results.append({"failure": str(error)})
                failed.append(name)
                on_progress(f"{name} failed: {error}")
            took_s = round(time.perf_counter() - began_s)
            loads.append({"load_before": load, "load_after": os.getloadavg(), "took_s": took_s})
            report[name] = merged(results)
            report["machine"]["parts"][name] = loads[0] if repeats == 1 else loads
            file.write_text(json.dumps(report, indent=2))
            shutil.rmtree(work, ignore_errors=True)
        for line in figure_table({name: parts_of([report])[name]}):
            on_progress(line)
    return file, failed
