"""The search of one pop for its tags: page by page, without those that have none of them."""

from collections.abc import Iterator
from typing import Final

from broker_state.kernel.context.op_context import OpContext
from broker_state.store.pages import PAGE_SHIFT, UnitFactsPage
from broker_state.store.tag_index import TagIndex

__all__ = ["TagSearch"]

_NO_PAGE: Final = 1 << 64
"""Beyond every page."""


class TagSearch:
    """Where one pop looks for its tags, in ascending order, and what that costs its record.

    Pages that the index knows to have none of the tags, and no delivery times, are not read. Those that were written
    before there was an index are.
    """

    __slots__ = ("_next_page", "_next_pages", "_op", "_page_no", "_queue")

    def __init__(self, op: OpContext, tags: frozenset[int]) -> None:
        self._op = op
        self._queue = op.queue
        self._next_pages = dict.fromkeys(TagIndex.classes_of(tags), -1)
        """For each class of tags, and for delivery times, the next page that has any."""
        self._next_page = -1
        """The least of them."""
        self._page_no = -1
        """The page that was looked at last."""

    def windows(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (page no, first, end) of the pages of [first, end) in which there is something to look at."""
        page_no, last = first >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        while page_no <= last:
            self._op.work_left -= 1  # for the page, and for each part of it between two holes
            page_no = self._find(page_no)
            if page_no <= last:
                yield page_no, max(first, page_no << PAGE_SHIFT), min(end, (page_no + 1) << PAGE_SHIFT)
            page_no += 1

    def unread_until(self, first: int, end: int) -> int:
        """Return up to where of [first, end) there is nothing to look at."""
        at = min(end, max(first, self._find(first >> PAGE_SHIFT) << PAGE_SHIFT))
        if at > first:
            self._op.work_left -= 1
        return at

    def may_begin(self) -> bool:
        """Return whether the record may look at further offsets, or has done enough."""
        return self._op.work_left >= 0

    def may_look(self, page_no: int, page: UnitFactsPage | None) -> bool:
        """Charge the record for a page, unless its search is over."""
        if self._op.work_left < 0:
            return False
        if page_no == self._page_no:
            return True
        if self._op.tag_search_left <= 0:
            return False
        self._page_no = page_no
        self._op.tag_search_left -= 1 + (len(page.runs) if page else 0)
        return True

    def _find(self, page_no: int) -> int:
        """Return the first page that is not below `page_no` and has something to look at."""
        if page_no < self._queue.record.tags_indexed_from:
            return page_no
        if self._next_page < page_no:
            passed = [tag_class for tag_class, at in self._next_pages.items() if at < page_no]
            self._op.work_left -= len(passed) - 1  # one is paid with the page
            for tag_class in passed:
                found = self._queue.tag_index.first(tag_class, page_no)
                self._next_pages[tag_class] = _NO_PAGE if found is None else found
            self._next_page = min(self._next_pages.values())
        return self._next_page
