"""The state of one shard, which is one partition of the ops topic: a `Kv` over maps of Spark's state store.

    map           key                   value
    state         as in keys.py         as on disk; without the pages of op_ids (kind 'F')
    deadlines     bucket                deadline_index.py
    chunk_index   chunk u64             window_chunks.py; op_ids and their pages
    chunk_values  chunk u64
    quarantined   Kafka offset u64      the error of a record that could not be decided; not part of the `Kv`

Keys, deadlines and the hashes of the window are in memory: some 100 bytes a key, 200 a deadline, 20 an op_id. What a
micro-batch costs in calls follows from the values that it reads for the first time and from those that it changes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, Self

from broker_state.store.keys import DeadlineRef, QueueTag, deadline_key, queue_of_key
from broker_state.store.overlay import DEADLINES, OPS, STATE, Change, Family, Overlay
from pipelines.cluster.decide.deadline_index import DeadlineIndex
from pipelines.cluster.decide.key_directory import KeyDirectory
from pipelines.cluster.decide.window_chunks import ChunkMap, WindowChunks, WindowIndex

__all__ = ["ShardMaps", "ShardState", "StoredMap", "quarantine_key", "quarantined_in"]


_PAGE_NO_BYTES = 8


class StoredMap(ChunkMap, Protocol):
    """A map of the state store, as one key of the grouping sees it."""

    def keys(self) -> Iterator[bytes]:
        """Yield all keys."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values."""


class ShardMaps(NamedTuple):
    """The maps of one shard, valid within one micro-batch."""

    state: StoredMap
    deadlines: StoredMap
    chunk_index: StoredMap
    chunk_values: StoredMap
    quarantined: StoredMap

    @classmethod
    def each(cls, new_map: Callable[[], StoredMap]) -> Self:
        """Return maps that `new_map` returns."""
        return cls(*(new_map() for _ in cls._fields))


def quarantine_key(kafka_offset: int) -> bytes:
    """Return the key of a record in the map `quarantined`."""
    return kafka_offset.to_bytes(8, "big")


def quarantined_in(maps: ShardMaps) -> dict[int, str]:
    """Return the error by offset of each record that could not be decided, in order."""
    return {int.from_bytes(key, "big"): error.decode() for key, error in sorted(maps.quarantined.items())}


class ShardState:
    """Reads as the last `write` left the state; a new object reads what it keeps in memory.

    Args:
        maps: The stored maps.
        seed: Of the hashes of the window.
        first_chunk: Number of the first chunk of the window.
        end_chunk: The number that its next one gets.
    """

    def __init__(self, maps: ShardMaps, seed: int, first_chunk: int, end_chunk: int) -> None:
        self._maps = maps
        self._directory = KeyDirectory(maps.state.keys())
        self.deadline_index = DeadlineIndex()
        self.deadline_index.load(maps.deadlines.items())
        stored = {int.from_bytes(key, "big"): WindowIndex.decode(value) for key, value in maps.chunk_index.items()}
        self._window = WindowChunks(maps.chunk_index, maps.chunk_values, seed, first_chunk, end_chunk, stored)

    def bind(self, maps: ShardMaps) -> None:
        """Go on with the maps of the next micro-batch."""
        self._maps = maps
        self._window.index, self._window.values = maps.chunk_index, maps.chunk_values

    @property
    def chunks(self) -> tuple[int, int]:
        """The number of the first chunk of the window, and the one that its next chunk gets."""
        return self._window.first, self._window.end

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        if family == OPS or _is_page_of_op_ids(key):
            return self._window.get(key)
        assert family == STATE, "deadlines are read in their order"
        return self._maps.state.get(key) if key in self._directory else None

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        return self._window.get_many(keys) if family == OPS else [self.get(family, key) for key in keys]

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """See `Kv.deadlines`."""
        return self.deadline_index.after(queue, after, until_ms, limit)

    def content(self) -> Iterator[tuple[Family, bytes, bytes]]:
        """Yield (family, key, value) of everything that is stored, as a store on disk has it."""
        for key, value in self._maps.state.items():
            yield STATE, key, value
        for key, value in self._window.items():
            yield (STATE if _is_page_of_op_ids(key) else OPS), key, value
        for queue in self.deadline_index.queues():
            for ref in self.deadline_index.of(queue):
                yield DEADLINES, deadline_key(queue, ref), b""

    def write(self, overlay: Overlay, newest_ms: int) -> None:
        """Store the changes of an overlay, which begins its next WriteBatch.

        Args:
            overlay: What was decided.
            newest_ms: Timestamp of the newest record among it.
        """
        state, directory = self._maps.state, self._directory
        for prefix, _ in overlay.erasures():
            for key in directory.under(prefix):
                state.remove(key)
                directory.discard(key)
        self.put(overlay.changes(), newest_ms)
        overlay.written()

    def put(self, changes: Iterable[Change], newest_ms: int) -> None:
        """Store changes: (family, key, value), value None deletes.

        Args:
            changes: Each key once.
            newest_ms: Timestamp of the newest record among what led to them.
        """
        state, directory = self._maps.state, self._directory
        window: list[tuple[bytes, bytes | None]] = []
        deadlines: list[tuple[bytes, bytes | None]] = []
        for family, key, value in changes:
            if family == DEADLINES:
                deadlines.append((key, value))
            elif family == OPS or _is_page_of_op_ids(key):
                window.append((key, value))
            elif value is not None:
                state.put(key, value)
                directory.add(key)
            elif key in directory:
                state.remove(key)
                directory.discard(key)
        for bucket, refs in self.deadline_index.apply(deadlines):
            if refs is None:
                self._maps.deadlines.remove(bucket)
            else:
                self._maps.deadlines.put(bucket, refs)
        # In an order of their own: that of the overlay differs between processes, and one may go on with what another
        # has stored.
        self._window.write(sorted(window), newest_ms)


def _is_page_of_op_ids(key: bytes) -> bool:
    """Return whether a key of the `state` family, or of the window, is that of a page of op_ids.

    In the window are keys of op_ids, too: one of 70 bytes begins alike, and is longer.
    """
    at = len(queue_of_key(key))
    return key[at : at + 1] == QueueTag.OP_LOG and len(key) == at + 1 + _PAGE_NO_BYTES
