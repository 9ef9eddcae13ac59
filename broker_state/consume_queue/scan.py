"""What was found in a stretch of a message partition: the units, and that there is nothing else between them."""

from dataclasses import dataclass

from broker_state.consume_queue.unit import Units
from popstream.wire.failures import Corrupt

__all__ = ["ContradictionError", "Scan", "merge"]


class ContradictionError(Corrupt):
    """The log now says something else than when it was scanned before: truncate the queue there and rebuild it."""

    def __init__(self, first_offset: int, end_offset: int) -> None:
        """Name the stretch that both scans cover."""
        super().__init__(
            f"queue offsets {first_offset}..{end_offset - 1} were scanned before, with other content; "
            f"truncate the queue at {first_offset} and rebuild it",
            subject="consume queue",
        )
        self.first_offset = first_offset
        self.end_offset = end_offset


@dataclass(frozen=True, slots=True)
class Scan:
    """The queue offsets first_offset..end_offset-1: those of `units` were written, the others are holes."""

    first_offset: int
    end_offset: int
    units: Units

    def cut(self, first_offset: int, end_offset: int) -> "Scan":
        """The part of it in [first_offset, end_offset), which may be empty."""
        first = min(max(first_offset, self.first_offset), self.end_offset)
        end = max(min(end_offset, self.end_offset), first)
        return Scan(first, end, self.units.between(first, end))


def merge(known: Scan, more: Scan) -> Scan:
    """Both stretches as one; what both cover must be the same in both.

    Raises:
        ContradictionError: it is not.
        ValueError: there is something between the two that neither covers.
    """
    if more.first_offset > known.end_offset or more.end_offset < known.first_offset:
        msg = (
            f"{more.first_offset}..{more.end_offset} does not touch what was scanned, "
            f"{known.first_offset}..{known.end_offset}"
        )
        raise ValueError(msg)
    first, end = max(known.first_offset, more.first_offset), min(known.end_offset, more.end_offset)
    if first < end and known.cut(first, end).units != more.cut(first, end).units:
        raise ContradictionError(first, end)
    before, after = known.cut(known.first_offset, more.first_offset), known.cut(more.end_offset, known.end_offset)
    return Scan(
        min(known.first_offset, more.first_offset),
        max(known.end_offset, more.end_offset),
        Units.joined([before.units, more.units, after.units]),
    )
