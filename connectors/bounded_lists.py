"""Cuts what leaves, or what is decided, into lists of bounded size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["bounded_lists"]

Item = TypeVar("Item")


def bounded_lists(
    items: Iterable[Item], size_of: Callable[[Item], int], bytes_max: int, *, more_bytes: int = 0
) -> Iterator[list[Item]]:
    """Yield consecutive items in lists of at most `bytes_max`; an item that is longer by itself is alone.

    An item takes `more_bytes` besides its size.

    >>> list(bounded_lists(["ab", "c", "defgh", "i"], len, 3))
    [['ab', 'c'], ['defgh'], ['i']]
    """
    taken: list[Item] = []
    size = 0
    for item in items:
        item_bytes = size_of(item) + more_bytes
        if taken and size + item_bytes > bytes_max:
            yield taken
            taken, size = [], 0
        taken.append(item)
        size += item_bytes
    if taken:
        yield taken
