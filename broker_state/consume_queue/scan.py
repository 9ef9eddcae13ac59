"""A stretch of a message partition that was scanned: its units; every other offset of it is a hole."""

from dataclasses import dataclass

from broker_state.consume_queue.unit import Units
from popstream.wire.base_errors import Corrupt

__all__ = ["ContradictionError", "Scan", "merge"]


class ContradictionError(Corrupt):
    """The log differs from an earlier scan of it: truncate the queue there, and rebuild it."""

    def __init__(self, first_offset: int, end_offset: int) -> None:
        super().__init__(
            f"queue offsets {first_offset}..{end_offset - 1} were scanned before, with other content; "
            f"truncate the queue at {first_offset} and rebuild it",
            subject="consume queue",
        )
        self.first_offset = first_offset
        self.end_offset = end_offset


@dataclass(frozen=True, slots=True)
class Scan:
    """Queue offsets first_offset..end_offset-1: those of `units` were written, the others are holes."""

    first_offset: int
    end_offset: int
    units: Units

    def cut(self, first_offset: int, end_offset: int) -> "Scan":
        """Return the part of the scan in [first_offset, end_offset), which may be empty."""
        first = min(max(first_offset, self.first_offset), self.end_offset)
        end = max(min(end_offset, self.end_offset), first)
        return Scan(first, end, self.units.between(first, end))


def merge(known: Scan, more: Scan) -> Scan:
    """Join two stretches into one; where they overlap they must be equal.

    Raises:
        ContradictionError: They differ.
        ValueError: There is a gap between them.
    """
    if more.first_offset > known.end_offset or more.end_offset < known.first_offset:
        message = (
            f"{more.first_offset}..{more.end_offset} does not touch what was scanned, "
            f"{known.first_offset}..{known.end_offset}"
        )
        raise ValueError(message)
    first, end = max(known.first_offset, more.first_offset), min(known.end_offset, more.end_offset)
    if first < end and known.cut(first, end).units != more.cut(first, end).units:
        raise ContradictionError(first, end)
    before, after = known.cut(known.first_offset, more.first_offset), known.cut(more.end_offset, known.end_offset)
    return Scan(
        min(known.first_offset, more.first_offset),
        max(known.end_offset, more.end_offset),
        Units.joined([before.units, more.units, after.units]),
    )
