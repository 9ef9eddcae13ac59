"""OrderInfo: what is stored of the batch of an orderly lane, a head and its members. The rules are in `orderly_lane`.

RocketMQ's ConsumerOrderInfoManager keeps one OrderInfo for each queue and group, in memory, and writes it to a file
every ten seconds. Here it is part of the lane: a head, and a page for each 64 offsets that has members. The pages are
linked in their order. Every value stays below 4 KiB, however many members a pop has.

    <lane> 'o'               OrderInfoHead
    <lane> 'm' page no u64   MemberPage
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from msgspec.structs import replace

from broker_state.store.facts import Member
from broker_state.store.keys import NEVER_MS, LaneTag
from broker_state.store.overlay import Overlay
from broker_state.store.pages import PAGE_SHIFT, Runs, decode_ints, encode_ints, windows
from broker_state.store.state_records import OrderInfoHead

__all__ = ["MemberPage", "MemberRun", "OrderInfo"]


_PROBED_PAGES_MAX: Final = 64
"""Pages that are asked for one by one, members or not."""

MemberRun = tuple[int, int, Member]
"""(first, end, member): what is known of the offsets first..end-1."""


class MemberPage(Runs[Member]):
    """Members among 64 offsets, and the number of the next page that has some (-1: none).

    Value: 0x01, MessagePack [page no, next page no, then first, length, next visible, count, flags of each run].
    """

    __slots__ = ("latest_ms", "next_no", "page_no")

    _FORMAT: ClassVar[bytes] = b"\x01"

    def __init__(self, page_no: int, next_no: int, runs: list[MemberRun]) -> None:
        super().__init__(runs)
        self.page_no = page_no
        self.next_no = next_no
        self.latest_ms: int | None = None
        """When the last of its unacked members is visible (0: none is unacked); None: not computed. Not stored."""

    def encode(self) -> bytes:
        """See the class."""
        base = self.page_no << PAGE_SHIFT
        flat = [self.page_no, self.next_no]
        for first, end, m in self.runs:
            flags = m.is_member | m.acked << 1 | m.suspended << 2 | m.ended << 3
            flat += (first - base, end - first, m.next_visible_ms, m.count, flags)
        return self._FORMAT + encode_ints(flat)

    @classmethod
    def decode(cls, value: bytes) -> "MemberPage":
        """Raises CorruptValueError for another format byte, or numbers that make no page."""
        return decode_ints("member page", cls._FORMAT, value, cls._of)

    @classmethod
    def _of(cls, flat: list[int]) -> "MemberPage":
        base = flat[0] << PAGE_SHIFT
        runs = []
        for first, length, visible_ms, count, flags in zip(*(flat[2 + i :: 5] for i in range(5)), strict=True):
            member = Member(bool(flags & 1), bool(flags & 2), visible_ms, count, bool(flags & 4), bool(flags & 8))
            runs.append((base + first, base + first + length, member))
        return cls(flat[0], flat[1], runs)


def _no_batch() -> OrderInfoHead:
    return OrderInfoHead(0, 0, 0, None, 0, 0, 0, 0, 0, 0, -1, 0, 0)


class OrderInfo:
    """The batch of one lane: `head`, and its members in pages.

    Three messages popped at 0 for 10 s; the second is to be visible at 20 s, the first is acked:

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> info = OrderInfo(Overlay(MemoryKv()), b"lane")
    >>> info.begin([(0, 3, Member(True))], epoch=1, now_ms=0, invisible_time_ms=10_000)
    >>> info.replace(1, 2, Member(True), Member(True, next_visible_ms=20_000))
    >>> info.replace(0, 1, Member(True), Member(True, acked=True))
    >>> info.head.next_offset, info.latest_visible_ms(), [(first, end) for first, end, _ in info.unacked()]
    (1, 20000, [(1, 2), (2, 3)])
    """

    __slots__ = ("_latest", "_overlay", "_prefix", "head", "is_changed")

    def __init__(self, overlay: Overlay, prefix: bytes, stored: bytes | None = None) -> None:
        self._overlay = overlay
        self._prefix = prefix
        self._latest: list[tuple[int, int]] | None = None
        """A heap of (-`latest_ms`, page no) of the pages with unacked members. Entries of a page that has changed since
        are skipped when they reach the top. None: to be built."""
        self.is_changed = False
        """The record being decided has changed what a row of `order_info` reports; the end of the record resets it."""
        self.head = _no_batch() if stored is None else OrderInfoHead.decode(stored)

    def encode(self) -> bytes:
        """Stored form of the head."""
        return self.head.encode()

    def touch(self) -> None:
        """Store the head, which was changed, and have a row of `order_info` written for the record."""
        self.is_changed = True
        self.put_head()

    def put_head(self) -> None:
        """Store the head, which was changed in nothing that is audited."""
        self._overlay.put(self._prefix + LaneTag.BATCH, self)

    @property
    def is_whole(self) -> bool:
        """Whether every offset from the first member to the last is one."""
        return self.head.member_count == self.head.end - self.head.first

    @property
    def page_count(self) -> int:
        """How many pages `latest_visible_ms` has to read, at most: also if they are known, which a restart forgets."""
        head = self.head
        if not head.member_count:
            return 0
        return min(head.member_count, (head.end - 1 >> PAGE_SHIFT) - (head.first >> PAGE_SHIFT) + 1)

    def next_visible_ms(self, member: Member) -> int:
        """When a member is visible again."""
        if member.next_visible_ms < 0:
            return self.head.pop_time_ms + self.head.invisible_time_ms
        return member.next_visible_ms

    def latest_visible_ms(self) -> int:
        """When the last unacked member becomes visible; 0 when all are acked."""
        if self._latest is None:
            self._latest = self._find_latest()
        while self._latest:
            latest_ms, page_no = -self._latest[0][0], self._latest[0][1]
            page = self._page(page_no)
            if page is not None and page.latest_ms == latest_ms:
                return latest_ms
            heapq.heappop(self._latest)
        return 0

    def at(self, first: int, end: int) -> tuple[int, Member | None]:
        """Up to where, at most `end`, offsets are what `first` is, and what that is; None: nothing is known of it.

        It stops at the end of a page, even if the next offset is the same.
        """
        if first >= self.head.end:
            return end, None
        page = self._page(first >> PAGE_SHIFT)
        stop = min(end, ((first >> PAGE_SHIFT) + 1) << PAGE_SHIFT)
        if page is None:
            return stop, None
        for run_first, run_end, member in page.runs:
            if first < run_first:
                return min(stop, run_first), None
            if first < run_end:
                return min(stop, run_end), member
        return stop, None

    def runs(self, first: int = 0, end: int | None = None) -> Iterator[MemberRun]:
        """The known runs within [first, end), in order, each within one page; the caller may `replace` each."""
        for page in self._pages(first >> PAGE_SHIFT) if end is None else self._pages_within(first, end):
            for run_first, run_end, member in list(page.runs):
                if end is not None and run_first >= end:
                    return
                if run_end > first:
                    yield max(run_first, first), run_end if end is None else min(run_end, end), member

    def unacked(self) -> Iterator[MemberRun]:
        """The runs of members that are not acked, as `runs` has them."""
        for first, end, member in self.runs(self.head.next_offset):
            if member.is_member and not member.acked:
                yield first, end, member

    def begin(
        self,
        batch: Iterable[MemberRun],
        *,
        epoch: int,
        now_ms: int,
        invisible_time_ms: int,
        attempt_id: str | None = None,
        client: int = 0,
        least_count: int = 0,
    ) -> None:
        """Store a new batch: runs in order, at least one member. `due_ms` stays until the caller moves the deadline."""
        pages: dict[int, MemberPage] = {}
        members: list[tuple[int, int]] = []
        for first, end, member in batch:
            for page_no, low, high in windows(first, end):
                page = pages.get(page_no)
                if page is None:
                    page = pages[page_no] = MemberPage(page_no, -1, [])
                page.runs.append((low, high, member))
            if member.is_member:
                members.append((first, end))
        self._replace_pages(pages)
        self.head = OrderInfoHead(
            epoch=epoch,
            pop_time_ms=now_ms,
            invisible_time_ms=invisible_time_ms,
            attempt_id=attempt_id,
            client=client,
            first=members[0][0],
            end=members[-1][1],
            member_count=sum(end - first for first, end in members),
            acked_count=0,
            next_offset=members[0][0],
            first_page_no=min(pages),
            last_consume_ms=now_ms,
            last_op_ms=now_ms,
            due_ms=self.head.due_ms,
            least_count=least_count,
        )
        self._latest = None
        self.touch()

    def replace(self, first: int, end: int, before: Member, after: Member) -> None:
        """Make [first, end), members of one page that are all `before`, `after`; an ack moves `next_offset`."""
        page = self._page(first >> PAGE_SHIFT)
        assert page is not None, "a member is in a page"
        page.replace(first, end, after)
        if self._latest is not None and self._is_visible_alike(before, after):
            self._overlay.put(self._page_key(page.page_no), page)
        else:
            self._settle(page, 0 if after.acked else self.next_visible_ms(after))
        if after.acked and not before.acked:
            self._count_acked(page, first, end)

    def forget_counts(self) -> None:
        """Set the count of every member to 0, and drop the offsets that are kept for their counts alone."""
        for page in self._pages(0):
            page.runs = [(first, end, replace(member, count=0)) for first, end, member in page.runs if member.is_member]
            self._settle(page)
        self.head.least_count = 0
        self.touch()

    def _count_acked(self, page: MemberPage, first: int, end: int) -> None:
        head = self.head
        head.acked_count += end - first
        if first <= head.next_offset < end:
            head.next_offset = self._first_unacked(page, end)
        self.touch()

    def _first_unacked(self, page: MemberPage, least: int) -> int:
        """Return the first unacked member in the page or behind it that is not below `least`; without one the end.

        Not `next` of a generator expression: compiled, that makes the list of all first.
        """
        for near in self._pages_from(page.page_no):
            for at, _, member in near.runs:
                if at >= least and member.is_member and not member.acked:
                    return at
        return self.head.end

    def _page(self, page_no: int) -> MemberPage | None:
        return self._overlay.get(self._page_key(page_no), MemberPage.decode)

    def _page_key(self, page_no: int) -> bytes:
        return self._prefix + LaneTag.MEMBERS + page_no.to_bytes(8, "big")

    def _pages(self, least: int) -> Iterator[MemberPage]:
        """The pages from number `least` on, in order."""
        is_known = least > self.head.first_page_no and self._page(least) is not None
        for page in self._pages_from(least if is_known else self.head.first_page_no):
            if page.page_no >= least:
                yield page

    def _pages_within(self, first: int, end: int) -> Iterator[MemberPage]:
        """The pages of [first, end): of a short range by their numbers, for the way along the list may be long."""
        least, most = first >> PAGE_SHIFT, end - 1 >> PAGE_SHIFT
        if most - least > _PROBED_PAGES_MAX:
            yield from self._pages(least)
            return
        for page_no in range(least, most + 1):
            page = self._page(page_no)
            if page is not None:
                yield page

    def _pages_from(self, page_no: int) -> Iterator[MemberPage]:
        """Page `page_no` (-1: none) and those that follow it."""
        while page_no >= 0:
            page = self._page(page_no)
            assert page is not None, "the list of member pages is whole"
            yield page
            page_no = page.next_no

    def _replace_pages(self, pages: dict[int, MemberPage]) -> None:
        for page_no in [page.page_no for page in self._pages(0) if page.page_no not in pages]:
            self._overlay.delete(self._page_key(page_no))
        ordered = sorted(pages)
        for page_no, next_no in zip(ordered, [*ordered[1:], -1], strict=True):
            pages[page_no].next_no = next_no
            self._overlay.put(self._page_key(page_no), pages[page_no])

    def _settle(self, page: MemberPage, changed_ms: int = 0) -> None:
        """Store a page that was changed, and note when its last unacked member is visible."""
        if self._latest is None:
            page.latest_ms = None
        else:
            before_ms, after_ms = page.latest_ms, self._latest_of(page, changed_ms)
            if after_ms and after_ms != before_ms:
                heapq.heappush(self._latest, (-after_ms, page.page_no))
            if len(self._latest) > 4 * self.head.member_count:  # most entries are of pages that have changed since
                self._latest = None
        self._overlay.put(self._page_key(page.page_no), page)

    def _find_latest(self) -> list[tuple[int, int]]:
        """Build the heap; a page keeps its own value, so that an ack need look at one page only."""
        latest = []
        for page in self._pages(0):
            ms = page.latest_ms if page.latest_ms is not None else self._latest_of(page)
            if ms:
                latest.append((-ms, page.page_no))
        heapq.heapify(latest)
        return latest

    def _is_visible_alike(self, before: Member, after: Member) -> bool:
        return before.acked == after.acked and self.next_visible_ms(before) == self.next_visible_ms(after)

    def _latest_of(self, page: MemberPage, changed_ms: int = 0) -> int:
        """Find when the last unacked member of a page is visible; one that was changed is at `changed_ms`."""
        most_ms = NEVER_MS if page.latest_ms is None else max(page.latest_ms, changed_ms)
        latest_ms = 0
        # Acks come from the front: usually one look at the last run shows that it is as before.
        for _, _, member in reversed(page.runs):
            if member.is_member and not member.acked:
                latest_ms = max(latest_ms, self.next_visible_ms(member))
                if latest_ms == most_ms:
                    break
        page.latest_ms = latest_ms
        return latest_ms
