"""What one pop may still take: its budget of messages and units, and its search for tags."""

from collections.abc import Iterator

from broker_state.kernel.context.op_context import OpContext
from broker_state.store.facts import UnitFacts
from broker_state.store.pages import TagPage, windows

__all__ = ["PopFilter"]

_NO_FACTS = UnitFacts(0, 1)


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

    __slots__ = ("_op", "_page_no", "_queue", "budget", "is_cut_short", "is_untouched", "tags", "units")

    def __init__(self, op: OpContext, budget: int, units: int, tags: tuple[int, ...] | None) -> None:
        self._op = op
        self._queue = op.queue
        self._page_no = -1
        self.budget = budget
        self.units = units
        self.tags = None if tags is None else frozenset(tags)
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
        if not self._queue.record.has_unit_facts:
            yield from self._cut_without_facts(first, end)
            return
        passed_from = at = first
        for page_no, low, high in windows(first, end):
            if not self.is_open():
                break
            page = self._queue.unit_facts(page_no)
            if self.tags is not None and not self._may_search(page_no, page):
                break
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
        if passed_from < at:
            yield passed_from, at, False, 0

    def _cut_without_facts(self, first: int, end: int) -> Iterator[tuple[int, int, bool, int]]:
        """Do `cut` in a queue where no unit has a tag."""
        if self.tags is None:
            yield *self.cut_alike(first, end), True, 0
        elif self._op.work_left > 0:
            self._op.work_left -= 1  # between two holes there may be a single offset
            yield first, end, False, 0
        else:
            self.is_cut_short = True

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

    def _may_search(self, page_no: int, page: TagPage | None) -> bool:
        """Charge the record for a page, unless its search is over."""
        self._op.work_left -= 1  # for the page, and for each part of it between two holes
        if self._op.work_left < 0:
            self.is_cut_short = True
            return False
        if page_no == self._page_no:
            return True
        if self._op.tag_search_left <= 0:
            self.is_cut_short = True
            return False
        self._page_no = page_no
        self._op.tag_search_left -= 1 + (len(page.runs) if page else 0)
        return True
