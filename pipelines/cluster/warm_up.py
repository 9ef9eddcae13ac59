"""Starts Python on the executors while the driver is busy with its own start, so that no micro-batch waits for it."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from connectors.delta.spark_errors import SPARK_ERRORS, spark_text
from pipelines.cluster.decide.packed_records import pack
from pipelines.cluster.decide.shard_processor import ShardProcessor

__all__ = ["warm_up"]

_log = structlog.get_logger(__name__)

_NEEDED = (pack, ShardProcessor)
"""What a worker that imports this module has imported then, with all that it takes."""


def warm_up(spark: SparkSession, tasks: int) -> None:
    """Begin to start a Python worker in each task, which Spark keeps; what goes wrong is left to the first micro-batch.

    Args:
        spark: A session.
        tasks: Tasks that run at once.
    """
    threading.Thread(target=_start_workers, args=(spark, tasks), name="warm-up", daemon=True).start()


def _start_workers(spark: SparkSession, tasks: int) -> None:
    try:
        spark.range(0, tasks, 1, tasks).mapInArrow(_as_they_are, "id long").collect()
    except SPARK_ERRORS as error:
        _log.debug("executors_not_warm", error=spark_text(error))


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows, once this module is imported."""
    return batches
