"""A job that prints what its executors import, and from where: a line of JSON for each partition."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 2


def facts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return a row of facts, and the answer of the kernel to an operation."""
    import os  # noqa: PLC0415 - on the executor
    import sys  # noqa: PLC0415

    import msgspec  # noqa: PLC0415
    import xxhash  # noqa: PLC0415

    import broker_state.kernel.fold  # noqa: PLC0415
    import connectors.delta.rows  # noqa: PLC0415
    import popstream  # noqa: PLC0415

    imported = [msgspec, xxhash, pa, broker_state, connectors.delta.rows, popstream]
    found = {
        "kernel": broker_state.KERNEL_FORM,
        "fold": broker_state.kernel.fold.__file__,
        "python": sys.executable,
        "version": popstream.__version__,
        "files": [module.__file__ for module in imported],
        "path": os.environ["PYTHONPATH"],
        "hash": xxhash.xxh64_hexdigest(b"".join(str(batch.num_rows).encode() for batch in batches)),
    }
    yield pa.RecordBatch.from_pydict({"facts": [json.dumps(found)]})


def main() -> None:
    """Run the job."""
    spark = SparkSession.Builder().getOrCreate()
    rows = spark.range(PARTITIONS, numPartitions=PARTITIONS).mapInArrow(facts, "facts string").collect()
    for row in rows:
        print(row.facts)
    spark.stop()


if __name__ == "__main__":
    main()
