"""The maps of a shard in Spark's state store. Values are one binary column; a key is the same.

Spark's client raises errors of several kinds. They leave as `Unavailable`, so that none is taken for that of a record.
"""

import contextlib
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle, ValueState
from pyspark.sql.types import BinaryType, StructField, StructType

from pipelines.cluster.decide.shard_state import ShardMaps
from popstream.wire.base_errors import Unavailable

__all__ = ["BYTES", "SparkMap", "SparkValue", "open_map", "open_maps", "open_value", "state_errors"]

BYTES = StructType([StructField("bytes", BinaryType())])


@contextlib.contextmanager
def state_errors(what: str) -> Iterator[None]:
    """Raise what Spark's client of the state store raises as an error of the store, which no record has caused.

    Raises:
        Unavailable: The state store does not answer, or not as it should.
    """
    try:
        yield
    except (PySparkException, OSError, EOFError, RuntimeError, AssertionError) as error:
        message = f"Spark's state store cannot be used ({what}): {type(error).__name__}: {error}"
        raise Unavailable(message, subject=what) from error


class SparkMap:
    """A `StoredMap` over a MapState, as the key of the grouping that is handled now sees it.

    Args:
        state: The MapState.
        name: Its name.

    Raises:
        Unavailable: Each method, `keys` and `items` also while they are read: Spark's state store cannot be used.
    """

    __slots__ = ("_name", "_state")

    def __init__(self, state: MapState, name: str) -> None:
        self._state = state
        self._name = name

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        with state_errors(self._name):
            row = self._state.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        with state_errors(self._name):
            self._state.updateValue((key,), (value,))

    def remove(self, key: bytes) -> None:
        """Delete a key."""
        with state_errors(self._name):
            self._state.removeKey((key,))

    def keys(self) -> Iterator[bytes]:
        """Yield all keys."""
        with state_errors(self._name):
            for key in self._state.keys():  # noqa: SIM118 - no dict
                yield bytes(key[0])

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values."""
        with state_errors(self._name):
            for key, value in self._state.iterator():
                yield bytes(key[0]), bytes(value[0])


class SparkValue:
    """A single value of bytes, as the key of the grouping that is handled now sees it.

    Args:
        state: The ValueState.
        name: Its name.

    Raises:
        Unavailable: Each method: Spark's state store cannot be used.
    """

    def __init__(self, state: ValueState, name: str) -> None:
        self._state = state
        self._name = name

    def get(self) -> bytes | None:
        """Return the value, or None."""
        with state_errors(self._name):
            row = self._state.get()
        return None if row is None else bytes(row[0])

    def put(self, value: bytes) -> None:
        """Store the value."""
        with state_errors(self._name):
            self._state.update((value,))


def open_maps(handle: StatefulProcessorHandle) -> ShardMaps:
    """Return the maps of a handle; they exist once the query has started."""
    return ShardMaps._make(open_map(handle, name) for name in ShardMaps._fields)


def open_map(handle: StatefulProcessorHandle, name: str) -> SparkMap:
    """Return a map of a handle by its name."""
    return SparkMap(handle.getMapState(name, BYTES, BYTES), name)


def open_value(handle: StatefulProcessorHandle, name: str) -> SparkValue:
    """Return a single value of a handle by its name."""
    return SparkValue(handle.getValueState(name, BYTES), name)
