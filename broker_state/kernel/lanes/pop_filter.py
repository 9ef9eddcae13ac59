"""What one pop may still take: its budget of messages and units, and its tag filter."""

from collections.abc import Iterator

from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.pages import UnitFacts, windows

__all__ = ["PopFilter"]

_NO_FACTS = UnitFacts(0, 1)


class PopFilter:
    """The units that one pop may still take.

    Args:
        queue: Knows tags and inner counts.
        budget: Messages that the pop may take.
        units: Units that it may take.
        tags: Hashes of the tags that it asked for; None: any.
    """

    __slots__ = ("budget", "is_untouched", "queue", "tags", "units")

    def __init__(self, queue: QueueState, budget: int, units: int, tags: tuple[int, ...] | None) -> None:
        self.queue = queue
        self.budget = budget
        self.units = units
        self.tags = None if tags is None else frozenset(tags)
        self.is_untouched = True

    def is_open(self) -> bool:
        """Return whether the pop may take more. Not a property: the value changes during a loop."""
        return self.budget > 0 and self.units > 0

    def cut(self, first: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (first, end, is given) from [first, end) until the pop is full; tags pass over what is not given."""
        queue = self.queue
        if not queue.record.has_unit_facts and self.tags is None:
            count = min(self.budget, self.units, end - first)
            self.budget -= count
            self.units -= count
            yield first, first + count, True
            return
        for page_no, low, high in windows(first, end):
            page = queue.unit_facts(page_no)
            cuts = page.within(low, high) if page else [(low, high, None)]
            for at, stop, known in cuts:
                if not self.is_open():
                    return
                facts = known or _NO_FACTS
                if self.tags is not None and facts.tag not in self.tags:
                    yield at, stop, False
                    continue
                count = min(stop - at, self.units, max(self.budget // facts.count, 1 if self.is_untouched else 0))
                if not count:
                    self.budget = 0
                    return
                self.is_untouched = False
                self.budget -= count * facts.count
                self.units -= count
                yield at, at + count, True
                if at + count < stop:
                    self.budget = 0  # a unit that does not fit ends the pop: a later one must not overtake it
                    return
