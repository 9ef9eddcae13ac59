"""How often a job was started with the same undecided micro-batch: what finds a record under which a container ends.

A task counts its attempts, but not when its container ends as well: what the container had written for other tasks is
lost with it, and Spark begins the stage anew, with attempts from 0. After four of these the job fails. So the driver
counts its starts, and from the third one on such a micro-batch is decided with notes from the first attempt on.
"""

import msgspec
from pyspark.sql import SparkSession

from pipelines.cluster.committed import micro_batches_in
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["WHOLE_STARTS_MAX", "noted_micro_batch"]

WHOLE_STARTS_MAX = 2
"""Starts at all records of a shard."""


class _Starts(msgspec.Struct, frozen=True):
    spark_batch_id: int
    count: int


def noted_micro_batch(spark: SparkSession, query_checkpoint: str, committed: int) -> int | None:
    """Count a start; return the number of a micro-batch that is to be decided with notes, or None.

    Args:
        spark: A session.
        query_checkpoint: Path or URL of the checkpoint of the deciding query.
        committed: Number of the last committed micro-batch; -1: there is none.

    Raises:
        Unavailable: The place cannot be reached.
    """
    spark_batch_id = max(micro_batches_in(spark, f"{query_checkpoint}/offsets"), default=-1)
    if spark_batch_id <= committed:
        return None
    file = HadoopFile(spark, f"{query_checkpoint}-starts.json")
    before = _decoded(file.read())
    starts = _Starts(spark_batch_id, before.count + 1 if before.spark_batch_id == spark_batch_id else 1)
    file.write(msgspec.json.encode(starts))
    return spark_batch_id if starts.count > WHOLE_STARTS_MAX else None


def _decoded(stored: bytes | None) -> _Starts:
    try:
        return _Starts(-1, 0) if stored is None else msgspec.json.decode(stored, type=_Starts)
    except DECODE_ERRORS:  # a start that was killed while it wrote it
        return _Starts(-1, 0)
