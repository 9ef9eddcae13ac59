"""A state as rows: what each shard's maps have to hold, and back. Pure: it does not know where rows come from.

```
ops_partition   map                                                     key, value
3               one of ShardMaps                                        as stored there
3               meta                                                    empty key, ShardMeta
```
"""

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from broker_state.store.keys import queue_of_key
from broker_state.store.overlay import Change, Family
from pipelines.cluster.decide.deadline_index import DeadlineIndex
from pipelines.cluster.decide.shard import QueueDeadline, ShardMeta, deadlines_in
from pipelines.cluster.decide.shard_state import ShardMaps, ShardState, quarantine_key, quarantined_in

__all__ = [
    "DEADLINES_MAP",
    "META_MAP",
    "PROGRESS_MAPS",
    "CollectedMap",
    "Content",
    "Progress",
    "ShardRow",
    "content_of",
    "deadlines_of",
    "progress_of",
    "shard_rows",
]

META_MAP = "meta"
DEADLINES_MAP = "deadlines"
PROGRESS_MAPS = (META_MAP, "quarantined")
_CHANGES_AT_ONCE = 20_000


Content = tuple[Family, bytes, bytes]
"""(family, key, value), as in a store on disk."""


class ShardRow(NamedTuple):
    """A key with its value in a map of a shard."""

    ops_partition: int
    map: str
    key: bytes
    value: bytes


class CollectedMap:
    """A `StoredMap` in memory."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self._values[key] = value

    def remove(self, key: bytes) -> None:
        """Delete a key."""
        self._values.pop(key, None)

    def keys(self) -> Iterator[bytes]:
        """Yield all keys."""
        return iter(list(self._values))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values."""
        return iter(list(self._values.items()))


class Progress(NamedTuple):
    """How far shards have come.

    Attributes:
        next_offset: By partition of the ops topic, the first offset that is not decided.
        quarantined: By partition of the ops topic and offset, the errors of records that could not be decided.
    """

    next_offset: dict[int, int]
    quarantined: dict[int, dict[int, str]]


def shard_rows(
    content: Iterable[Content],
    metas: Mapping[int, ShardMeta],
    partition_of_queue: Callable[[bytes], int],
    *,
    quarantined: Mapping[int, Mapping[int, str]],
    seed: int,
    newest_ms: int,
) -> Iterator[ShardRow]:
    """Yield the rows of all shards.

    Args:
        content: (family, key, value) of a state, in any order.
        metas: By partition of the ops topic, how far it is decided; the numbers of chunks are set here.
        partition_of_queue: Returns the partition of the ops topic of a queue, by the prefix of its keys.
        quarantined: By partition of the ops topic and offset, the errors of records that could not be decided.
        seed: Of the hashes of op_ids.
        newest_ms: Timestamp of the newest decided record, about: chunks of the window move when they are old.
    """
    by_partition: dict[int, list[Change]] = defaultdict(list)
    for family, key, value in content:
        by_partition[partition_of_queue(queue_of_key(key))].append((family, key, value))
    for partition, meta in metas.items():
        maps = ShardMaps.each(CollectedMap)
        state = ShardState(maps, seed, 1, 1)
        changes = by_partition.pop(partition, [])
        for first in range(0, len(changes), _CHANGES_AT_ONCE):
            state.put(changes[first : first + _CHANGES_AT_ONCE], newest_ms)
        for kafka_offset, error in quarantined.get(partition, {}).items():
            maps.quarantined.put(quarantine_key(kafka_offset), error.encode())
        for name, stored in zip(ShardMaps._fields, maps, strict=True):
            for key, value in stored.items():
                yield ShardRow(partition, name, key, value)
        first_chunk, end_chunk = state.chunks
        with_chunks = msgspec.structs.replace(meta, first_chunk=first_chunk, end_chunk=end_chunk)
        yield ShardRow(partition, META_MAP, b"", with_chunks.encode())
    assert not by_partition, "every queue belongs to a partition of the ops topic"


def progress_of(rows: Iterable[ShardRow]) -> Progress:
    """Return how far shards have come.

    Args:
        rows: Those of PROGRESS_MAPS, in any order.
    """
    next_offset: dict[int, int] = {}
    quarantined: dict[int, ShardMaps] = defaultdict(lambda: ShardMaps.each(CollectedMap))
    for partition, name, key, value in rows:
        if name == META_MAP:
            next_offset[partition] = ShardMeta.decode(value).next_offset
        else:
            quarantined[partition].quarantined.put(key, value)
    return Progress(next_offset, {partition: quarantined_in(quarantined[partition]) for partition in next_offset})


def content_of(rows: Iterable[ShardRow], seed: int) -> Iterator[Content]:
    """Yield what shards hold, with one of them in memory at a time.

    Args:
        rows: Those of all maps; the rows of a shard follow each other.
        seed: Of the hashes of op_ids.
    """
    for _, found in itertools.groupby(rows, key=operator.attrgetter("ops_partition")):
        maps = ShardMaps.each(CollectedMap)
        meta = None
        for _, name, key, value in found:
            if name == META_MAP:
                meta = ShardMeta.decode(value)
            else:
                getattr(maps, name).put(key, value)
        if meta is not None:
            yield from ShardState(maps, seed, meta.first_chunk, meta.end_chunk).content()


def deadlines_of(rows: Iterable[ShardRow]) -> dict[int, list[QueueDeadline]]:
    """Return the queues of each shard that are due next, as the shard itself tells the ticker of them.

    Args:
        rows: Those of DEADLINES_MAP.
    """
    indexes: dict[int, DeadlineIndex] = defaultdict(DeadlineIndex)
    buckets: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    for row in rows:
        buckets[row.ops_partition].append((row.key, row.value))
    for partition, found in buckets.items():
        indexes[partition].load(found)
    return {partition: deadlines_in(index) for partition, index in indexes.items()}
