"""Takes micro-batches of the ops topic over from Spark, with a bounded size of values in memory at a time.

Short values arrive in one pass, together with coordinates, sizes and keys. Long values are left out of that pass, and
read again by offset, in slices: the next one while the one before is decided. Of a value over the cap only its head,
size and hash leave the JVM.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from connectors.delta.session import join_pool
from connectors.kafka.record_columns import record_columns
from pipelines.apply_ops.read_ahead import read_ahead
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.laps import Lap
from popstream.wire.base_errors import Unavailable
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["LONG_VALUES_BYTES_MAX", "PIPELINE", "MicroBatch", "OpsSource"]

PIPELINE = "apply_ops"
"""Name of the Spark query and of its scheduler pool, and of the pipeline in Delta's transaction ids."""

SHORT_VALUES_BYTES_MAX = 64 * 1024 * 1024
"""What the values read in the first pass over a micro-batch take at most."""
LONG_VALUES_BYTES_MAX = 24 * 1024 * 1024
"""What the long values of a slice take. With a record of 4 MiB they fit in an Arrow buffer of 32 MiB. Arrow
doubles its buffers, with the one before beside it, in the JVM's direct memory (connectors/delta/session.py)."""


class MicroBatch(NamedTuple):
    """A micro-batch as taken over from Spark: all records, but null for values too long for the first pass."""

    spark_batch_id: int
    table: pa.Table
    fetch: Lap


class OpsSource:
    """Reads the ops topic in micro-batches.

    Args:
        spark: The session.
        source_options: Options of Spark's Kafka source.
        topic: The ops topic.
        records_max: Records per micro-batch (`maxOffsetsPerTrigger`). Values up to 64 MiB / `records_max`, but at least
            1 KiB, are read in the first pass.
    """

    def __init__(self, spark: SparkSession, source_options: dict[str, str], topic: str, records_max: int) -> None:
        self._spark = spark
        self._options = source_options
        self._topic = topic
        self._records_max = records_max
        self._short_value_bytes_max = max(SHORT_VALUES_BYTES_MAX // records_max, 1024)

    def stream(self, next_offset: Mapping[int, int]) -> DataFrame:
        """Return the streaming frame that reads each partition from its offset in `next_offset`.

        Its columns are built here, once: building them for each micro-batch takes some 60 ms.
        """
        frame = (
            self._spark.readStream.format("kafka")
            .options(**self._options)
            # `subscribe` would also read partitions that are added later: the start refuses them (reconcile.py).
            .option("assign", json.dumps({self._topic: sorted(next_offset)}))
            .option("startingOffsets", json.dumps({self._topic: {str(p): o for p, o in next_offset.items()}}))
            .option("maxOffsetsPerTrigger", self._records_max)
            .load()
        )
        # One task reads all partitions: a task for each takes longer than to read what a micro-batch usually has.
        return record_columns(frame, self._short_value_bytes_max).coalesce(1)

    def fetch(self, frame: DataFrame, spark_batch_id: int) -> MicroBatch:
        """Copy a micro-batch out of Spark, which may drop it afterwards."""
        with Lap("fetch") as lap:
            table = frame.toArrow()
        lap.facts = {"records": table.num_rows, "bytes": table.nbytes}
        return MicroBatch(spark_batch_id, table, lap)

    def records(self, micro_batch: MicroBatch) -> Iterator[list[KafkaRecord]]:
        """Yield the records in slices with at most 24 MiB of long values, nearly always one.

        Slices are in log order; the order within a slice is not defined.

        Raises:
            Unavailable: A long value is no longer in the log.
        """
        records = list(_to_records(micro_batch.table))
        if not any(self._is_long(record) for record in records):
            yield records
            return
        records.sort()  # only a slice that is a section of the log can be decided before the next one
        yield from read_ahead(self._slices(records), lambda: join_pool(self._spark, PIPELINE))

    def _slices(self, records: Iterable[KafkaRecord]) -> Iterator[list[KafkaRecord]]:
        """Yield records with their long values, as many at a time as `LONG_VALUES_BYTES_MAX` allows."""
        slice_records: list[KafkaRecord] = []
        long_records: list[KafkaRecord] = []
        long_bytes = 0
        for record in records:
            is_long = self._is_long(record)
            if is_long and long_bytes + record.value_bytes > LONG_VALUES_BYTES_MAX:
                yield self._with_long_values(slice_records, long_records)
                slice_records, long_records, long_bytes = [], [], 0
            slice_records.append(record)
            if is_long:
                long_records.append(record)
                long_bytes += record.value_bytes
        yield self._with_long_values(slice_records, long_records)

    def _is_long(self, record: KafkaRecord) -> bool:
        return self._short_value_bytes_max < record.value_bytes <= RECORD_BYTES_MAX

    def _with_long_values(self, records: list[KafkaRecord], long_records: Sequence[KafkaRecord]) -> list[KafkaRecord]:
        """Return `records` with the values of `long_records`, read by offset."""
        wanted = {(record.partition, record.kafka_offset) for record in long_records}
        first_offset = {p: min(o for q, o in wanted if q == p) for p, _ in wanted}
        last_offset = {p: max(o for q, o in wanted if q == p) for p, _ in wanted}
        frame = (
            self._spark.read.format("kafka")
            .options(**self._options)
            .option("assign", json.dumps({self._topic: sorted(first_offset)}))
            .option("startingOffsets", json.dumps({self._topic: {str(p): o for p, o in first_offset.items()}}))
            .option("endingOffsets", json.dumps({self._topic: {str(p): o + 1 for p, o in last_offset.items()}}))
            .load()
            .where(f.length("value") > self._short_value_bytes_max)
        )
        complete = {
            (record.partition, record.kafka_offset): record
            for record in _to_records(record_columns(frame, RECORD_BYTES_MAX).toArrow())
        }
        if missing := sorted(wanted - complete.keys()):
            message = f"the record of {self._topic} at (partition, offset) {missing[0]} left the log while it was read"
            raise Unavailable(message, subject=self._topic)  # the next start checks which records are lost
        return [complete.get((record.partition, record.kafka_offset), record) for record in records]


def _to_records(table: pa.Table) -> Iterator[KafkaRecord]:
    return map(KafkaRecord._make, zip(*(column.to_pylist() for column in table.columns), strict=True))
