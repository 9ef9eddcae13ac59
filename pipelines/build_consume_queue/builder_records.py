"""What is in the builder's store, and how it is read. builder.py says what is where, and writes it."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import msgspec

from broker_state.consume_queue import ConsumeQueue, Get, place_key
from broker_state.store.keys import queue_prefix, read_queue_prefix
from broker_state.store.rocks_store import META, QUEUES, UNITS, RocksStore
from broker_state.store.value_format import StoredRecord
from pipelines.decide_ops.entry import Entry
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName

__all__ = [
    "BUILT_KEY",
    "Built",
    "UnitSpan",
    "UnitsInDelta",
    "built_of",
    "delta_end_key",
    "read_queues",
    "read_spans",
    "reader_of",
]

BUILT_KEY = b"built"
DELTA_END_KEY = b"audited "


class Built(StoredRecord, msgspec.Struct, frozen=True, kw_only=True):
    """`build_seq` counts the WriteBatches of the store; `state_epoch` is new when it is created or restored."""

    STORED_AS: ClassVar[str] = "built"

    state_epoch: str
    build_seq: int = 0


class UnitSpan(msgspec.Struct, array_like=True, frozen=True):
    """The units of [first_offset, end_offset) of a queue, which are to be written to Delta."""

    topic: str
    queue_id: int
    topic_id: str
    queue_type: QueueType
    first_offset: int
    end_offset: int
    message_base: int
    """Message base of the first unit."""
    unit_count: int


class UnitsInDelta(NamedTuple):
    """The units that the Delta table has.

    Attributes:
        ends: By topic, queue id and topic id, the offset below which all units are in the table.
        topic_ids: Present topic ids by name; deleted topics are missing.
    """

    ends: Mapping[tuple[str, int, str], int]
    topic_ids: Mapping[str, str]


def built_of(store: RocksStore) -> Built | None:
    """Return how far a builder's store is, or None if nothing was built yet."""
    stored = store.get(META, BUILT_KEY)
    return None if stored is None else Built.decode(stored)


def delta_end_key(queue: QueueName) -> bytes:
    """Return the key of the offset below which the units of a queue are in Delta."""
    return DELTA_END_KEY + queue_prefix(*queue)


def reader_of(store: RocksStore, queue: QueueName) -> Get:
    """Return a reader of the values of one queue."""
    prefix = queue_prefix(*queue)
    return lambda place: store.get(UNITS, place_key(prefix, place))


def read_queues(store: RocksStore) -> Iterator[tuple[QueueName, ConsumeQueue]]:
    """Yield every queue of a builder's store, in the order of their keys."""
    for key, value in store.scan(QUEUES, b""):
        yield read_queue_prefix(key), ConsumeQueue.decode(value)


def read_spans(entry: Entry) -> list[UnitSpan]:
    """Return the spans of an outbox entry of kind UNIT_SPANS."""
    return msgspec.msgpack.decode(entry.value, type=list[UnitSpan])
