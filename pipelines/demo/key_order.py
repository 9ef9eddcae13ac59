"""Whether an orderly consumer gets the messages of a key in their order, as far as it can tell by itself."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["KeyOrder", "Keyed"]


class Keyed(NamedTuple):
    """A message: its queue and offset, and the key whose messages must not overtake each other."""

    queue_id: int
    queue_offset: int
    key: bytes


class KeyOrder:
    """Remembers how far each key of each queue is done here.

    >>> order = KeyOrder()
    >>> first, second = Keyed(0, 5, b"c"), Keyed(0, 6, b"c")
    >>> order.count_wrong([first, second]), order.count_wrong([second, first])
    (0, 1)
    >>> order.done([first])
    >>> order.count_wrong([second]), order.count_wrong([first])
    (0, 1)
    """

    def __init__(self) -> None:
        self._done: dict[tuple[int, bytes], int] = {}

    def count_wrong(self, messages: Iterable[Keyed]) -> int:
        """How many messages of one pop come after a later one of their key, or after they were done."""
        wrong = 0
        last: dict[tuple[int, bytes], int] = {}
        for queue_id, queue_offset, key in messages:
            name = queue_id, key
            if queue_offset <= last.get(name, self._done.get(name, -1)):
                wrong += 1
            else:
                last[name] = queue_offset
        return wrong

    def done(self, messages: Iterable[Keyed]) -> None:
        """These are acked."""
        for queue_id, queue_offset, key in messages:
            name = queue_id, key
            self._done[name] = max(queue_offset, self._done.get(name, -1))
