"""The maps of a shard in memory, in the place of Spark's state store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_state.store.overlay import DEADLINES, OPS, STATE
from pipelines.cluster.decide.shard_rows import CollectedMap
from pipelines.cluster.decide.shard_state import ShardMaps, ShardState

if TYPE_CHECKING:
    from broker_state.store.overlay import Overlay

__all__ = ["SEED", "MemoryMap", "ShardStore", "memory_maps"]

SEED = 7


class MemoryMap(CollectedMap):
    """A map that counts the calls for single keys."""

    calls = 0

    def get(self, key: bytes) -> bytes | None:
        self.calls += 1
        return super().get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.calls += 1
        super().put(key, value)

    def remove(self, key: bytes) -> None:
        self.calls += 1
        super().remove(key)

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())


def memory_maps() -> ShardMaps:
    """Empty maps."""
    return ShardMaps.each(MemoryMap)


class ShardStore:
    """A `ShardState` as a store that a log is decided over; `reload` forgets what it has in memory."""

    def __init__(self, newest_ms: int) -> None:
        self.maps = memory_maps()
        self.newest_ms = newest_ms
        self._open(1, 1)

    def _open(self, first_chunk: int, end_chunk: int) -> None:
        self.state = ShardState(self.maps, SEED, first_chunk, end_chunk)
        self.get, self.get_many, self.deadlines = self.state.get, self.state.get_many, self.state.deadlines

    def reload(self) -> None:
        self._open(*self.state.chunks)

    def write(self, overlay: Overlay) -> None:
        self.state.write(overlay, self.newest_ms)

    def families(self) -> dict[str, dict[bytes, bytes]]:
        """What is stored, by the families that a disk has."""
        found: dict[str, dict[bytes, bytes]] = {STATE: {}, OPS: {}, DEADLINES: {}}
        for family, key, value in ShardState(self.maps, SEED, *self.state.chunks).content():
            found[family][key] = value
        return found
