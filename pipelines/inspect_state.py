"""Reading the state for people: queues and lanes as they are stored, without deciding anything."""

from collections.abc import Iterator

import msgspec

from broker_state.overlay import STATE
from broker_state.records import LaneRecord, QueueRecord
from broker_state.rocks_store import RocksStore

__all__ = ["LaneView", "QueueView", "queues_in"]


class LaneView(msgspec.Struct, frozen=True):
    """One lane as `popstream status` shows it."""

    group: str
    commit_offset: int
    next_offset: int
    lag: int
    leased: int
    available: int
    parked: int
    acked: int
    dead_lettered: int
    epoch: int


class QueueView(msgspec.Struct, frozen=True):
    """One queue as `popstream status` shows it."""

    topic: str
    queue_id: int
    topic_id: str
    queue_type: str
    now_ms: int
    min_offset: int
    commit_position: int
    holes: int
    lanes: list[LaneView]


def queues_in(store: RocksStore) -> Iterator[QueueView]:
    """Every queue of the state with its lanes, in the order of their keys.

    Keys of one queue share a prefix, so after its record only the records of its lanes are read.
    """
    at = b""
    while True:
        first = next(iter(store.scan(STATE, at)), None)
        if first is None:
            return
        key = first[0]
        size = 1 + key[0] + 4
        prefix = key[:size]
        stored = store.get(STATE, prefix + b"Q")
        if stored is not None:
            record = QueueRecord.decode(stored)
            yield QueueView(
                topic=prefix[1:-4].decode(),
                queue_id=int.from_bytes(prefix[-4:], "big"),
                topic_id=record.topic_id,
                queue_type=record.queue_type,
                now_ms=record.now_ms,
                min_offset=record.min_offset,
                commit_position=record.commit_position,
                holes=record.holes,
                lanes=[_lane(record, LaneRecord.decode(value)) for _, value in _lanes(store, prefix)],
            )
        at = prefix + b"\xff"


def _lanes(store: RocksStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    return store.scan(STATE, prefix + b"N", prefix + b"O")


def _lane(queue: QueueRecord, lane: LaneRecord) -> LaneView:
    return LaneView(
        group=lane.group,
        commit_offset=lane.commit_offset,
        next_offset=lane.next_offset,
        lag=queue.commit_position - lane.commit_offset,
        leased=lane.leased,
        available=lane.available,
        parked=lane.parked,
        acked=lane.acked,
        dead_lettered=lane.dead_lettered,
        epoch=lane.epoch,
    )
