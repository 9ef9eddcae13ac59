"""Records that nothing can be decided of: they failed alone, each time. From now on they are rejected.

    meta   'quarantine', partition u32, kafka offset u64      why (UTF-8)

The list is part of the state: a snapshot carries it, and a replay, which must come to the same decisions, reads it.
"""

import struct
from collections.abc import Callable, Iterator

import structlog

from broker_state.kernel.decision import OpRecord
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, Erasure, RocksStore
from pipelines.apply_ops.decode import Decoder, KafkaRecord, Rejected, reject_quarantined

__all__ = ["QUARANTINE", "Quarantine", "QuarantinedRecord", "quarantine_change"]

_log = structlog.get_logger(__name__)

_PREFIX = b"quarantine"
QUARANTINE: Erasure = (META, _PREFIX, _PREFIX + b"\xff")
"""The whole list: its places are none of another topic's."""
_PLACE = struct.Struct(">IQ")
_WHY_MAX = 400

QuarantinedRecord = tuple[int, int]
"""(partition, kafka offset)."""


def quarantine_change(partition: int, kafka_offset: int, why: str) -> Change:
    """What puts a record on the list."""
    return META, _PREFIX + _PLACE.pack(partition, kafka_offset), why.encode()


class Quarantine:
    """The list in the store, and in memory.

    Args:
        store: The job's state.
        require_ownership: Raises Fenced when the state may not be written any more.
    """

    def __init__(self, store: RocksStore, require_ownership: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._require_ownership = require_ownership
        self._why = {
            (place[0], place[1]): value.decode()
            for key, value in store.scan(*QUARANTINE)
            for place in [_PLACE.unpack(key.removeprefix(_PREFIX))]
        }

    def decode(self, record: KafkaRecord, decoder: Decoder) -> OpRecord | Rejected:
        """The operation of a record; what is on the list is rejected unread."""
        why = self._why.get((record.partition, record.kafka_offset)) if self._why else None
        return decoder.decode(record) if why is None else reject_quarantined(record, why)

    def add(self, partition: int, kafka_offset: int, why: str) -> None:
        """Put a record on the list, durably, before anything is decided without it."""
        self._require_ownership()
        why = why[:_WHY_MAX]
        self._store.write_changes([quarantine_change(partition, kafka_offset, why)])
        self._why[partition, kafka_offset] = why
        _log.critical("record_quarantined", partition=partition, kafka_offset=kafka_offset, why=why)

    def __iter__(self) -> Iterator[tuple[QuarantinedRecord, str]]:
        """Every record of the list with what went wrong, in order."""
        return iter(sorted(self._why.items()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._why)
