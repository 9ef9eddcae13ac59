"""The values that a micro-batch has read and written, decoded, between the kernel and the store.

A command sees the values that earlier commands of its micro-batch wrote. Each key is encoded and written once, however
often it changed: RocksDB applies a WriteBatch in order, so a late delete of a key would undo an earlier put of it
(RocketMQ #10276).
"""

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from broker_state.store.keys import DeadlineRef, deadline_key, end_of_prefix
from broker_state.store.segment import decode_segment, encode_segment

__all__ = ["CACHE_BYTES", "DEADLINES", "OPS", "STATE", "Change", "Encodable", "Family", "Kv", "Overlay"]

Family = str
STATE: Family = "state"
OPS: Family = "ops"
DEADLINES: Family = "deadlines"

Change = tuple[Family, bytes, bytes | None]
"""(family, key, value); value None deletes."""


class Kv(Protocol):
    """The port of the kernel to a store: reads by key, and deadlines in their order."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of `key` as the last WriteBatch left it, or None."""

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order."""

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """Return at most `limit` deadlines of a queue, in order, after `after` and not later than `until_ms`."""


class Encodable(Protocol):
    """A decoded value that can be encoded for the store."""

    def encode(self) -> bytes:
        """Return the format byte and the content."""


Value = TypeVar("Value", bound=Encodable)

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of keys and values, as stored, that are kept decoded; decoded they take four to five times as much.

They count whenever they are read or written, at least 160 an operation where each is in another lane: a lane among
100,000 that are popped and acked by turns is still here when its turn comes.
"""


class Overlay:
    """Decoded values over a `Kv`, until `changes` hands them to the shell's one WriteBatch."""

    def __init__(self, kv: Kv, cache_bytes: int = CACHE_BYTES) -> None:
        self._kv = kv
        self._cache_bytes = cache_bytes
        # Bytes of keys and values read and written since the cache was empty: an upper bound of its stored size.
        self._moved_bytes = 0
        self._values: dict[bytes, Encodable | None] = {}
        self._bits: dict[bytes, int] = {}
        self._ops: dict[bytes, bytes | None] = {}
        self._read_ops: dict[bytes, bytes | None] = {}
        self._dirty: dict[bytes, Encodable | None] = {}
        """Changed since they were encoded."""
        self._encoded: dict[bytes, bytes | None] = {}
        """Changed since the last WriteBatch, as `encode_changed` left them."""
        self._dirty_bits: set[bytes] = set()
        self._deadlines: dict[bytes, dict[tuple[int, int, int], tuple[int, int]]] = {}
        self._spent: set[bytes] = set()
        self._erased: set[bytes] = set()
        self._dropped: set[bytes] = set()
        self.generation = 0
        """WriteBatches so far. Stored deadlines that were read are valid within one of them."""

    def get(self, key: bytes, decode: Callable[[bytes], Value]) -> Value | None:
        """Return the decoded value of a state key. The object is shared: call `put` after changing it."""
        try:
            return self._values[key]  # type: ignore[return-value]  # a key has one type of value
        except KeyError:
            stored = self._read(key)
            value = None if stored is None else decode(stored)
            self._values[key] = value
            return value

    def put(self, key: bytes, value: Encodable) -> None:
        """Store `value` under the key; also to be called after changing it in place."""
        self._values[key] = value
        self._dirty[key] = value

    def delete(self, key: bytes) -> None:
        """Delete the key."""
        self._values[key] = None
        self._dirty[key] = None

    def bits(self, key: bytes) -> int:
        """Return the segment under a state key; 0 if there is none."""
        try:
            return self._bits[key]
        except KeyError:
            stored = self._read(key)
            bits = 0 if stored is None else decode_segment(stored)
            self._bits[key] = bits
            return bits

    def set_bits(self, key: bytes, bits: int) -> None:
        """Replace a segment; 0 deletes it."""
        self._bits[key] = bits
        self._dirty_bits.add(key)

    def prefetch_ops(self, keys: list[bytes]) -> None:
        """Read values of the op_id window in one call; until the next WriteBatch they are not read again."""
        self._read_ops.update(zip(keys, self._kv.get_many(OPS, keys), strict=True))

    def get_op(self, key: bytes) -> bytes | None:
        """Return a value of the op_id window."""
        if key in self._ops:
            return self._ops[key]
        if key in self._read_ops:
            return self._read_ops[key]
        return self._kv.get(OPS, key)

    def set_op(self, key: bytes, value: bytes | None) -> None:
        """Store (None: delete) a value of the op_id window."""
        self._ops[key] = value

    def set_deadline(self, queue: bytes, lane_no: int, kind: int, number: int, before_ms: int, after_ms: int) -> None:
        """Move a deadline from `before_ms` to `after_ms`; 0 is never."""
        moved = self._deadlines.setdefault(queue, {})
        ref = (lane_no, kind, number)
        stored = moved.get(ref)
        moved[ref] = (before_ms if stored is None else stored[0], after_ms)

    def holds_deadline(self, queue: bytes, ref: DeadlineRef) -> bool:
        """Return whether an entry that was stored or set is still in the index: it may have moved since."""
        moved = self._deadlines.get(queue, {}).get(ref[1:])
        return moved is None or moved[1] == ref.deadline_ms

    def drop_deadline(self, queue: bytes, ref: DeadlineRef) -> None:
        """Delete an entry of the index whose subject is gone."""
        moved = self._deadlines.get(queue, {})
        stored = moved.get(ref[1:])
        if stored is None:
            self._spent.add(deadline_key(queue, ref))
        else:
            moved[ref[1:]] = (stored[0], 0)

    def stored_deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """Return deadlines as the last WriteBatch left them; the caller tracks those that have moved since."""
        return self._kv.deadlines(queue, after, until_ms, limit)

    def drop(self, prefix: bytes) -> None:
        """Delete every state key with `prefix`, none of which is read or written again; takes no time per key."""
        self._dropped.add(prefix)

    def erase(self, owner: bytes, tags: tuple[bytes, ...]) -> None:
        """Delete every state key with prefix `owner` and one of `tags`, read or not; puts that follow are kept."""
        prefixes = tuple(owner + tag for tag in tags)
        for cached in (self._values, self._bits):
            for key in [key for key in cached if key.startswith(owner) and key.startswith(prefixes)]:
                del cached[key]
        self._dirty = {key: value for key, value in self._dirty.items() if not key.startswith(prefixes)}
        self._encoded = {key: stored for key, stored in self._encoded.items() if not key.startswith(prefixes)}
        self._dirty_bits = {key for key in self._dirty_bits if not key.startswith(prefixes)}
        self._erased.update(prefixes)

    def erasures(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges [first, end) of state keys to delete before `changes` are applied."""
        return [(prefix, end_of_prefix(prefix)) for prefix in sorted(self._erased | self._dropped)]

    def encode_changed(self) -> None:
        """Encode the values that have changed, to be called every hundred records or so.

        Then the processor still has them in its cache: later it takes up to eight times as long. A value that changes
        again is encoded again. Segments, which change with every record and take longer, wait for `changes`.
        """
        encoded = self._encoded
        for key, value in self._dirty.items():
            encoded[key] = None if value is None else value.encode()
        self._dirty.clear()

    def changes(self) -> Iterator[Change]:
        """Yield every changed key once, encoded."""
        self.encode_changed()
        is_dropped = _membership(self._dropped) if self._dropped else None
        for key, stored in self._encoded.items():
            if is_dropped is None or not is_dropped(key):
                self._count(key, stored)
                yield STATE, key, stored
        for key in self._dirty_bits:
            if is_dropped is not None and is_dropped(key):
                continue
            bits = self._bits[key]
            stored = encode_segment(bits) if bits else None
            self._count(key, stored)
            yield STATE, key, stored
        for key, answer in self._ops.items():
            yield OPS, key, answer
        yield from self._deadline_changes()

    def _deadline_changes(self) -> Iterator[Change]:
        index: dict[bytes, bytes | None] = dict.fromkeys(self._spent)
        for queue, moved in self._deadlines.items():
            for (lane_no, kind, number), (before_ms, after_ms) in moved.items():
                if before_ms == after_ms:
                    continue
                if before_ms:
                    index[deadline_key(queue, DeadlineRef(before_ms, lane_no, kind, number))] = None
                if after_ms:
                    index[deadline_key(queue, DeadlineRef(after_ms, lane_no, kind, number))] = b""
        for key, value in index.items():
            yield DEADLINES, key, value

    def written(self) -> None:
        """Begin the next WriteBatch: the changes are durable. Decoded values stay within `cache_bytes`."""
        self.generation += 1
        for key, stored in self._encoded.items():
            if stored is None:  # hardly any key is read again after it was deleted
                del self._values[key]
        self._dirty.clear()
        self._encoded.clear()
        self._dirty_bits.clear()
        self._ops.clear()
        self._read_ops.clear()
        self._deadlines.clear()
        self._spent.clear()
        self._erased.clear()
        self._dropped.clear()
        if self._moved_bytes > self._cache_bytes:
            self._values.clear()
            self._bits.clear()
            self._moved_bytes = 0

    def _read(self, key: bytes) -> bytes | None:
        erased = self._erased and _membership(self._erased)(key)
        stored = None if erased else self._kv.get(STATE, key)
        self._count(key, stored)
        return stored

    def _count(self, key: bytes, stored: bytes | None) -> None:
        self._moved_bytes += len(key) + len(stored or b"")


def _membership(prefixes: set[bytes]) -> Callable[[bytes], bool]:
    """Return a function that says whether a key has one of `prefixes`; their lengths are few, however many they are."""
    lengths = {len(prefix) for prefix in prefixes}
    return lambda key: any(key[:length] in prefixes for length in lengths)
