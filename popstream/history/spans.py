"""Ranges of queue offsets, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Span", "is_within", "merged_spans", "spans_of"]

Span = tuple[int, int]
"""(first, last)"""


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans with the same offsets, in order.

    >>> merged_spans([(7, 9), (0, 3), (2, 4)])
    [(0, 4), (7, 9)]
    """
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def is_within(queue_offset: int, merged: Sequence[Span]) -> bool:
    """Return whether an offset is in one of the spans, which are disjoint and in order.

    >>> [is_within(queue_offset, [(0, 4), (7, 9)]) for queue_offset in (4, 5, 7)]
    [True, False, True]
    """
    at = bisect_right(merged, (queue_offset, 1 << 63))
    return at > 0 and queue_offset <= merged[at - 1][1]


def spans_of(queue_offsets: Iterable[int]) -> list[Span]:
    """Return offsets as spans.

    >>> spans_of([3, 1, 2, 7])
    [(1, 3), (7, 7)]
    """
    spans: list[Span] = []
    for queue_offset in sorted(queue_offsets):
        if spans and spans[-1][1] == queue_offset - 1:
            spans[-1] = (spans[-1][0], queue_offset)
        else:
            spans.append((queue_offset, queue_offset))
    return spans
