"""Where a micro-batch ends in the log: where Spark planned it to end, not where the records that arrived end.

Offsets without a record inside the planned range are holes (control records, aborted transactions), and count as
applied with the records around them.
"""

from typing import Protocol

from checkpoints.applied import Applied
from popstream.wire.base_errors import Unavailable

__all__ = ["Plans", "end_of_micro_batch"]


class Plans(Protocol):
    """The ranges of offsets that Spark planned for micro-batches (`SparkPlans`)."""

    @property
    def query_id(self) -> str:
        """Id of the query that planned them."""

    def end_of(self, spark_batch_id: int) -> dict[int, int]:
        """Return the offset after the last one of a micro-batch, by partition; raise Unavailable if it is unknown."""


def end_of_micro_batch(plans: Plans, spark_batch_id: int, applied: Applied) -> dict[int, int]:
    """Return the offsets, by partition, up to which the log is applied after a micro-batch.

    Raises:
        Unavailable: The plan cannot be read, or starts after the applied offsets: records between would be lost. The
            next start of the job plans from the applied offsets.
    """
    ends = plans.end_of(spark_batch_id)
    starts = plans.end_of(spark_batch_id - 1) if spark_batch_id else {}
    for partition, start in starts.items():
        next_offset = applied.next_offset.get(partition, 0)
        if start > next_offset:
            message = (
                f"{applied.ops_topic} partition {partition} is applied up to offset {next_offset},"
                f" but Spark continues at {start}"
            )
            raise Unavailable(message, subject=applied.ops_topic)
    return {partition: max(end, applied.next_offset.get(partition, 0)) for partition, end in ends.items()}
