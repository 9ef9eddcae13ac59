"""Neighbouring offsets as one half-open range."""

from typing import NamedTuple

__all__ = ["Span", "append_span"]


class Span(NamedTuple):
    """The offsets first..end-1. Ranges of commands and answers are inclusive (first, last); those are no spans."""

    first: int
    end: int


def append_span(spans: list[Span], first: int, end: int) -> None:
    """Add [first, end) behind `spans`, as part of the last one when it begins where that one ends.

    >>> spans = [Span(0, 2)]
    >>> append_span(spans, 2, 3)
    >>> append_span(spans, 5, 6)
    >>> spans
    [Span(first=0, end=3), Span(first=5, end=6)]
    """
    if spans and spans[-1].end == first:
        spans[-1] = Span(spans[-1].first, end)
    else:
        spans.append(Span(first, end))
