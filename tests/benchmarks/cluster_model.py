"""What more executors would do, from a report with the part `cluster`: `python -m tests.benchmarks.cluster_model`.

Nothing here is measured but what the report has. The model counts what each part of a cluster has to do at a number of
executors of one core, when Kafka, the driver and the storage have machines of their own:

* Executors decide as many operations as their CPU allows, for which a micro-batch leaves them the time.
* The driver plans a micro-batch with one thread, while executors wait: a part for each micro-batch, and one for each
  task, which is the CPU that the driver's JVM spends on an empty one. Micro-batches are as long as it takes for that to
  be OVERHEAD_SHARE of them; an answer waits for one and a half.
* Where such a micro-batch is longer than MICRO_BATCH_S_MAX, the queues are divided among several prefixes, each with a
  driver of its own.
* Kafka keeps three copies of what is appended: operations, answers, and the rows on their way to the tables.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["EXECUTORS", "Calibration", "Scaled", "calibration_of", "markdown", "scaled"]

EXECUTORS = (4, 16, 64, 256, 1_000)
OVERHEAD_SHARE = 0.2
MICRO_BATCH_S_MAX = 5.0
PARTITIONS_A_CORE = 4
"""Of the ops topic, as docs/scale.md advises: each is a task that reads."""
SMALL_TASKS = 12
"""Of a micro-batch of ten operations of ten queues: that many read, and two decide."""
REPLICAS = 3
BROKER_MB_S = 100.0
"""An assumption: what a broker appends, replicas with it, and has room for reading."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What one operation, one task and one micro-batch take.

    Attributes:
        executor_us: CPU of executors an operation until it is decided, in microseconds: of their Python and their JVM,
            with the rows that they write meanwhile.
        task_ms: The driver's time a task, in milliseconds.
        micro_batch_ms: What a micro-batch of ten operations takes, in milliseconds, with its SMALL_TASKS tasks.
        log_bytes: Appended to Kafka an operation, without replicas.
        table_rows: Rows of all tables an operation.
        table_bytes: Their bytes an operation.
    """

    executor_us: float
    task_ms: float
    micro_batch_ms: float
    log_bytes: float
    table_rows: float
    table_bytes: float


class Scaled(msgspec.Struct, frozen=True):
    """A cluster with a number of executors of one core.

    Attributes:
        executors: The number, of all prefixes together.
        prefixes: Jobs among which the queues are divided.
        operations_per_s: Single operations a second that all of them decide.
        micro_batch_s: Length of a micro-batch, in seconds.
        brokers: Of Kafka.
        kafka_mb_s: Appended with replicas, in MB a second.
        rows_per_s: Rows to the tables a second.
        tables_mb_s: In MB a second.
    """

    executors: int
    prefixes: int
    operations_per_s: float
    micro_batch_s: float
    brokers: int
    kafka_mb_s: float
    rows_per_s: float
    tables_mb_s: float


def scaled(measured: Calibration, executors: int) -> Scaled:
    """Return what a number of executors of one core decides.

    >>> measured = Calibration(
    ...     executor_us=80, task_ms=1, micro_batch_ms=300, log_bytes=500, table_rows=2, table_bytes=50
    ... )
    >>> found = scaled(measured, 4)
    >>> found.prefixes, found.operations_per_s, found.micro_batch_s, found.kafka_mb_s, found.rows_per_s
    (1, 40000.0, 1.54, 60.0, 80000.0)
    >>> scaled(measured, 1_000).prefixes
    8
    """
    operations_per_s = executors * 1e6 / measured.executor_us * (1 - OVERHEAD_SHARE)
    prefixes = next(count for count in range(1, executors + 1) if _fits(measured, math.ceil(executors / count)))
    kafka_mb_s = operations_per_s * measured.log_bytes * REPLICAS / 1e6
    return Scaled(
        executors,
        prefixes,
        operations_per_s,
        _micro_batch_s(measured, math.ceil(executors / prefixes)),
        max(REPLICAS, math.ceil(kafka_mb_s / BROKER_MB_S)),
        kafka_mb_s,
        operations_per_s * measured.table_rows,
        operations_per_s * measured.table_bytes / 1e6,
    )


def _micro_batch_s(measured: Calibration, executors: int) -> float:
    tasks = max(0, executors * (PARTITIONS_A_CORE + 1) - SMALL_TASKS)
    return (measured.micro_batch_ms + tasks * measured.task_ms) / (1e3 * OVERHEAD_SHARE)


def _fits(measured: Calibration, executors: int) -> bool:
    return executors == 1 or _micro_batch_s(measured, executors) <= MICRO_BATCH_S_MAX


def calibration_of(report: Mapping[str, Any]) -> Calibration:
    """Return what the part `cluster` of a report says, of two executors.

    Raises:
        KeyError: The report lacks something.
    """
    two = report["cluster"]["single_2_executors"]
    cpu = two["cpu_us_per_record"]
    return Calibration(
        executor_us=round(_median(cpu["executor_python"]) + _median(cpu["executor_jvm"]), 1),
        task_ms=_median(two["driver_ms_per_task"]),
        micro_batch_ms=_median(two["micro_batch_ms"]["triggerExecution"]),
        log_bytes=round(sum(map(_median, two["log_bytes_per_record"].values())), 1),
        table_rows=_median(two["table_rows_per_record"]),
        table_bytes=_median(two["table_bytes_per_record"]),
    )


def _median(value: float | Sequence[float]) -> float:
    """Return a number of one run, or the median of several (`repeated.merged`)."""
    return value if isinstance(value, int | float) else value[0]


def markdown(measured: Calibration) -> str:
    """Return the calibration and the table of docs/scale.md."""
    facts = ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(measured).items())
    lines = [
        f"Calibration: {facts}",
        "",
        "| executors | prefixes | single operations/s | micro-batch | Kafka, with replicas | rows to the tables |",
        "|---|---|---|---|---|---|",
    ]
    for executors in EXECUTORS:
        found = scaled(measured, executors)
        lines.append(
            f"| {executors:,} | {found.prefixes:,} | {_round(found.operations_per_s):,} | {found.micro_batch_s:.1f} s"
            f" | {_round(found.kafka_mb_s):,} MB/s, {found.brokers:,} brokers"
            f" | {_round(found.rows_per_s):,}/s, {_round(found.tables_mb_s):,} MB/s |"
        )
    return "\n".join(lines)


def _round(value: float) -> int:
    """Return two digits of it, which is more than an extrapolation knows.

    >>> _round(12_345), _round(7.2)
    (12000, 7)
    """
    return int(round(value, 1 - max(1, math.floor(math.log10(max(value, 1))))))


def main() -> None:
    """Print the table of the newest report, or of one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.cluster_model", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", nargs="?", type=Path, help="by default the newest in var/bench with the part `cluster`")
    chosen = parser.parse_args().file
    for file in [chosen] if chosen else sorted(Path("var/bench").glob("*.json"), reverse=True):
        report = json.loads(file.read_text())
        if "driver_ms_per_task" in report.get("cluster", {}).get("single_2_executors", {}):
            print(f"{file}\n\n{markdown(calibration_of(report))}")
            return
    parser.error("there is no report with the part `cluster`: run `make bench PART=cluster`")


if __name__ == "__main__":
    main()
