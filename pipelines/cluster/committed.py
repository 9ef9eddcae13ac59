"""How far a query has come, by its checkpoint: its last committed micro-batch, and the offsets at its end."""

from typing import NamedTuple

from pyspark.sql import SparkSession

from checkpoints.reconcile import LogFound, lost_end, lost_records
from checkpoints.spark_progress import planned_offsets
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Corrupt

__all__ = ["Committed", "is_committed", "last_committed", "micro_batches_in"]


class Committed(NamedTuple):
    """A micro-batch: its number, and by partition the Kafka offset after the last record of it and of all before it."""

    spark_batch_id: int
    ends: dict[int, int]

    def require_log(self, log: LogFound) -> None:
        """Refuse an ops topic that no longer has what comes next. A state that begins with it has no `ends`.

        Raises:
            Corrupt: Records were deleted before they were decided, or after: new ones would get their offsets.
        """
        if lost := lost_end(self.ends, log):
            message = (
                f"{log.topic} has lost its end, and would give offsets that are decided to other records: delete the"
                " topic, and begin a new checkpoint with tables of its own, as what was decided is of another log"
            )
            raise Corrupt(message, subject=log.topic, details=lost)
        if self.ends and (lost := lost_records(self.ends, log)):
            message = (
                f"{log.topic} has lost records before they were decided: let it retain more, and begin a new checkpoint"
                " with `--take-over`, which decides from the first record that is left"
            )
            raise Corrupt(message, subject=log.topic, details=lost)


def last_committed(spark: SparkSession, query_checkpoint: str, topic: str) -> Committed | None:
    """Return the last committed micro-batch; None: there is none.

    Args:
        spark: A session.
        query_checkpoint: Path or URL of the checkpoint of the query.
        topic: The topic that it reads.

    Raises:
        Corrupt: The checkpoint lacks its offsets, or they cannot be read.
        Unavailable: The place cannot be reached.
    """
    numbers = micro_batches_in(spark, f"{query_checkpoint}/commits")
    if not numbers:
        return None
    file = HadoopFile(spark, f"{query_checkpoint}/offsets/{max(numbers)}")
    stored = file.read()
    try:
        ends = None if stored is None else planned_offsets(stored.decode()).get(topic)
    except ValueError as error:
        message = f"{file.url} cannot be read: {error}"
        raise Corrupt(message, subject=file.url) from error
    if ends is None:
        message = f"{file.url} has no offsets of {topic}: the checkpoint is damaged, or that of another query"
        raise Corrupt(message, subject=file.url)
    return Committed(max(numbers), ends)


def is_committed(spark: SparkSession, query_checkpoint: str) -> bool:
    """Return whether a query has committed a micro-batch. Raises Unavailable."""
    return bool(micro_batches_in(spark, f"{query_checkpoint}/commits"))


def micro_batches_in(spark: SparkSession, log: str) -> list[int]:
    """Return the numbers of the micro-batches in a log of a checkpoint: `offsets` or `commits`. Raises Unavailable."""
    return [int(name) for name in HadoopFile(spark, log).names() if name.isdigit()]
