"""The outbox: everything that is decided and not delivered everywhere yet. It is part of the WriteBatch that decided.

    key    kind u8, apply_seq u64, number u32
    value  by kind (pipelines/decide_ops/entry.py)

An entry stays until it is delivered, and is deleted by a later WriteBatch. After a kill, the next start delivers
whatever is still here: answers may be sent twice, but then they are identical.
"""

import threading
from collections.abc import Iterable, Iterator

from broker_state.store.overlay import Change
from broker_state.store.rocks_store import OUTBOX, RocksStore
from pipelines.decide_ops.entry import ENTRY_KEY, Entry

__all__ = ["Outbox"]


class Outbox:
    """Tracks which entries in the store are delivered. Safe for use by several threads.

    Args:
        store: Its entries, left by an earlier process, count as undelivered.
    """

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sizes = {key: len(value) for key, value in store.scan(OUTBOX, b"")}
        self._undelivered_bytes = sum(self._sizes.values())
        self._delivered: set[bytes] = set()
        self._deleting: list[bytes] = []

    @property
    def undelivered_bytes(self) -> int:
        """Total size of the values that are not delivered."""
        with self._lock:
            return self._undelivered_bytes

    def __len__(self) -> int:
        """Return the number of entries that are not delivered."""
        with self._lock:
            return len(self._sizes) - len(self._delivered)

    def changes(self, entries: Iterable[Entry]) -> Iterator[Change]:
        """Yield the changes for the next WriteBatch: puts of new entries, deletes of delivered ones."""
        with self._lock:
            self._deleting = list(self._delivered)
        for key in self._deleting:
            yield OUTBOX, key, None
        for entry in entries:
            yield OUTBOX, entry.key, entry.value

    def written(self, entries: Iterable[Entry]) -> None:
        """Note that the WriteBatch with the changes for `entries` is durable."""
        with self._lock:
            for key in self._deleting:
                del self._sizes[key]
                self._delivered.discard(key)
            for entry in entries:
                self._sizes[entry.key] = len(entry.value)
                self._undelivered_bytes += len(entry.value)
            self._deleting = []

    def delivered(self, keys: Iterable[bytes]) -> None:
        """Note that entries are delivered for good."""
        with self._lock:
            for key in keys:
                if key not in self._delivered:
                    self._delivered.add(key)
                    self._undelivered_bytes -= self._sizes[key]

    def undelivered(self, kind: int, after_seq: int = -1, upto_seq: int | None = None) -> Iterator[Entry]:
        """Yield the undelivered entries of a kind with apply_seq in (after_seq, upto_seq], in order; None: no limit."""
        end = ENTRY_KEY.pack(kind + 1, 0, 0) if upto_seq is None else ENTRY_KEY.pack(kind, upto_seq + 1, 0)
        for key, value in self._store.scan(OUTBOX, ENTRY_KEY.pack(kind, after_seq + 1, 0), end):
            with self._lock:
                if key in self._delivered:
                    continue
            entry_kind, apply_seq, number = ENTRY_KEY.unpack(key)
            yield Entry(entry_kind, apply_seq, number, value)
