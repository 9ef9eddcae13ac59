"""Ranges of queue offsets, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from popstream.wire.limits import OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Span", "is_within", "merged_spans"]

Span = tuple[int, int]
"""(first, last)"""


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans with the same offsets, in order, of which none touches the next.

    >>> merged_spans([(7, 9), (0, 3), (2, 4), (5, 5), (9, 8)])
    [(0, 5), (7, 9)]
    """
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        elif first <= last:
            merged.append((first, last))
    return merged


def is_within(queue_offset: int, merged: Sequence[Span]) -> bool:
    """Return whether an offset is in one of the spans, which are disjoint and in order.

    >>> [is_within(queue_offset, [(0, 4), (7, 9)]) for queue_offset in (4, 5, 7)]
    [True, False, True]
    """
    at = bisect_right(merged, (queue_offset, OFFSET_MAX))
    return at > 0 and queue_offset <= merged[at - 1][1]
