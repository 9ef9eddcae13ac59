"""From the ops topic to records in memory, never more than 64 MiB of values at a time.

Small values come with their coordinates, sizes and keys in one pass. A value too long for that is left behind, and read
again by offset in slices; of one over the cap only the head, the size and the hash leave the JVM.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipelines.apply_ops.decode import RECORD_BYTES_MAX, VALUE_HEAD_BYTES, KafkaRecord
from popstream.wire.failures import Unavailable

__all__ = ["SLICE_BYTES_MAX", "Intake", "MicroBatch"]

SLICE_BYTES_MAX = 64 * 1024 * 1024


class MicroBatch(NamedTuple):
    """A micro-batch out of Spark's hands, but for the values that were too long to come along."""

    spark_batch_id: int
    table: pa.Table
    fetch_seconds: float


class Intake:
    """Reads the ops topic in micro-batches of at most `records_max` records.

    Args:
        spark: The session.
        source_options: Options of Spark's Kafka source.
        topic: The ops topic.
        records_max: `maxOffsetsPerTrigger`: it bounds how long a value may be to come along at once.
    """

    def __init__(self, spark: SparkSession, source_options: dict[str, str], topic: str, records_max: int) -> None:
        self._spark = spark
        self._options = source_options
        self._topic = topic
        self._records_max = records_max
        self._inline_max = max(SLICE_BYTES_MAX // records_max, 1024)

    def stream(self, next_offset: Mapping[int, int]) -> DataFrame:
        """The topic from the given Kafka offsets on, by partition; `fetch` takes its micro-batches.

        The columns are chosen here, once: building them anew for every micro-batch would cost each some 60 ms.
        """
        frame = (
            self._spark.readStream.format("kafka")
            .options(**self._options)
            # Not `subscribe`: of partitions that somebody adds nothing must be decided (checkpoints/reconcile.py).
            .option("assign", json.dumps({self._topic: sorted(next_offset)}))
            .option("startingOffsets", json.dumps({self._topic: {str(p): o for p, o in next_offset.items()}}))
            .option("maxOffsetsPerTrigger", self._records_max)
            .load()
        )
        return _columns(frame, self._inline_max)

    def fetch(self, frame: DataFrame, spark_batch_id: int) -> MicroBatch:
        """Take a micro-batch over from Spark, which may forget it then."""
        started = time.perf_counter()
        table = frame.toArrow()
        return MicroBatch(spark_batch_id, table, time.perf_counter() - started)

    def records(self, micro_batch: MicroBatch) -> Iterator[list[KafkaRecord]]:
        """The records by (partition, kafka offset), in slices that fit in memory."""
        records = sorted(_to_records(micro_batch.table))
        pending: list[KafkaRecord] = []
        long: list[KafkaRecord] = []
        long_bytes = 0
        for record in records:
            is_long = self._inline_max < record.value_bytes <= RECORD_BYTES_MAX
            if is_long and long_bytes + record.value_bytes > SLICE_BYTES_MAX:
                yield self._completed(pending, long)
                pending, long, long_bytes = [], [], 0
            pending.append(record)
            if is_long:
                long.append(record)
                long_bytes += record.value_bytes
        yield self._completed(pending, long)

    def _completed(self, pending: list[KafkaRecord], long: Sequence[KafkaRecord]) -> list[KafkaRecord]:
        """`pending` with the values of its long records."""
        if not long:
            return pending
        wanted = {(record.partition, record.kafka_offset) for record in long}
        first = {p: min(o for q, o in wanted if q == p) for p, _ in wanted}
        last = {p: max(o for q, o in wanted if q == p) for p, _ in wanted}
        frame = (
            self._spark.read.format("kafka")
            .options(**self._options)
            .option("assign", json.dumps({self._topic: sorted(first)}))
            .option("startingOffsets", json.dumps({self._topic: {str(p): o for p, o in first.items()}}))
            .option("endingOffsets", json.dumps({self._topic: {str(p): o + 1 for p, o in last.items()}}))
            .load()
            .where(f.length("value") > self._inline_max)
        )
        values = {
            (record.partition, record.kafka_offset): record
            for record in _to_records(_columns(frame, RECORD_BYTES_MAX).toArrow())
        }
        if missing := sorted(wanted - values.keys()):
            message = f"{self._topic} had a record at (partition, offset) {missing[0]} a moment ago, and has it no more"
            raise Unavailable(message, subject=self._topic)  # the next start looks what else is gone
        return [values.get((record.partition, record.kafka_offset), record) for record in pending]


def _columns(frame: DataFrame, inline_max: int) -> DataFrame:
    size = f.coalesce(f.length("value"), f.lit(0))
    is_over = size > RECORD_BYTES_MAX
    return frame.select(
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        f.when(is_over, f.substring("value", 1, VALUE_HEAD_BYTES))
        .when(size <= inline_max, f.col("value"))
        .alias("value"),
        size.alias("value_bytes"),
        f.when(is_over, f.sha2("value", 256)).alias("value_sha256"),
    )


def _to_records(table: pa.Table) -> Iterator[KafkaRecord]:
    return map(KafkaRecord._make, zip(*(column.to_pylist() for column in table.columns), strict=True))
