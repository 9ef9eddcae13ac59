"""How often each message of a lane was delivered: the number of a delivery among those of its message."""

from bisect import bisect_right

__all__ = ["DeliveryCounts"]


class DeliveryCounts:
    """Numbers the deliveries of the messages of one lane, from 1.

    `attempt` cannot: it stays the same after a cancelled pop or a suspended lease, and begins again after a reset.
    """

    __slots__ = ("_again", "_ends", "_firsts")

    def __init__(self) -> None:
        # The offsets that were delivered, as spans; nearly every delivery is the first, and lengthens the last span.
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._again: dict[int, int] = {}

    def count(self, queue_offset: int) -> int:
        """Return how often the message was delivered."""
        at = bisect_right(self._firsts, queue_offset) - 1
        if at < 0 or self._ends[at] <= queue_offset:
            return 0
        return self._again.get(queue_offset, 1)

    def deliver(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Count a delivery of each message in [first, last]; return (first, last, number of the delivery).

        >>> counts = DeliveryCounts()
        >>> counts.deliver(0, 3), counts.deliver(2, 5), counts.deliver(2, 2)
        ([(0, 3, 1)], [(2, 3, 2), (4, 5, 1)], [(2, 2, 3)])
        """
        if not self._ends or first >= self._ends[-1]:
            self._add(len(self._firsts), first, last + 1)
            return [(first, last, 1)]
        runs: list[tuple[int, int, int]] = []
        for queue_offset in range(first, last + 1):
            number = self.count(queue_offset) + 1
            if number == 1:
                self._add(bisect_right(self._firsts, queue_offset), queue_offset, queue_offset + 1)
            else:
                self._again[queue_offset] = number
            if runs and runs[-1][2] == number:
                runs[-1] = (runs[-1][0], queue_offset, number)
            else:
                runs.append((queue_offset, queue_offset, number))
        return runs

    def _add(self, at: int, first: int, end: int) -> None:
        firsts, ends = self._firsts, self._ends
        if at < len(firsts) and firsts[at] == end:  # it reaches the span behind it
            end = ends[at]
            del firsts[at], ends[at]
        if at and ends[at - 1] == first:
            ends[at - 1] = end
        else:
            firsts.insert(at, first)
            ends.insert(at, end)
