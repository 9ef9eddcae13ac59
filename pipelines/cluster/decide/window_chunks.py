"""The window of op_ids of one shard, in chunks: what a micro-batch writes is a few values, not one for each operation.

    index    chunk u64  ->  WindowIndex: hashes of the keys that were put, and of those that were deleted, the latter of
                            at most CHUNK_BYTES; a chunk may have deletes alone
    values   chunk u64  ->  MessagePack list of (key, value), at most CHUNK_BYTES unless one value is longer

Nearly every op_id is new, which the hashes in memory say without a call. A chunk is read for a repeated op_id, and once
when its operations leave the window. The first chunk goes when nothing of it is left; what is left of one that is out
of date, as of queues where nothing happens any more, moves to the newest one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar, Protocol

import msgspec
import numpy as np

from broker_state.store.value_format import StoredRecord
from connectors.bounded_lists import bounded_lists
from pipelines.cluster.decide.hash_index import HASH_BYTES, NONE, Hashes, HashIndex, hashes_of

__all__ = ["CHUNK_BYTES", "ChunkMap", "WindowChunks", "WindowIndex"]

CHUNK_BYTES = 128 * 1024
"""What the keys and values of a chunk take."""

OUT_OF_DATE_MS = 12 * 60_000
"""The age at which the rest of a chunk moves: the window has ten minutes."""

_LOADED_MAX = 4
_DROPPED_MAX = 16
"""Chunks that one write may drop. It makes a few itself, so old ones do not pile up."""

_Pairs = list[tuple[bytes, bytes]]
_decode_pairs = msgspec.msgpack.Decoder(_Pairs).decode


class ChunkMap(Protocol):
    """Values by chunk number (a map of Spark's state)."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""

    def remove(self, key: bytes) -> None:
        """Delete a key."""


class WindowIndex(StoredRecord, msgspec.Struct, array_like=True):
    """What a chunk changed."""

    STORED_AS: ClassVar[str] = "index of a chunk"

    newest_ms: int
    put: bytes
    deleted: bytes


class WindowChunks:
    """Keys and values of the window.

    Args:
        index: The stored indexes; `values`: the stored values. Both may be bound anew for each micro-batch.
        seed: Of the hashes; fixed for the life of the state.
        first: Number of the first chunk; `end`: the number that the next one gets. 1 and 1 when there is none.
        stored: The stored indexes by number, from `first` to `end`.
    """

    def __init__(
        self, index: ChunkMap, values: ChunkMap, seed: int, first: int, end: int, stored: Mapping[int, WindowIndex]
    ) -> None:
        self.index = index
        self.values = values
        self.first = first
        self.end = end
        self._seed = seed
        self._chunk_of = HashIndex()
        self._live: dict[int, int] = {}
        self._newest_ms: dict[int, int] = {}
        self._loaded: OrderedDict[int, dict[bytes, bytes]] = OrderedDict()
        """Of chunks that were read: what is still valid of them."""
        for number in range(first, end):
            self._learn(number, stored[number])

    def __len__(self) -> int:
        """Return the number of keys that are there."""
        return sum(self._live.values())

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        for loaded in self._loaded.values():
            value = loaded.get(key)
            if value is not None:
                return value
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order."""
        if not keys:
            return []
        chunks = self._chunk_of.find(hashes_of(keys, self._seed))
        found: list[bytes | None] = [None] * len(keys)
        for at in np.flatnonzero(chunks).tolist():
            found[at] = self.valid(int(chunks[at])).get(keys[at])
        return found

    def valid(self, number: int) -> dict[bytes, bytes]:
        """Return what is still valid of a chunk, by key. The last few are kept."""
        loaded = self._loaded.get(number)
        if loaded is None:
            stored = self.values.get(_name(number))
            pairs = _decode_pairs(stored) if stored is not None else []
            now = self._chunk_of.find(hashes_of([key for key, _ in pairs], self._seed)) if pairs else ()
            loaded = {key: value for (key, value), chunk in zip(pairs, now, strict=True) if chunk == number}
            self._loaded[number] = loaded
            if len(self._loaded) > _LOADED_MAX:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(number)
        return loaded

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values."""
        for number in range(self.first, self.end):
            yield from list(self.valid(number).items())

    def write(self, changes: Iterable[tuple[bytes, bytes | None]], newest_ms: int) -> None:
        """Store changes (value None deletes) as new chunks, and drop old ones.

        Args:
            changes: Each key once.
            newest_ms: Timestamp of the newest record whose decision wrote them.
        """
        puts: _Pairs = []
        deleted: list[bytes] = []
        for key, value in changes:
            if value is None:
                deleted.append(key)
            else:
                puts.append((key, value))
        if puts or deleted:
            self._store(puts, deleted, newest_ms)
        self._drop_old(newest_ms)

    def _store(self, puts: _Pairs, deleted: Sequence[bytes], newest_ms: int) -> None:
        parts = bounded_lists(puts, lambda pair: len(pair[0]) + len(pair[1]), CHUNK_BYTES)
        deletes = bounded_lists(deleted, lambda _: HASH_BYTES, CHUNK_BYTES)
        for part, gone in zip_longest(parts, deletes, fillvalue=()):
            put = hashes_of([key for key, _ in part], self._seed)
            stored = WindowIndex(newest_ms, put.tobytes(), hashes_of(gone, self._seed).tobytes())
            number = self.end
            self.end += 1
            name = _name(number)
            self.index.put(name, stored.encode())
            if part:
                self.values.put(name, msgspec.msgpack.encode(part))
            self._learn(number, stored)
        changed = [key for key, _ in puts] + [*deleted]
        for loaded in self._loaded.values():
            for key in changed:
                loaded.pop(key, None)

    def _learn(self, number: int, stored: WindowIndex) -> None:
        """Take over what a chunk changed."""
        deleted, put = (np.frombuffer(part, f"S{HASH_BYTES}") for part in (stored.deleted, stored.put))
        self._forget(deleted)
        self._chunk_of.set(deleted, NONE)
        self._forget(put)
        self._chunk_of.set(put, number)
        self._live[number] = len(put)
        self._newest_ms[number] = stored.newest_ms

    def _forget(self, hashes: Hashes) -> None:
        """Count off the entries that hashes have."""
        if not len(hashes):
            return
        for number, count in zip(*np.unique(self._chunk_of.find(hashes), return_counts=True), strict=True):
            if number != NONE:
                self._live[int(number)] -= int(count)

    def _drop_old(self, newest_ms: int) -> None:
        """Drop the first chunks if they are empty; move what is left of one that is out of date."""
        may_move = True
        for _ in range(_DROPPED_MAX):
            number = self.first
            if number == self.end:
                return
            if self._live[number]:
                is_old = self._newest_ms[number] + OUT_OF_DATE_MS < newest_ms
                if not (may_move and is_old):
                    return
                may_move = False
                self._store(list(self.valid(number).items()), (), newest_ms)
            name = _name(number)
            self.index.remove(name)
            self.values.remove(name)
            self._loaded.pop(number, None)
            del self._live[number], self._newest_ms[number]
            self.first += 1


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")
