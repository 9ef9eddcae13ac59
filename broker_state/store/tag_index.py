"""Where units with a tag are: the pages of 64 offsets that have any, so that a search passes the others unread."""

from collections.abc import Iterable
from typing import Final

from broker_state.store.facts import UnitFacts
from broker_state.store.overlay import Overlay
from broker_state.store.segment import SEGMENT_SHIFT, segment_windows
from broker_state.store.tree import Tree

__all__ = ["TAG_CLASSES", "TagIndex"]

TAG_CLASSES: Final = 1_024
"""Classes of tags, by the low bits of their hashes: a queue with many tags has at most as many trees. Two tags share
one in a thousand cases; then a search reads pages that have only the other one."""
_WITH_TIMES: Final = TAG_CLASSES
_DEPTH: Final = 5
"""Levels of a tree: enough for the pages of all offsets."""


class _PageTree(Tree):
    """A tree that takes ranges."""

    __slots__ = ()

    def add_range(self, first: int, end: int) -> None:
        """Add the pages of [first, end), not empty, in time per node, not per page."""
        for level in range(self.depth):
            is_new = False
            for node, window in segment_windows(first, end):
                key = self._key(level, node)
                before = self._overlay.bits(key)
                is_new |= not before
                if before | window != before:
                    self._overlay.set_bits(key, before | window)
            if not is_new:
                return
            first, end = first >> SEGMENT_SHIFT, ((end - 1) >> SEGMENT_SHIFT) + 1


class TagIndex:
    """The pages with units of each class of tags, and the pages with units that had a delivery time to come.

    A page stays in it. Key: prefix, class u16, then that of the tree's node.

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> index = TagIndex(Overlay(MemoryKv()), b"g")
    >>> index.add(UnitFacts(tag=7, count=1), 10, 20)
    >>> index.add(UnitFacts(tag=9, count=1, deliver_at_ms=1), 30, 31)
    >>> [[index.first(kind, 12) for kind in index.classes_of([tag])] for tag in (7, 8, 9)]
    [[12, 30], [None, 30], [30, 30]]
    """

    __slots__ = ("_overlay", "_prefix", "_trees")

    def __init__(self, overlay: Overlay, prefix: bytes) -> None:
        self._overlay = overlay
        self._prefix = prefix
        self._trees: dict[int, _PageTree] = {}

    def add(self, facts: UnitFacts, first_page: int, end_page: int) -> None:
        """Note that there are units with these facts in each page of [first_page, end_page), not empty."""
        if facts.tag:
            self._tree(facts.tag % TAG_CLASSES).add_range(first_page, end_page)
        if facts.deliver_at_ms:
            self._tree(_WITH_TIMES).add_range(first_page, end_page)

    @staticmethod
    def classes_of(tags: Iterable[int]) -> list[int]:
        """Return the classes in whose pages a search for `tags` has something to do: also the one with times."""
        return [*sorted({tag % TAG_CLASSES for tag in tags}), _WITH_TIMES]

    def first(self, tag_class: int, least_page: int) -> int | None:
        """Return the first page of a class that is not below `least_page`; None if there is none."""
        return self._tree(tag_class).first(least_page)

    def _tree(self, tag_class: int) -> _PageTree:
        tree = self._trees.get(tag_class)
        if tree is None:
            tree = self._trees[tag_class] = _PageTree(
                self._overlay, self._prefix + tag_class.to_bytes(2, "big"), _DEPTH
            )
        return tree
