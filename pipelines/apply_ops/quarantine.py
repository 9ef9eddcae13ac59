"""The quarantine: records that failed each time they were decided, even alone. They are rejected from then on.

    meta   'quarantine', partition u32, kafka offset u64      the error (UTF-8)

The list is part of the state: a snapshot contains it, and a replay reads it to make the same decisions.
"""

import struct
from collections.abc import Callable, Iterator

import structlog

from broker_state.kernel.context.decision import OpRecord
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, Erasure, RocksStore
from broker_state.store.value_format import CorruptValueError
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected, reject_quarantined
from pipelines.decide_ops.poison import quarantine_reason

__all__ = ["QUARANTINE", "Quarantine", "QuarantinedRecord", "quarantine_change"]

_log = structlog.get_logger(__name__)

_PREFIX = b"quarantine"
QUARANTINE: Erasure = (META, _PREFIX, _PREFIX + b"\xff")
"""The key range of the list. Restoring for another topic erases it, as its coordinates belong to one topic."""
_PLACE = struct.Struct(">IQ")

QuarantinedRecord = tuple[int, int]
"""(partition, Kafka offset)."""


def quarantine_change(partition: int, kafka_offset: int, error: str) -> Change:
    """Return the change that adds a record to the list."""
    return META, _PREFIX + _PLACE.pack(partition, kafka_offset), error.encode()


def _decode_place(key: bytes) -> QuarantinedRecord:
    try:
        partition, kafka_offset = _PLACE.unpack(key.removeprefix(_PREFIX))
    except struct.error as error:
        raise CorruptValueError("quarantine", key) from error
    return partition, kafka_offset


class Quarantine:
    """The list in the store, cached in memory.

    Args:
        store: The job's state.
        require_ownership: Raises Fenced once another process owns the state.

    Raises:
        CorruptValueError: The place of a record cannot be decoded.
    """

    def __init__(self, store: RocksStore, require_ownership: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._require_ownership = require_ownership
        self._errors = {_decode_place(key): value.decode(errors="replace") for key, value in store.scan(*QUARANTINE)}

    def decode(self, record: KafkaRecord, decoder: Decoder) -> OpRecord | Rejected:
        """Decode a record, or reject it if it is on the list."""
        error = self._errors.get((record.partition, record.kafka_offset)) if self._errors else None
        return decoder.decode(record) if error is None else reject_quarantined(record, error)

    def add(self, partition: int, kafka_offset: int, error: str) -> None:
        """Add a record, durably, before anything is decided without it."""
        self._require_ownership()
        error = quarantine_reason(error)
        self._store.write_changes([quarantine_change(partition, kafka_offset, error)])
        self._errors[partition, kafka_offset] = error
        _log.critical("record_quarantined", partition=partition, kafka_offset=kafka_offset, error=error)

    def __iter__(self) -> Iterator[tuple[QuarantinedRecord, str]]:
        """Iterate over (record, error), by partition and offset."""
        return iter(sorted(self._errors.items()))

    def __len__(self) -> int:
        """Return the number of records on the list."""
        return len(self._errors)
