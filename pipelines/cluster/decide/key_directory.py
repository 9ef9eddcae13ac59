"""Which state keys a shard has: so that an absent key costs no call, and an erasure only what it erases.

    directory   <queue>                        its keys that are not of a lane
                <queue> 'P' lane no u32        the keys under that number

Spark's state has no range deletes, and a look-up of an absent key costs as much as of one that is there.
"""

from collections.abc import Iterable

from broker_state.store.keys import LANE_NO_BYTES, QueueTag, queue_of_key

__all__ = ["KeyDirectory"]


class KeyDirectory:
    """The keys by their group: a queue, or a number of a lane.

    >>> from broker_state.store.keys import lane_prefix, queue_prefix
    >>> queue = queue_prefix("orders", 0)
    >>> directory = KeyDirectory([queue + b"Q", lane_prefix(queue, 1) + b"o", lane_prefix(queue, 2) + b"o"])
    >>> len(directory.under(lane_prefix(queue, 1))), len(directory.under(queue))
    (1, 3)
    """

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._groups: dict[bytes, dict[bytes, set[bytes]]] = {}
        """By queue, then by group."""
        for key in keys:
            self.add(key)

    def __contains__(self, key: bytes) -> bool:
        """Return whether the key is there."""
        queue = queue_of_key(key)
        return key in self._groups.get(queue, {}).get(_group(queue, key), ())

    def add(self, key: bytes) -> None:
        """Note a key."""
        queue = queue_of_key(key)
        self._groups.setdefault(queue, {}).setdefault(_group(queue, key), set()).add(key)

    def discard(self, key: bytes) -> None:
        """Forget a key."""
        queue = queue_of_key(key)
        groups = self._groups.get(queue, {})
        group = _group(queue, key)
        keys = groups.get(group)
        if keys is None:
            return
        keys.discard(key)
        if not keys:
            del groups[group]
            if not groups:
                del self._groups[queue]

    def under(self, prefix: bytes) -> list[bytes]:
        """Return the keys of one queue that begin with `prefix`, in order."""
        queue = queue_of_key(prefix)
        groups = self._groups.get(queue, {})
        if prefix[len(queue) :] in {b"", QueueTag.LANE_DATA}:
            return sorted(key for keys in groups.values() for key in keys if key.startswith(prefix))
        return sorted(key for key in groups.get(_group(queue, prefix), ()) if key.startswith(prefix))


def _group(queue: bytes, key: bytes) -> bytes:
    at = len(queue)
    return key[: at + 1 + LANE_NO_BYTES] if key[at : at + 1] == QueueTag.LANE_DATA else queue
