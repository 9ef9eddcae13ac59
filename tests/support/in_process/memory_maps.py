"""The maps of a shard in memory, in the place of Spark's state store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_state.store.key_kinds import queue_of_key
from broker_state.store.keys import NEVER_MS, QueueTag, deadline_key
from broker_state.store.overlay import DEADLINES, OPS, STATE
from pipelines.cluster.shard_state import ShardMaps, ShardState
from pipelines.cluster.window_chunks import WindowChunks, WindowIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker_state.store.overlay import Overlay

__all__ = ["SEED", "MemoryMap", "ShardStore", "memory_maps"]

SEED = 7


class MemoryMap(dict[bytes, bytes]):
    """A `StoredMap` that counts calls."""

    calls = 0

    def get(self, key: bytes) -> bytes | None:  # type: ignore[override]  # a port has no default
        self.calls += 1
        return super().get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.calls += 1
        self[key] = value

    def remove(self, key: bytes) -> None:
        self.calls += 1
        self.pop(key, None)

    def keys(self) -> Iterator[bytes]:  # type: ignore[override]
        return iter(list(super().keys()))

    def items(self) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        return iter(list(super().items()))


def memory_maps() -> ShardMaps:
    """Empty maps."""
    return ShardMaps(MemoryMap(), MemoryMap(), MemoryMap(), MemoryMap())


class ShardStore:
    """A `ShardState` as a store that a log is decided over; `reload` forgets what it has in memory."""

    def __init__(self, newest_ms: int = 0) -> None:
        self.maps = memory_maps()
        self.newest_ms = newest_ms
        self._open(1, 1)

    @classmethod
    def over(cls, maps: ShardMaps, first_chunk: int, end_chunk: int) -> ShardStore:
        """The store that maps hold."""
        store = cls()
        store.maps = maps
        store._open(first_chunk, end_chunk)
        return store

    def _open(self, first_chunk: int, end_chunk: int) -> None:
        self.state = ShardState(self.maps, SEED, first_chunk, end_chunk)
        self.get, self.get_many, self.deadlines = self.state.get, self.state.get_many, self.state.deadlines

    def reload(self) -> None:
        self._open(*self.state.chunks)

    def write(self, overlay: Overlay) -> None:
        self.state.write(overlay, self.newest_ms)

    def families(self) -> dict[str, dict[bytes, bytes]]:
        """What is stored, by the families that a disk has."""
        first, end = self.state.chunks
        stored = {int.from_bytes(key, "big"): WindowIndex.decode(value) for key, value in self.maps.chunk_index.items()}
        window = WindowChunks(self.maps.chunk_index, self.maps.chunk_values, SEED, first, end, stored)
        in_window = {key: value for number in range(first, end) for key, value in window.valid(number).items()}
        of_pages = {key: value for key, value in in_window.items() if _is_page_of_op_ids(key)}
        return {
            STATE: {**dict(self.maps.state.items()), **of_pages},
            OPS: {key: value for key, value in in_window.items() if key not in of_pages},
            DEADLINES: {
                deadline_key(queue, ref): b""
                for queue in self.state.deadline_index.queues()
                for ref in self.state.deadline_index.after(queue, None, NEVER_MS, 1_000_000)
            },
        }


def _is_page_of_op_ids(key: bytes) -> bool:
    """Whether a key of the window is one; an op_id of 70 bytes begins alike."""
    at = len(queue_of_key(key))
    return key[at : at + 1] == QueueTag.OP_LOG and len(key) == at + 1 + 8
