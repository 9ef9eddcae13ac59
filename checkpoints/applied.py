"""How far the ops topic is decided: a record that is part of every WriteBatch.

Everything else that stores a position (Spark's checkpoint, Delta's transaction versions) is reconciled against it.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from broker_state.store.rocks_store import META, RocksStore
from broker_state.store.value_format import FORMAT_1, StoredRecord, read_stored
from popstream.wire.base_errors import Invalid

__all__ = ["APPLIED_KEY", "NOTED_KEY", "Applied", "applied_of", "decode_noted", "encode_noted"]

APPLIED_KEY = b"applied"
_decode_noted = msgspec.msgpack.Decoder(dict[str, int]).decode
NOTED_KEY = b"noted"
"""Key of the apply_seq by table up to which its rows are in Delta, so that the outbox may have deleted them."""


class Applied(StoredRecord, msgspec.Struct, frozen=True, kw_only=True):
    """How far a state has decided the log.

    Attributes:
        state_epoch: Identity of the state. New when it is created or restored, because Delta may have rows of other
            decisions for the same apply_seq.
        ops_topic: Name of the ops topic.
        ops_topic_id: Kafka's id of the ops topic.
        apply_seq: Number of the last WriteBatch.
        next_offset: First undecided Kafka offset, by partition.
        query_id: Spark's id of the query that wrote it.
        spark_batch_id: Spark's number of the micro-batch.
        former_epochs: The state epochs that this state continues.
    """

    STORED_AS: ClassVar[str] = "applied"

    state_epoch: str
    ops_topic: str
    ops_topic_id: str
    apply_seq: int = 0
    next_offset: dict[int, int] = {}
    query_id: str = ""
    spark_batch_id: int = -1
    former_epochs: list[str] = []

    @property
    def epochs(self) -> tuple[str, ...]:
        """The state epoch, and those that it continues."""
        return (self.state_epoch, *self.former_epochs)

    def after(self, end_offset: Mapping[int, int], query_id: str, spark_batch_id: int) -> "Applied":
        """Return the record after one more WriteBatch, which ended at `end_offset` of each of its partitions."""
        is_forward = all(end >= self.next_offset.get(partition, 0) for partition, end in end_offset.items())
        assert is_forward, f"a log is never decided twice: {dict(end_offset)} is before {self.next_offset}"
        return msgspec.structs.replace(
            self,
            apply_seq=self.apply_seq + 1,
            next_offset={**self.next_offset, **end_offset},
            query_id=query_id,
            spark_batch_id=spark_batch_id,
        )


def encode_noted(delivered: Mapping[str, int]) -> bytes:
    """Format byte and MessagePack.

    >>> decode_noted(encode_noted({"operations": 7})), decode_noted(None)
    ({'operations': 7}, {})
    """
    return FORMAT_1 + msgspec.msgpack.encode(dict(delivered))


def decode_noted(value: bytes | None) -> dict[str, int]:
    """Decode what `encode_noted` wrote; None is an empty map, as in a new state.

    Raises:
        CorruptValueError: It has another format byte, or is not such a map.
    """
    if value is None:
        return {}
    return read_stored("noted", FORMAT_1, value, _decode_noted)


def applied_of(store: RocksStore) -> Applied:
    """Return how far the state in `store` has decided the log.

    Raises:
        Invalid: It has decided nothing.
        CorruptValueError: The record cannot be decoded.
    """
    stored = store.get(META, APPLIED_KEY)
    if stored is None:
        message = "the state has decided nothing yet"
        raise Invalid(message)
    return Applied.decode(stored)
