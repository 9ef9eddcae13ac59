"""A block: the records that were read of one queue at once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.payload.payloads import Payload

__all__ = ["RECORD_BYTES", "PayloadBlock"]

RECORD_BYTES = 500
"""Memory that CPython needs for a record beside the bytes of key, value and headers: 400 to 600."""


class PayloadBlock:
    """All records with offsets `first..end - 1`: other offsets of this range have no record.

    Args:
        first: First offset of the range.
        end: Offset after its last one.
        records: (offset, record), in ascending order.
    """

    def __init__(self, first: int, end: int, records: Sequence[tuple[int, Payload]] = ()) -> None:
        self.first = first
        self.end = end
        self.payloads = dict(records)
        self.offsets = [offset for offset, _ in records]
        self.payload_bytes = sum(payload.size_bytes for _, payload in records)
        self.read_s = 0.0

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory, in bytes."""
        return self.payload_bytes + RECORD_BYTES * (1 + len(self.offsets))

    def between(self, first: int, end: int) -> list[int]:
        """Return the offsets in `first..end - 1` that have a record.

        >>> from popstream.payload.payloads import Payload
        >>> PayloadBlock(0, 9, [(n, Payload(None, None, [], 0)) for n in (2, 5, 7)]).between(3, 7)
        [5]
        """
        return self.offsets[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]

    def extend(self, following: PayloadBlock) -> None:
        """Append the block that starts where this one ends."""
        assert following.first == self.end
        self.end = following.end
        self.payloads |= following.payloads
        self.offsets += following.offsets
        self.payload_bytes += following.payload_bytes
