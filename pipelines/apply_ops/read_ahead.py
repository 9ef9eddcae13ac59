"""Takes the next item of an iterator in a thread, while the caller works on the one before."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item], prepare: Callable[[], None] = lambda: None) -> Generator[Item, None, None]:
    """Yield `items` in order, one of them being read beyond the one that was yielded last.

    An error that `items` raises is raised in its place. A caller that stops early waits for the read in flight.

    Args:
        items: Advanced in a thread of its own.
        prepare: Called once in that thread, first.

    >>> list(read_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read_ahead", initializer=prepare) as reader:
        end = object()
        coming = reader.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = reader.submit(next, items, end)
            yield item  # type: ignore[misc]  # mypy does not narrow by identity with a sentinel
