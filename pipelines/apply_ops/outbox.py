"""What is decided and not yet everywhere: it is part of the WriteBatch that decided.

    key    kind u8, apply_seq u64, number u32
    value  of an answer frame: results partition u32, the record's value as it will be sent
           of notifications: MessagePack list of (key, value)
           of a dead letter: MessagePack of DeadLetter
           of audit rows: table number u8, Arrow slice
           of a dispatch: the operation as it goes on the ops topic (only in the builder's outbox, as the next)
           of unit spans: MessagePack of the spans whose units are to go to Delta

An entry stays until it is delivered, and is deleted by the WriteBatch after that. A killed process finds here all
that it may not have delivered; delivering an answer twice is allowed, for the duplicates are identical.
"""

import struct
import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker_state.store.overlay import Change
from broker_state.store.rocks_store import OUTBOX, RocksStore

__all__ = ["ENTRY_BYTES_MAX", "Entry", "EntryKind", "Outbox"]

ENTRY_BYTES_MAX = 256 * 1024

_KEY = struct.Struct(">BQI")


class EntryKind:
    """What an entry holds."""

    ANSWERS = 1
    NOTIFICATIONS = 2
    DEAD_LETTER = 3
    AUDIT = 4
    DISPATCH = 5
    UNIT_SPANS = 6


class Entry(NamedTuple):
    """One entry of the outbox."""

    kind: int
    apply_seq: int
    number: int
    value: bytes

    @property
    def key(self) -> bytes:
        """Its key."""
        return _KEY.pack(self.kind, self.apply_seq, self.number)


class Outbox:
    """Counts the entries in the store and remembers which are delivered; safe to use from several threads."""

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sizes = {key: len(value) for key, value in store.scan(OUTBOX, b"")}
        self._bytes = sum(self._sizes.values())
        self._delivered: set[bytes] = set()
        self._leaving: list[bytes] = []

    @property
    def undelivered_bytes(self) -> int:
        """Bytes of values that are not delivered yet."""
        with self._lock:
            return self._bytes

    def __len__(self) -> int:
        """Entries that are not delivered yet."""
        with self._lock:
            return len(self._sizes) - len(self._delivered)

    def changes(self, entries: Iterable[Entry]) -> Iterator[Change]:
        """For the WriteBatch: the new entries go in, delivered ones go out."""
        with self._lock:
            self._leaving = list(self._delivered)
        for key in self._leaving:
            yield OUTBOX, key, None
        for entry in entries:
            yield OUTBOX, entry.key, entry.value

    def written(self, entries: Iterable[Entry]) -> None:
        """The WriteBatch is durable."""
        with self._lock:
            for key in self._leaving:
                del self._sizes[key]
                self._delivered.discard(key)
            for entry in entries:
                self._sizes[entry.key] = len(entry.value)
                self._bytes += len(entry.value)
            self._leaving = []

    def delivered(self, keys: Iterable[bytes]) -> None:
        """These entries have reached their place for good."""
        with self._lock:
            for key in keys:
                if key not in self._delivered:
                    self._delivered.add(key)
                    self._bytes -= self._sizes[key]

    def undelivered(self, kind: int, after_seq: int = -1, upto_seq: int = (1 << 63) - 1) -> Iterator[Entry]:
        """The undelivered entries of a kind with apply_seq in (after_seq, upto_seq], in order."""
        end = _KEY.pack(kind, upto_seq + 1, 0)
        for key, value in self._store.scan(OUTBOX, _KEY.pack(kind, after_seq + 1, 0), end):
            with self._lock:
                if key in self._delivered:
                    continue
            entry_kind, apply_seq, number = _KEY.unpack(key)
            yield Entry(entry_kind, apply_seq, number, value)
