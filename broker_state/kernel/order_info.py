"""OrderInfo: the latest pop of an orderly lane, and what became of its members (RIP-51).

RocketMQ's ConsumerOrderInfoManager keeps one such entry for each queue and group, in memory, and writes it to a file
every ten seconds. Here it is part of the lane: a head, and a page for each 64 offsets that has members, linked in their
order. Every value stays below 4 KiB, and a pop may have as many members as it likes.

    <lane> 'o'               the head
    <lane> 'm' page no u64   MemberPage
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from broker_state.store.overlay import Overlay
from broker_state.store.pages import PAGE_SHIFT, Runs, decode_ints, encode_ints, windows
from broker_state.store.stored import FORMAT_1, read_stored

__all__ = ["IDLE_MS", "NOT_A_MEMBER", "STALE", "ConsumedCounts", "Member", "OrderInfo"]

IDLE_MS = 24 * 60 * 60 * 1000
"""After so long without an operation consumed counts are forgotten (RocketMQ: ConsumerOrderInfoManager.autoClean)."""

NOT_A_MEMBER = -1
STALE = -2


class Member(msgspec.Struct, frozen=True, gc=False):
    """What neighbouring offsets of a batch have in common.

    `is_member` is False for an offset that is remembered for its count alone; `next_visible_ms` -1: that of the pop;
    `count`: deliveries before this one, as RocketMQ counts them; `suspended`: the next delivery counts as this one;
    `ended`: the end of the lease was told (deliveries).
    """

    is_member: bool
    acked: bool = False
    next_visible_ms: int = -1
    count: int = 0
    suspended: bool = False
    ended: bool = False


_PLAIN = Member(True)


class MemberPage(Runs[Member]):
    """Members among 64 offsets, and the number of the next page that has some (-1: none).

    Value: 0x01, MessagePack [page no, next page no, then first, length, next visible, count, flags of each run].
    """

    __slots__ = ("latest_ms", "next_no", "page_no")

    _FORMAT = b"\x01"

    def __init__(self, page_no: int, next_no: int, runs: list[tuple[int, int, Member]]) -> None:
        super().__init__(runs)
        self.page_no = page_no
        self.next_no = next_no
        self.latest_ms: int | None = None
        """When the last unacked member is visible (0: none is unacked), once somebody has asked."""

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


class _Head(msgspec.Struct, array_like=True):
    """Value: 0x01, MessagePack of the fields in order.

    `invisible_time_ms` 0: not known (RocketMQ's null); `end`: after the last member; `next_offset`: the first unacked
    member, or `end`; `due_ms`: the deadline that is stored for the lane (0: none).
    """

    epoch: int
    pop_time_ms: int
    invisible_time_ms: int
    attempt_id: str | None
    client: int
    first: int
    end: int
    member_count: int
    acked_count: int
    next_offset: int
    first_page_no: int
    last_consume_ms: int
    last_op_ms: int
    due_ms: int = 0
    least_count: int = 0


_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


class ConsumedCounts(NamedTuple):
    """How often offsets were delivered before: runs (first, end, count), and the least when every member has one."""

    least: int
    runs: list[tuple[int, int, int]]


class OrderInfo:
    """The batch of one lane.

    Three messages popped at 0 for 10 s; the first is acked, then the third, and the second is kept until 20 s (RIP-51):

    >>> from broker_state.store.memory_kv import MemoryKv
    >>> info = OrderInfo(Overlay(MemoryKv()), b"lane")
    >>> info.update(epoch=1, pop_time_ms=0, invisible_time_ms=10_000, members=[(0, 3)], now_ms=0)
    >>> info.is_blocked(9_999), info.commit_and_next(0, 1), info.commit_and_next(2, 1)
    (True, 1, 1)
    >>> info.update_next_visible_time(1, 1, 20_000)
    >>> info.is_blocked(19_999), info.is_blocked(20_000), info.commit_and_next(1, 1)
    (True, False, 3)
    >>> info.commit_and_next(1, 2) == STALE, info.commit_and_next(9, 1) == NOT_A_MEMBER
    (True, True)
    """

    __slots__ = ("_head", "_latest", "_overlay", "_prefix", "is_changed")

    def __init__(self, overlay: Overlay, prefix: bytes, stored: bytes | None = None) -> None:
        self._overlay = overlay
        self._prefix = prefix
        self._latest: list[tuple[int, int]] | None = None
        """A heap of (-`latest_ms`, page no): of every page with unacked members, and of pages as they were before."""
        self.is_changed = False
        """Whether the record being decided has changed it; the shell of the kernel sets it back."""
        if stored is None:
            self._head = _Head(0, 0, 0, None, 0, 0, 0, 0, 0, 0, -1, 0, 0)
        else:
            self._head = read_stored("order info", FORMAT_1, stored, _decode_head)

    def encode(self) -> bytes:
        """Stored form of the head."""
        return b"\x01" + _encode_head(self._head)

    @property
    def epoch(self) -> int:
        """Which pop of the lane made the batch; RocketMQ tells pops by their time, which two can share."""
        return self._head.epoch

    @property
    def pop_time_ms(self) -> int:
        """When it was popped."""
        return self._head.pop_time_ms

    @property
    def invisible_time_ms(self) -> int:
        """For how long, by the pop; 0: not known."""
        return self._head.invisible_time_ms

    @property
    def attempt_id(self) -> str | None:
        """The pop's; a pop with the same one gets the batch again."""
        return self._head.attempt_id

    @property
    def client(self) -> int:
        """Hash of the client that popped; 0: none."""
        return self._head.client

    @property
    def first(self) -> int:
        """The first member."""
        return self._head.first

    @property
    def end(self) -> int:
        """The offset after the last member; 0 before the first pop."""
        return self._head.end

    @property
    def member_count(self) -> int:
        """Members, acked ones too."""
        return self._head.member_count

    @property
    def acked_count(self) -> int:
        """Members that are acked."""
        return self._head.acked_count

    @property
    def next_offset(self) -> int:
        """The first unacked member, or `end`: what the lane's commit offset becomes."""
        return self._head.next_offset

    @property
    def last_consume_ms(self) -> int:
        """When `update` was last called."""
        return self._head.last_consume_ms

    @property
    def due_ms(self) -> int:
        """The deadline that is stored for the lane: when the batch becomes free, 0 once it was told."""
        return self._head.due_ms

    @property
    def least_count(self) -> int:
        """How often every member was delivered before, at least."""
        return self._head.least_count

    def set_due_ms(self, due_ms: int) -> None:
        """The caller has stored another deadline."""
        self._head.due_ms = due_ms
        self._save()

    def runs(self, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int, Member]]:
        """The known runs of offsets within [first, end), in order; pages apart."""
        for page in self._pages(first >> PAGE_SHIFT):
            for run_first, run_end, member in list(page.runs):
                if end is not None and run_first >= end:
                    return
                if run_end > first:
                    yield max(run_first, first), run_end if end is None else min(run_end, end), member

    def unacked(self) -> Iterator[tuple[int, int, Member]]:
        """Runs of members that are not acked."""
        for first, end, member in self.runs(self._head.next_offset):
            if member.is_member and not member.acked:
                yield first, end, member

    def members_within(self, first: int, end: int) -> int:
        """How many members lie in [first, end)."""
        return sum(stop - at for at, stop, member in self.runs(first, end) if member.is_member)

    @property
    def is_whole(self) -> bool:
        """Whether every offset from the first member to the last is one."""
        return self._head.member_count == self._head.end - self._head.first

    def at(self, first: int, end: int) -> tuple[int, Member | None]:
        """Up to where, at most `end`, offsets are what `first` is, and what that is; None: nothing is known of it.

        It may stop at the end of a page, although the next offset is the same.
        """
        if first >= self._head.end:
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

    def next_visible_ms(self, member: Member) -> int:
        """When a member is visible again."""
        if member.next_visible_ms < 0:
            return self._head.pop_time_ms + self._head.invisible_time_ms
        return member.next_visible_ms

    def consumed_counts(self) -> ConsumedCounts:
        """How often the members, and others that are still counted, were delivered before."""
        runs: list[tuple[int, int, int]] = []
        counted = 0
        for first, end, member in self.runs():
            if not member.count:
                continue
            counted += end - first
            if runs and runs[-1][1:] == (first, member.count):
                runs[-1] = (runs[-1][0], end, member.count)
            else:
                runs.append((first, end, member.count))
        every = runs and counted == self._head.member_count
        return ConsumedCounts(min(count for _, _, count in runs) if every else 0, runs)

    def update(
        self,
        *,
        epoch: int,
        pop_time_ms: int,
        invisible_time_ms: int,
        members: Iterable[tuple[int, int]],
        now_ms: int,
        attempt_id: str | None = None,
        client: int = 0,
    ) -> None:
        """A pop got `members`, half-open runs in order: acks and changed times are forgotten, counts go on (3.2)."""
        head = self._head
        counted = list(self._carried_counts(attempt_id))
        is_same_attempt = self.is_reentrant(attempt_id)
        pages: dict[int, MemberPage] = {}
        member_count = 0
        first, last = -1, 0
        for low, high in members:
            first = low if first < 0 else first
            last = high
            member_count += high - low
            for page_no, at, stop in windows(low, high):
                page = pages.get(page_no)
                if page is None:
                    page = pages[page_no] = MemberPage(page_no, -1, [])
                page.replace(at, stop, _PLAIN)
        for low, high, count in counted:
            for page_no, at, stop in windows(low, high):
                page = pages.get(page_no)
                if page is None:
                    if not is_same_attempt:
                        continue
                    page = pages[page_no] = MemberPage(page_no, -1, [])
                for cut, cut_end, member in page.within(at, stop):
                    if member is not None or is_same_attempt:
                        page.replace(cut, cut_end, Member(member is not None, count=count))
        self._replace_pages(pages)
        self._head = _Head(
            epoch,
            pop_time_ms,
            max(invisible_time_ms, 0),
            attempt_id,
            client,
            max(first, 0),
            last,
            member_count,
            0,
            max(first, 0),
            min(pages, default=-1),
            now_ms,
            now_ms,
            head.due_ms,
        )
        self._head.least_count = self.consumed_counts().least
        self._forget_latest()
        self._save()

    def is_reentrant(self, attempt_id: str | None) -> bool:
        """Whether a pop with this attempt id may have the batch again, blocked or not."""
        return attempt_id is not None and self._head.attempt_id == attempt_id

    def check_block(self, attempt_id: str | None, invisible_time_ms: int, now_ms: int) -> bool:
        """Whether a pop must wait (3.3); a batch that does not know its invisible time takes over the caller's."""
        head = self._head
        if not head.member_count or self.is_reentrant(attempt_id):
            return False
        if not head.invisible_time_ms and invisible_time_ms:
            head.invisible_time_ms = invisible_time_ms
            self._forget_latest()
            self._save()
        return self.is_blocked(now_ms)

    def is_blocked(self, now_ms: int) -> bool:
        """Whether any unacked member is invisible; at now == its next visible time it is not."""
        return self.free_ms() > now_ms

    def free_ms(self) -> int:
        """When the last unacked member becomes visible, 0 when all are acked: the true moment of a wake-up (3.6)."""
        if self._latest is None:
            self._latest = self._find_latest()
        while self._latest:
            latest_ms, page_no = -self._latest[0][0], self._latest[0][1]
            page = self._page(page_no)
            if page is not None and page.latest_ms == latest_ms:
                return latest_ms
            heapq.heappop(self._latest)
        return 0

    def lock_free_ms(self, now_ms: int) -> int | None:
        """When a waiting pop is to be woken: at once when nothing blocks, else when the last blocking member ends.

        None when there is no batch, or when one that is not all acked does not know its invisible time.
        """
        head = self._head
        if not head.member_count:
            return None
        if not head.invisible_time_ms and head.acked_count < head.member_count:
            return None
        return max(self.free_ms(), now_ms)

    def commit_and_next(self, offset: int, epoch: int) -> int:
        """Ack one member (3.4): the new commit offset, or STALE, or NOT_A_MEMBER."""
        if not self._head.member_count:
            return NOT_A_MEMBER
        if epoch != self._head.epoch:
            return STALE
        for _, _, member in self.runs(offset, offset + 1):
            if member.is_member:
                if not member.acked:
                    self.ack(offset, offset + 1)
                return self._head.next_offset
        return NOT_A_MEMBER

    def update_next_visible_time(self, offset: int, epoch: int, next_visible_ms: int) -> None:
        """Change one member's time (3.5); nothing for another epoch, nor for what is no member."""
        if epoch == self._head.epoch and any(member.is_member for _, _, member in self.runs(offset, offset + 1)):
            self.change(offset, offset + 1, next_visible_ms)

    def auto_clean(self, now_ms: int) -> bool:
        """Whether RocketMQ would drop the entry by now: no pop for more than 24 h (3.7)."""
        return now_ms - self._head.last_consume_ms > IDLE_MS

    def ack(self, first: int, end: int) -> int:
        """The members of [first, end) are done; how many of them were not before."""
        done = 0
        last = -1
        for page_no, low, high in windows(first, end):
            page = self._page(page_no)
            if page is None:
                continue
            last = page_no
            for at, stop, m in page.within(low, high):
                if m is not None and m.is_member and not m.acked:
                    page.replace(at, stop, Member(True, True, m.next_visible_ms, m.count, m.suspended, m.ended))
                    done += stop - at
            self._settle(page)
        head = self._head
        head.acked_count += done
        if done and first <= head.next_offset < end:
            # What follows is in the last page, or in one that it leads to: that of `end` need not exist.
            left = (
                max(at, end)
                for near in self._pages_from(last)
                for at, stop, m in near.runs
                if stop > end and m.is_member and not m.acked
            )
            head.next_offset = next(left, head.end)
        self._save()
        return done

    def change(
        self, first: int, end: int, next_visible_ms: int, *, suspended: bool = False, ended: bool = False
    ) -> None:
        """The members of [first, end) are visible at another time."""
        for page_no, low, high in windows(first, end):
            page = self._page(page_no)
            if page is None:
                continue
            for at, stop, m in page.within(low, high):
                if m is not None and m.is_member:
                    page.replace(at, stop, Member(True, m.acked, next_visible_ms, m.count, suspended, ended))
            self._settle(page)
        self._save()

    def end_lease(self, first: int, end: int, member: Member) -> None:
        """The end of the leases of [first, end), all of them `member`, was told."""
        told = Member(True, member.acked, member.next_visible_ms, member.count, member.suspended, True)
        for page_no, low, high in windows(first, end):
            page = self._page(page_no)
            assert page is not None, "a member is in a page"
            page.replace(low, high, told)
            self._settle(page)

    def note_operation(self, now_ms: int) -> None:
        """The lane has an operation; after more than 24 h without one the counts are forgotten."""
        head = self._head
        if head.member_count and now_ms - head.last_op_ms > IDLE_MS:
            self._forget_counts()
        if now_ms > head.last_op_ms:
            head.last_op_ms = now_ms
            self._overlay.put(self._prefix + b"o", self)

    def _forget_counts(self) -> None:
        for page in list(self._pages(0)):
            page.runs[:] = [
                (first, end, Member(True, m.acked, m.next_visible_ms, 0, m.suspended, m.ended))
                for first, end, m in page.runs
                if m.is_member
            ]
            self._settle(page)
        self._head.least_count = 0
        self._save()

    def _carried_counts(self, attempt_id: str | None) -> Iterator[tuple[int, int, int]]:
        is_same = self.is_reentrant(attempt_id)
        for first, end, member in self.runs():
            count = member.count
            if not is_same and not member.is_member:
                continue
            if not is_same and not member.suspended:
                count += 1
            if count:
                yield first, end, count

    def _replace_pages(self, pages: dict[int, MemberPage]) -> None:
        gone = [page.page_no for page in self._pages(0) if page.page_no not in pages]
        for page_no in gone:
            self._overlay.delete(self._page_key(page_no))
        ordered = sorted(pages)
        for page_no, next_no in zip(ordered, [*ordered[1:], -1], strict=True):
            pages[page_no].next_no = next_no
            self._overlay.put(self._page_key(page_no), pages[page_no])

    def _pages(self, least: int) -> Iterator[MemberPage]:
        """The pages from number `least` on, in order."""
        is_known = least > self._head.first_page_no and self._page(least) is not None
        for page in self._pages_from(least if is_known else self._head.first_page_no):
            if page.page_no >= least:
                yield page

    def _pages_from(self, page_no: int) -> Iterator[MemberPage]:
        """Page `page_no` (-1: none) and those that follow it."""
        while page_no >= 0:
            page = self._page(page_no)
            assert page is not None, "the list of member pages is whole"
            yield page
            page_no = page.next_no

    def _settle(self, page: MemberPage) -> None:
        """A page was changed."""
        if self._latest is None:
            page.latest_ms = None
        else:
            before_ms, after_ms = page.latest_ms, self._latest_of(page)
            if after_ms and after_ms != before_ms:
                heapq.heappush(self._latest, (-after_ms, page.page_no))
            if len(self._latest) > 4 * self._head.member_count:  # mostly of pages as they were
                self._latest = None
        self._overlay.put(self._page_key(page.page_no), page)

    def _find_latest(self) -> list[tuple[int, int]]:
        """Each page remembers its own, so that an ack looks at one page."""
        latest = []
        for page in self._pages(0):
            ms = page.latest_ms if page.latest_ms is not None else self._latest_of(page)
            if ms:
                latest.append((-ms, page.page_no))
        heapq.heapify(latest)
        return latest

    def _latest_of(self, page: MemberPage) -> int:
        page.latest_ms = max(
            [self.next_visible_ms(m) for _, _, m in page.runs if m.is_member and not m.acked], default=0
        )
        return page.latest_ms

    def _forget_latest(self) -> None:
        self._latest = None
        for page in self._pages(0):
            page.latest_ms = None

    def _page(self, page_no: int) -> MemberPage | None:
        return self._overlay.get(self._page_key(page_no), MemberPage.decode)

    def _page_key(self, page_no: int) -> bytes:
        return self._prefix + b"m" + page_no.to_bytes(8, "big")

    def _save(self) -> None:
        self.is_changed = True
        self._overlay.put(self._prefix + b"o", self)
