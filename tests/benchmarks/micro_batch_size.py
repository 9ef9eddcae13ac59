"""What Spark's work for a micro-batch costs, whatever is in it: drains by micro-batches of 20,000 and 100,000 records.

    python -m tests.benchmarks.micro_batch_size [operations]

The operations have one entry each. What the JVM of Spark spends on a record more in the small micro-batches is its
share of what it spends on a micro-batch (docs/adr/0019). A first drain, which compiles the code, does not count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.drain import drain, fill_with_single_entries

SMALL, LARGE = 20_000, 100_000
TURNS = (LARGE, SMALL, LARGE, LARGE, SMALL)
"""Records of a micro-batch at most; the first one is the warm-up."""
PREFIX = "sizes"


def main(operations: int, var: Path) -> None:
    """Measure and print."""
    spark_us: dict[int, list[float]] = {SMALL: [], LARGE: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(Path(folder) / "kafka", jars=kafka_jars(var)) as kafka,
    ):
        options = BenchOptions(operations=operations, runs=1, seconds=1, var=var, work=Path(folder))
        records = fill_with_single_entries(options, kafka, PREFIX, operations)
        for turn, size in enumerate(TURNS):
            found = drain(
                kafka,
                PREFIX,
                Path(folder) / f"turn-{turn}",
                var,
                records,
                flush_interval_s=5.0,
                records_per_micro_batch_max=size,
            )
            cpu_us = found["cpu_us_per_record"]
            print(
                f"micro-batches of {size:,}: {found['ops_per_s_until_answered']:,} operations a second,"
                f" {cpu_us['total']:.1f} us of CPU each, {cpu_us['spark_jvm']:.1f} of them in Spark's JVM",
                flush=True,
            )
            if turn:
                spark_us[size].append(cpu_us["spark_jvm"])
    small_us, large_us = (statistics.mean(spark_us[size]) for size in (SMALL, LARGE))
    saved_us = small_us - large_us
    print(
        f"large ones save {saved_us:.1f} us of CPU an operation in Spark's JVM, which is"
        f" {saved_us / (1 / SMALL - 1 / LARGE) / 1_000:.0f} ms for each micro-batch"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, Path("var").absolute())
