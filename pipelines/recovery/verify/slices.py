"""The slices in which a verification goes through its sources: bounded in memory, and in the order of the tables.

A piece of a table has rows of several sources. If all sources advance as they did when the rows were written, a piece
is read once and given up soon.
"""

from collections.abc import Iterable, Mapping, Sequence

from connectors.delta.pieces import TablePiece

__all__ = ["slices_of"]


def slices_of(
    first: Mapping[str, int], end: Mapping[str, int], pieces: Iterable[TablePiece], offsets_max: int
) -> list[dict[str, int]]:
    """Return the end of each source in each slice; the slices follow each other, and tile [first, end).

    Args:
        first: By source, the first offset.
        end: By source, the offset after the last one.
        pieces: Those of a table, in the order of writing.
        offsets_max: Offsets of a slice, of all sources together.

    >>> pieces = [TablePiece("a", 0, {"0": (0, 4), "1": (0, 2)}), TablePiece("b", 0, {"0": (4, 6)})]
    >>> slices_of({"0": 0, "1": 0}, {"0": 9, "1": 2}, pieces, 4)
    [{'0': 2, '1': 1}, {'0': 4, '1': 2}, {'0': 6, '1': 2}, {'0': 9, '1': 2}]
    """
    steps: list[dict[str, int]] = []
    reached = {source: first.get(source, 0) for source in end}
    for piece in pieces:
        step = {
            source: max(offset, min(piece.spans[source][1], end[source])) if source in piece.spans else offset
            for source, offset in reached.items()
        }
        if step != reached:
            steps.append(step)
            reached = step
    return list(_sized({source: first.get(source, 0) for source in end}, [*steps, dict(end)], offsets_max))


def _sized(first: dict[str, int], steps: Sequence[dict[str, int]], offsets_max: int) -> Iterable[dict[str, int]]:
    """Join small steps, and cut large ones."""
    begin = first
    for number, step in enumerate(steps):
        following = steps[number + 1] if number + 1 < len(steps) else None
        if following is not None and _offsets(begin, following) <= offsets_max:
            continue
        parts = max(1, -(-_offsets(begin, step) // offsets_max))
        for part in range(1, parts + 1):
            yield {source: begin[source] + (at - begin[source]) * part // parts for source, at in step.items()}
        begin = step


def _offsets(begin: Mapping[str, int], end: Mapping[str, int]) -> int:
    return sum(at - begin[source] for source, at in end.items())
