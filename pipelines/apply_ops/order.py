"""Step 2, order: decoded records in the order of the log, and the offsets at which a micro-batch ends.

The end comes from the range that Spark planned, not from the records that arrived: offsets without a record inside the
range are holes (control records, aborted transactions), and count as applied with the records around them.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple, Protocol

from broker_state.kernel.context.decision import OpRecord
from checkpoints.applied import Applied
from pipelines.apply_ops.decode import Rejected
from popstream.wire.base_errors import Unavailable

__all__ = ["Ordered", "Plans", "end_of_micro_batch", "order"]


class Plans(Protocol):
    """The ranges of offsets that Spark planned for micro-batches (`SparkPlans`)."""

    @property
    def query_id(self) -> str:
        """Id of the query that planned them."""

    def end_of(self, batch_id: int) -> dict[int, int]:
        """Return the offset after the last one of a micro-batch, by partition; raise Unavailable if it is unknown."""


class Ordered(NamedTuple):
    """Records that are not applied yet, each list by (partition, Kafka offset)."""

    operations: list[OpRecord]
    rejected: list[Rejected]


_place = itemgetter(0, 1)  # partition and kafka_offset of an OpRecord, and of a RejectedRow


def order(decoded: Iterable[OpRecord | Rejected], next_offset: Mapping[int, int]) -> Ordered:
    """Sort decoded records by (partition, Kafka offset), and drop those below `next_offset` of their partition.

    Args:
        decoded: In any order.
        next_offset: By partition, the offset up to which the log is applied; 0 for partitions that are missing.
    """
    operations: list[OpRecord] = []
    rejected: list[Rejected] = []
    for record in decoded:
        if isinstance(record, Rejected):
            if record.row.kafka_offset >= next_offset.get(record.row.partition, 0):
                rejected.append(record)
        elif record.kafka_offset >= next_offset.get(record.partition, 0):
            operations.append(record)
    operations.sort(key=_place)
    rejected.sort(key=lambda each: _place(each.row))
    return Ordered(operations, rejected)


def end_of_micro_batch(plans: Plans, batch_id: int, applied: Applied) -> dict[int, int]:
    """Return the offsets, by partition, up to which the log is applied after a micro-batch.

    Raises:
        Unavailable: The plan cannot be read, or starts after the applied offsets: records between would be lost. The
            next start of the job plans from the applied offsets.
    """
    ends = plans.end_of(batch_id)
    starts = plans.end_of(batch_id - 1) if batch_id else {}
    for partition, start in starts.items():
        next_offset = applied.next_offset.get(partition, 0)
        if start > next_offset:
            message = (
                f"{applied.ops_topic} partition {partition} is applied up to offset {next_offset},"
                f" but Spark continues at {start}"
            )
            raise Unavailable(message, subject=applied.ops_topic)
    return {partition: max(end, applied.next_offset.get(partition, 0)) for partition, end in ends.items()}
