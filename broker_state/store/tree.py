"""Sets of numbers in which the next member is found at once, however far away it is."""

from typing import Final

from broker_state.store.overlay import Overlay
from broker_state.store.segment import SEGMENT_BITS, SEGMENT_SHIFT

__all__ = ["GrowingTree", "Tree"]

_LOW: Final = SEGMENT_BITS - 1


class Tree:
    """A set of numbers below 4096 ** depth: in each level above the lowest a bit means "not empty below".

    Key: prefix, level u8, node u64.

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> tree = Tree(Overlay(MemoryKv()), b"t", 3)
    >>> tree.add(5), tree.add(20_000_000_000), tree.add(5)
    (True, True, False)
    >>> tree.first(), tree.first(6), tree.first(20_000_000_001)
    (5, 20000000000, None)
    """

    __slots__ = ("_overlay", "_prefix", "depth")

    def __init__(self, overlay: Overlay, prefix: bytes, depth: int) -> None:
        self._overlay = overlay
        self._prefix = prefix
        self.depth = depth

    def add(self, number: int) -> bool:
        """Add `number` to the set; return False if it was there."""
        at = number
        for level in range(self.depth):
            key = self._key(level, at >> SEGMENT_SHIFT)
            before = self._overlay.bits(key)
            bit = 1 << (at & _LOW)
            if before & bit:
                if not level:
                    return False
                break
            self._overlay.set_bits(key, before | bit)
            if before:
                break
            at >>= SEGMENT_SHIFT
        return True

    def discard(self, number: int) -> bool:
        """Remove `number` from the set; return False if it was not there."""
        at = number
        for level in range(self.depth):
            key = self._key(level, at >> SEGMENT_SHIFT)
            before = self._overlay.bits(key)
            bit = 1 << (at & _LOW)
            if not before & bit:
                return False
            self._overlay.set_bits(key, before ^ bit)
            if before != bit:
                break
            at >>= SEGMENT_SHIFT
        return True

    def first(self, least: int = 0) -> int | None:
        """Return the least member that is not below `least`, in O(depth) reads; None if there is none."""
        level, at = 0, least
        while level < self.depth:
            bits = self._overlay.bits(self._key(level, at >> SEGMENT_SHIFT)) >> (at & _LOW)
            if bits:
                at += (bits & -bits).bit_length() - 1
                while level:
                    level -= 1
                    bits = self._overlay.bits(self._key(level, at))
                    at = at << SEGMENT_SHIFT | ((bits & -bits).bit_length() - 1)
                return at
            at = (at >> SEGMENT_SHIFT) + 1
            level += 1
        return None

    def _key(self, level: int, node: int) -> bytes:
        return self._prefix + bytes((level,)) + node.to_bytes(8, "big")


class GrowingTree(Tree):
    """A tree that counts its members, and grows by a level when a number needs it; its owner stores both.

    Attributes:
        count: Members of the set.
        depth: Levels of the tree.
    """

    __slots__ = ("count",)

    def __init__(self, overlay: Overlay, prefix: bytes, depth: int, count: int) -> None:
        super().__init__(overlay, prefix, depth)
        self.count = count

    def add(self, number: int) -> bool:
        """See `Tree.add`."""
        while number >> (SEGMENT_SHIFT * self.depth):
            if self.count:
                self._overlay.set_bits(self._key(self.depth, 0), 1)
            self.depth += 1
        is_new = Tree.add(self, number)
        self.count += is_new
        return is_new

    def discard(self, number: int) -> bool:
        """See `Tree.discard`."""
        if not self.count or number >> (SEGMENT_SHIFT * self.depth):
            return False
        was_there = Tree.discard(self, number)
        self.count -= was_there
        return was_there

    def first(self, least: int = 0) -> int | None:
        """See `Tree.first`."""
        return Tree.first(self, least) if self.count else None
