"""What a micro-batch has read and written, decoded, between the kernel and the store.

A command sees what earlier commands of its micro-batch wrote. Each key is encoded and written once, however often it
changed: a WriteBatch is applied in order, so a late delete of a key would kill an earlier put of it (RocketMQ #10276).
"""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from broker_state.store.keys import NEVER_MS, DeadlineRef, deadline_key, end_of_prefix
from broker_state.store.segment import decode_segment, encode_segment

__all__ = ["Change", "Encodable", "Family", "Kv", "Overlay"]

Family = str
STATE: Family = "state"
OPS: Family = "ops"
DEADLINES: Family = "deadlines"

Change = tuple[Family, bytes, bytes | None]
"""(family, key, value); value None deletes."""


class Kv(Protocol):
    """What the kernel needs of a store: one read; the shell also finds deadlines in their order."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of `key` as the last WriteBatch left it, or None."""

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order."""

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """At most `limit` deadlines of a queue, in order, after `after` and not later than `until_ms`."""


class Encodable(Protocol):
    """A decoded value that knows its stored form."""

    def encode(self) -> bytes:
        """Format byte and content."""


Value = TypeVar("Value", bound=Encodable)

CACHE_BYTES = 16 * 1024 * 1024
"""As stored; decoded values take four to five times as much."""


class Overlay:
    """Decoded values over a `Kv`, until `changes` hands them to the shell's one WriteBatch."""

    def __init__(self, kv: Kv, cache_bytes: int = CACHE_BYTES) -> None:
        self._kv = kv
        self._cache_bytes = cache_bytes
        # Of keys and values read and written since the cache was empty: no less than what it holds.
        self._moved_bytes = 0
        self._values: dict[bytes, Encodable | None] = {}
        self._bits: dict[bytes, int] = {}
        self._ops: dict[bytes, bytes | None] = {}
        self._read_ops: dict[bytes, bytes | None] = {}
        self._dirty: set[bytes] = set()
        self._dirty_bits: set[bytes] = set()
        self._deadlines: dict[bytes, dict[tuple[int, int, int], tuple[int, int]]] = {}
        self._spent: set[bytes] = set()
        self._erased: list[bytes] = []
        self.generation = 0
        """How many micro-batches were written: what was learnt of stored deadlines is good within one."""

    def get(self, key: bytes, decode: Callable[[bytes], Value]) -> Value | None:
        """The decoded value of a state key; the object is shared, and `put` says that it was changed."""
        try:
            return self._values[key]  # type: ignore[return-value]  # a key has one type of value
        except KeyError:
            stored = self._read(key)
            value = None if stored is None else decode(stored)
            self._values[key] = value
            return value

    def put(self, key: bytes, value: Encodable) -> None:
        """`value` is what the key holds from now on; also to be called after changing it in place."""
        self._values[key] = value
        self._dirty.add(key)

    def delete(self, key: bytes) -> None:
        """The key holds nothing."""
        self._values[key] = None
        self._dirty.add(key)

    def bits(self, key: bytes) -> int:
        """The segment under a state key; an absent one is 0."""
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
        """Read values of the op_id window at once; until the next WriteBatch they need not be looked up."""
        self._read_ops.update(zip(keys, self._kv.get_many(OPS, keys), strict=True))

    def get_op(self, key: bytes) -> bytes | None:
        """A value of the op_id window."""
        if key in self._ops:
            return self._ops[key]
        if key in self._read_ops:
            return self._read_ops[key]
        return self._kv.get(OPS, key)

    def set_op(self, key: bytes, value: bytes | None) -> None:
        """Remember (None: forget) an answer."""
        self._ops[key] = value

    def set_deadline(self, queue: bytes, lane_no: int, kind: int, number: int, before_ms: int, after_ms: int) -> None:
        """Something that was due at `before_ms` (0: never) is due at `after_ms` (0: never)."""
        moved = self._deadlines.setdefault(queue, {})
        ref = (lane_no, kind, number)
        stored = moved.get(ref)
        moved[ref] = (before_ms if stored is None else stored[0], after_ms)

    def erase_deadlines(self, queue: bytes, lane_no: int | None) -> None:
        """Nothing of the lane (None: of the queue) is due any more; what is stored of it goes with this micro-batch."""
        after: DeadlineRef | None = None
        while stored := self._kv.deadlines(queue, after, NEVER_MS, 1_000):
            after = stored[-1]
            self._spent.update(deadline_key(queue, ref) for ref in stored if lane_no is None or ref.lane_no == lane_no)
        moved = self._deadlines.get(queue, {})
        for ref, (before_ms, _) in moved.items():
            if lane_no is None or ref[0] == lane_no:
                moved[ref] = (before_ms, 0)

    def drop_spent_deadline(self, queue: bytes, ref: DeadlineRef) -> None:
        """Remove an index entry whose subject is gone."""
        self._spent.add(deadline_key(queue, ref))

    def stored_deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """Deadlines as the last WriteBatch left them; the caller knows which ones moved since."""
        return self._kv.deadlines(queue, after, until_ms, limit)

    def erase(self, prefix: bytes) -> None:
        """Every state key with `prefix` holds nothing, read or not; later puts under it count."""
        for cached in (self._values, self._bits):
            for key in [key for key in cached if key.startswith(prefix)]:
                del cached[key]
        self._dirty = {key for key in self._dirty if not key.startswith(prefix)}
        self._dirty_bits = {key for key in self._dirty_bits if not key.startswith(prefix)}
        self._erased.append(prefix)

    def erasures(self) -> list[tuple[bytes, bytes]]:
        """Ranges [first, end) of state keys to delete before any of `changes` is applied."""
        return [(prefix, end_of_prefix(prefix)) for prefix in self._erased]

    def changes(self) -> Iterator[Change]:
        """Every changed key once, encoded."""
        for key in self._dirty:
            value = self._values[key]
            stored = None if value is None else value.encode()
            self._count(key, stored)
            yield STATE, key, stored
        for key in self._dirty_bits:
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
                    if after_ms:  # erased and restored
                        index.pop(deadline_key(queue, DeadlineRef(after_ms, lane_no, kind, number)), None)
                    continue
                if before_ms:
                    index[deadline_key(queue, DeadlineRef(before_ms, lane_no, kind, number))] = None
                if after_ms:
                    index[deadline_key(queue, DeadlineRef(after_ms, lane_no, kind, number))] = b""
        for key, value in index.items():
            yield DEADLINES, key, value

    def written(self) -> None:
        """The changes are durable: start the next micro-batch, keeping what was decoded while it is not too much."""
        self.generation += 1
        self._dirty.clear()
        self._dirty_bits.clear()
        self._ops.clear()
        self._read_ops.clear()
        self._deadlines.clear()
        self._spent.clear()
        self._erased.clear()
        if self._moved_bytes > self._cache_bytes:
            self._values.clear()
            self._bits.clear()
            self._moved_bytes = 0

    def _read(self, key: bytes) -> bytes | None:
        erased = any(key.startswith(prefix) for prefix in self._erased)
        stored = None if erased else self._kv.get(STATE, key)
        self._count(key, stored)
        return stored

    def _count(self, key: bytes, stored: bytes | None) -> None:
        self._moved_bytes += len(key) + len(stored or b"")
