"""What one pop may still take: its budget of messages and units, and which of them it asks for."""

from collections.abc import Iterator
from typing import Final

from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.tag_search import TagSearch
from broker_state.store.facts import UnitFacts
from broker_state.store.pages import UnitFactsPage, windows

__all__ = ["PopFilter"]

_NO_FACTS: Final = UnitFacts(0, 1)


class PopFilter:
    """The units that one pop may still take.

    A record searches a bounded number of pages for tags, over all pops that it serves, and puts off a bounded number of
    units. What ends there goes on later from where it was: what it looked at is passed over, or put off.

    Args:
        op: The operation.
        budget: Messages that the pop may take.
        units: Units that it may take.
        tags: Hashes of the tags that it asked for; None: any.
    """

    __slots__ = ("_op", "_queue", "_search", "budget", "is_cut_short", "is_untouched", "tags", "units")

    def __init__(self, op: OpContext, budget: int, units: int, tags: tuple[int, ...] | None) -> None:
        self._op = op
        self._queue = op.queue
        self.budget = budget
        self.units = units
        self.tags = None if tags is None else frozenset(tags)
        self._search = None if self.tags is None else TagSearch(op, self.tags)
        self.is_untouched = True
        self.is_cut_short = False
        """The pop has to go on in another record: with its search for tags, or behind units whose time has not come."""

    def is_open(self) -> bool:
        """Return whether the pop may take more. Not a property: the value changes during a loop."""
        return self.budget > 0 and self.units > 0 and not self.is_cut_short

    def cut(self, first: int, end: int) -> Iterator[tuple[int, int, bool, int]]:
        """Yield (first, end, is given, delivery time) from [first, end) until the pop is full or its work is cut short.

        What is not given has a delivery time to come, or else (0) not the tags, and is passed over.
        """
        if self.takes_any:
            yield *self.cut_alike(first, end), True, 0
            return
        passed_from = at = first
        for low, high, page in self._pages(first, end):
            at = low
            for run_first, run_end, known in page.within(low, high) if page else [(low, high, None)]:
                if not self.is_open():
                    break
                facts = known or _NO_FACTS
                is_early = facts.deliver_at_ms > self._op.now_ms
                if self.tags is not None and facts.tag not in self.tags and not is_early:
                    at = run_end
                    continue
                at = run_first
                if passed_from < at:
                    yield passed_from, at, False, 0
                    passed_from = at
                if is_early:
                    self._op.work_left -= 1
                    if self._op.work_left < 0:
                        self.is_cut_short = True
                        break
                    yield at, run_end, False, facts.deliver_at_ms
                    at = passed_from = run_end
                    continue
                count = min(run_end - at, self.units, max(self.budget // facts.count, 1 if self.is_untouched else 0))
                if count:
                    self.is_untouched = False
                    self.budget -= count * facts.count
                    self.units -= count
                    yield at, at + count, True, 0
                    at += count
                    passed_from = at
                if at < run_end:
                    self.budget = 0  # a unit that does not fit ends the pop: a later one must not overtake it
            if not self.is_open():
                break
        else:
            at = end
        if passed_from < at:
            yield passed_from, at, False, 0

    def _pages(self, first: int, end: int) -> Iterator[tuple[int, int, UnitFactsPage | None]]:
        """Yield (first, end, facts) of each page of [first, end) in which there is something to look at.

        Where the record has looked at enough, the pop is cut short, and the last window is empty.
        """
        search = self._search
        if search is None:
            for page_no, low, high in windows(first, end):
                yield low, high, self._queue.unit_facts(page_no)
        elif search.may_begin():
            for page_no, low, high in search.windows(first, end):
                page = self._queue.unit_facts(page_no)
                self.is_cut_short = not search.may_look(page_no, page)
                yield low, low if self.is_cut_short else high, page
        else:
            self.is_cut_short = True
            yield first, first, None

    def unread_until(self, first: int, end: int) -> int:
        """Return up to where of [first, end) the pop has nothing to look at, but holes and units without its tags."""
        return first if self._search is None else self._search.unread_until(first, end)

    def spend(self, work: int) -> None:
        """Charge the record for what it takes to find what the pop looks at."""
        self._op.work_left -= work

    def pass_gap(self, first: int, end: int) -> None:
        """Charge the record for the holes [first, end) before what is looked at next."""
        if first < end:
            self._op.spend_on_gap(first, end)
            self.is_cut_short |= self._op.work_left <= 0

    @property
    def takes_any(self) -> bool:
        """Whether units are alike to the pop: it asked for no tags, and each is one message, to be given at once."""
        return self.tags is None and not self._queue.record.has_unit_facts

    def cut_alike(self, first: int, end: int) -> tuple[int, int]:
        """Return what is given of [first, end), which are alike to the pop: from `first` on."""
        count = min(self.budget, self.units, end - first)
        self.budget -= count
        self.units -= count
        return first, first + count
