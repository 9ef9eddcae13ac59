"""How far the ops log is decided: the record that is part of every WriteBatch.

Everything else that knows a position - Spark's checkpoint, Delta's transaction versions - is reconciled against it.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from broker_state.errors import Corrupt, CorruptValueError

__all__ = ["APPLIED_KEY", "Applied", "refuse_lost_records"]

APPLIED_KEY = b"applied"


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The log is decided up to `next_offset` of each partition; `apply_seq` counts the micro-batches that did it.

    `state_epoch` is the life of this state: a new one begins when it is made or restored, because its apply_seq then
    mean other decisions than those that Delta may know.
    """

    state_epoch: str
    ops_topic: str
    ops_topic_id: str
    apply_seq: int = 0
    next_offset: dict[int, int] = {}
    query_id: str = ""
    spark_batch_id: int = -1

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return b"\x01" + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        if value[:1] != b"\x01":
            raise CorruptValueError("applied", value)
        try:
            return msgspec.msgpack.decode(value[1:], type=cls)
        except msgspec.DecodeError as error:
            raise CorruptValueError("applied", value) from error

    def after(self, end_offset: Mapping[int, int], query_id: str, spark_batch_id: int) -> "Applied":
        """One micro-batch further, which ended at `end_offset` of each of its partitions."""
        return msgspec.structs.replace(
            self,
            apply_seq=self.apply_seq + 1,
            next_offset={**self.next_offset, **end_offset},
            query_id=query_id,
            spark_batch_id=spark_batch_id,
        )


def refuse_lost_records(
    applied: Applied, topic_id: str, first_offset: Mapping[int, int], end_offset: Mapping[int, int]
) -> None:
    """Check at start that the log still has every record that is to be decided.

    Args:
        applied: How far the log is decided.
        topic_id: Kafka's id of the ops topic now.
        first_offset: First offset that each partition still has.
        end_offset: The offset after its last one.

    Raises:
        Corrupt: the topic is another one, or starts after what is to be decided, or ends before what was.
    """
    if topic_id != applied.ops_topic_id:
        message = (
            f"{applied.ops_topic} was deleted and made again: its records are not those that this state continues."
            " Restore the topic, or start with an empty job folder"
        )
        raise Corrupt(message, subject=applied.ops_topic)
    details = []
    for partition, next_offset in sorted(applied.next_offset.items()):
        if partition not in end_offset:
            details.append(f"partition {partition} is gone")
        elif first_offset[partition] > next_offset:
            details.append(
                f"partition {partition} starts at {first_offset[partition]}, but is decided only up to {next_offset}"
            )
        elif end_offset[partition] < next_offset:
            details.append(f"partition {partition} ends at {end_offset[partition]}, but is decided up to {next_offset}")
    if details:
        message = f"{applied.ops_topic} has lost records: restore a snapshot that its log can continue"
        raise Corrupt(message, subject=applied.ops_topic, details=details)
