"""A store in memory, for tests and experiments: the same families and the same order of keys as on disk."""

from bisect import bisect_left, insort

from broker_state.store.keys import DeadlineRef, deadline_key, read_deadline_key
from broker_state.store.overlay import DEADLINES, STATE, Family, Overlay

__all__ = ["MemoryKv"]


class MemoryKv:
    """A `Kv` of plain dicts; `write` applies the changes of an overlay, as one WriteBatch does on disk."""

    def __init__(self) -> None:
        self.families: dict[Family, dict[bytes, bytes]] = {}
        self._deadline_keys: list[bytes] = []

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        return self.families.get(family, {}).get(key)

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order."""
        return [self.get(family, key) for key in keys]

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """See `Kv.deadlines`."""
        keys = self._deadline_keys
        at = bisect_left(keys, queue if after is None else deadline_key(queue, after) + b"\0")
        found: list[DeadlineRef] = []
        while at < len(keys) and len(found) < limit and keys[at].startswith(queue):
            ref = read_deadline_key(queue, keys[at])
            if ref.deadline_ms > until_ms:
                break
            found.append(ref)
            at += 1
        return found

    def write(self, overlay: Overlay) -> None:
        """Apply the erasures and then the changes of an overlay, which begins its next WriteBatch."""
        state = self.families.setdefault(STATE, {})
        for first, end in overlay.erasures():
            for key in [key for key in state if first <= key < end]:
                del state[key]
        for family, key, value in overlay.changes():
            values = self.families.setdefault(family, {})
            if value is None:
                if values.pop(key, None) is not None and family == DEADLINES:
                    self._deadline_keys.remove(key)
                continue
            if family == DEADLINES and key not in values:
                insort(self._deadline_keys, key)
            values[key] = value
        overlay.written()
