"""How far the ops log is decided: the record that is part of every WriteBatch.

Everything else that knows a position - Spark's checkpoint, Delta's transaction versions - is reconciled against it.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from broker_state.store.rocks_store import META, RocksStore
from broker_state.store.stored import FORMAT_1, read_stored
from popstream.wire.failures import Invalid

__all__ = ["APPLIED_KEY", "NOTED_KEY", "Applied", "applied_of", "decode_noted", "encode_noted"]

APPLIED_KEY = b"applied"
_decode_noted = msgspec.msgpack.Decoder(dict[str, int]).decode
NOTED_KEY = b"noted"
"""By table, the apply_seq up to which its rows are in Delta: the outbox may have forgotten them."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The log is decided up to `next_offset` of each partition; `apply_seq` counts the micro-batches that did it.

    `state_epoch` is the life of this state: a new one begins when it is made or restored, because its apply_seq then
    mean other decisions than those that Delta may know. `former_epochs` are those that it continues.
    """

    state_epoch: str
    ops_topic: str
    ops_topic_id: str
    apply_seq: int = 0
    next_offset: dict[int, int] = {}
    query_id: str = ""
    spark_batch_id: int = -1
    former_epochs: list[str] = []

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return FORMAT_1 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        return read_stored("applied", FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))

    def after(self, end_offset: Mapping[int, int], query_id: str, spark_batch_id: int) -> "Applied":
        """One micro-batch further, which ended at `end_offset` of each of its partitions."""
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
    """What `encode_noted` wrote; nothing was noted in a state that is new.

    Raises:
        CorruptValueError: Another format byte, or no such map.
    """
    if value is None:
        return {}
    return read_stored("noted", FORMAT_1, value, _decode_noted)


def applied_of(store: RocksStore) -> Applied:
    """How far the state in `store` has decided the log.

    Raises:
        Invalid: It has decided nothing.
        CorruptValueError: It cannot be read.
    """
    stored = store.get(META, APPLIED_KEY)
    if stored is None:
        message = "the state has decided nothing yet"
        raise Invalid(message)
    return Applied.decode(stored)
