"""A job that adds the numbers below its argument, and takes a tenth of a second for each."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches as they are."""
    for batch in batches:
        time.sleep(0.1 * batch.num_rows)
        yield batch


def main() -> None:
    """Run the job."""
    count = int(sys.argv[1])
    spark = SparkSession.Builder().getOrCreate()
    (row,) = (
        spark.range(count, numPartitions=count).mapInArrow(slowly, "id long").selectExpr("sum(id) AS total").collect()
    )
    print(row.total)
    spark.stop()


if __name__ == "__main__":
    main()
