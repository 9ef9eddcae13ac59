"""The deduplication ids of the queues of the builder's store, in its family `meta`.

dedup i <queue> hash of an id  the last accepted unit with it: queue offset, store time, number
dedup o <queue> queue offset   the same by offset: hash of the id, store time, number
dedup n <queue>                the number of the last accepted unit, and how many were forgotten early
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import islice

from broker_state.consume_queue import Accepted
from broker_state.store.keys import end_of_prefix, queue_prefix
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, Erasure, RocksStore
from pipelines.build_units.accepted_ids import IdCounts
from popstream.wire.queue_name import QueueName

__all__ = ["BY_ID_KEY", "BY_OFFSET_KEY", "NO_IDS", "StoredIds", "counts_change", "erasures_of", "read_id_counts"]

BY_ID_KEY = b"dedup i "
BY_OFFSET_KEY = b"dedup o "
COUNTS_KEY = b"dedup n "
NO_IDS = IdCounts(0, 0)

_ACCEPTED = struct.Struct(">Qqq")
_COUNTS = struct.Struct(">qQ")


class StoredIds:
    """The `AcceptedIds` of one queue: reads the store, and collects what the next WriteBatch changes.

    Args:
        store: The builder's store.
        queue: The queue.
        counts: What is counted of its ids.

    Attributes:
        changes: For the WriteBatch.
    """

    def __init__(self, store: RocksStore, queue: QueueName, counts: IdCounts) -> None:
        self._store = store
        self._prefix = queue_prefix(*queue)
        self._found: dict[bytes, Accepted] = {}
        self.counts = counts
        self.changes: list[Change] = []

    def find(self, hashes: Sequence[bytes]) -> list[Accepted | None]:
        """See `AcceptedIds.find`."""
        values = self._store.get_many(META, [self._by_id(hashed) for hashed in hashes])
        for hashed, value in zip(hashes, values, strict=True):
            if value is not None:
                self._found[hashed] = Accepted(*_ACCEPTED.unpack(value))
        return [self._found.get(hashed) for hashed in hashes]

    def oldest(self, count: int) -> list[tuple[bytes, Accepted]]:
        """See `AcceptedIds.oldest`."""
        first = BY_OFFSET_KEY + self._prefix
        return [
            (value[: -_ACCEPTED.size], Accepted(*_ACCEPTED.unpack(value[-_ACCEPTED.size :])))
            for _, value in islice(self._store.scan(META, first, end_of_prefix(first)), count)
        ]

    def update(
        self, forgotten: Sequence[tuple[bytes, Accepted]], accepted: Mapping[bytes, Accepted], counts: IdCounts
    ) -> None:
        """See `AcceptedIds.update`."""
        for hashed, last in accepted.items():
            if hashed in self._found:
                self.changes.append((META, self._by_offset(self._found[hashed]), None))
            packed = _ACCEPTED.pack(*last)
            self.changes.append((META, self._by_id(hashed), packed))
            self.changes.append((META, self._by_offset(last), hashed + packed))
        for hashed, last in forgotten:
            self.changes.append((META, self._by_offset(last), None))
            self.changes.append((META, self._by_id(hashed), None))
        if counts != self.counts:
            self.changes.append(_counts_change(self._prefix, counts))
        self.counts = counts

    def _by_id(self, hashed: bytes) -> bytes:
        return BY_ID_KEY + self._prefix + hashed

    def _by_offset(self, last: Accepted) -> bytes:
        return BY_OFFSET_KEY + self._prefix + last.queue_offset.to_bytes(8, "big")


def erasures_of(queue: QueueName) -> list[Erasure]:
    """Return what forgets the ids of a queue."""
    prefix = queue_prefix(*queue)
    counts = _counts_key(prefix)
    return [
        *((META, kind + prefix, end_of_prefix(kind + prefix)) for kind in (BY_ID_KEY, BY_OFFSET_KEY)),
        (META, counts, counts + b"\0"),
    ]


def read_id_counts(store: RocksStore, queue: QueueName) -> IdCounts:
    """Return what is counted of the deduplication ids of a queue."""
    stored = store.get(META, _counts_key(queue_prefix(*queue)))
    return NO_IDS if stored is None else IdCounts(*_COUNTS.unpack(stored))


def counts_change(queue: QueueName, counts: IdCounts) -> Change:
    """Return the change that stores what is counted of the ids of a queue."""
    return _counts_change(queue_prefix(*queue), counts)


def _counts_change(prefix: bytes, counts: IdCounts) -> Change:
    return META, _counts_key(prefix), _COUNTS.pack(*counts)


def _counts_key(prefix: bytes) -> bytes:
    return COUNTS_KEY + prefix
