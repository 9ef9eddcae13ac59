"""The maps of a shard in Spark's state store. Values are one binary column; a key is the same."""

from collections.abc import Iterator

from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from pipelines.cluster.shard_state import ShardMaps

__all__ = ["BYTES", "SparkMap", "open_maps"]

BYTES = StructType([StructField("bytes", BinaryType())])


class SparkMap:
    """A `StoredMap` over a MapState, as the key of the grouping that is handled now sees it."""

    __slots__ = ("_state", "calls")

    def __init__(self, state: MapState) -> None:
        self._state = state
        self.calls = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        self.calls += 1
        row = self._state.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        self.calls += 1
        self._state.updateValue((key,), (value,))

    def remove(self, key: bytes) -> None:
        """Delete a key."""
        self.calls += 1
        self._state.removeKey((key,))

    def keys(self) -> Iterator[bytes]:
        """Yield all keys."""
        return (bytes(key[0]) for key in self._state.keys())  # noqa: SIM118 - no dict

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values."""
        return ((bytes(key[0]), bytes(value[0])) for key, value in self._state.iterator())


def open_maps(handle: StatefulProcessorHandle) -> ShardMaps:
    """Return the maps of a handle; they exist once the query has started."""
    return ShardMaps._make(SparkMap(handle.getMapState(name, BYTES, BYTES)) for name in ShardMaps._fields)
