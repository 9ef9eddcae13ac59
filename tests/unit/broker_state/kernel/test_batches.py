"""A record with many entries has the same effect as its entries one by one."""

import random

import msgspec

from broker_state.kernel.context.order_info import OrderInfo
from broker_state.store.facts import Member
from broker_state.store.marks import Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.pages import PAGE_OFFSETS, Runs
from broker_state.store.position import Position
from broker_state.store.segment import SEGMENT_BITS
from popstream.wire.command import ChangeEntry, ChangeInvisible, HandleRef, Policy
from popstream.wire.handle import decode_handle, encode_handle
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab


def test_neighbours_released_at_their_last_attempt_are_told_message_by_message() -> None:
    lab = LaneLab(written=3)
    lab.do(Policy(**QUEUE, group=GROUP, max_attempts=1))
    handle = lab.pop(3).handle
    assert handle is not None
    entries = [ChangeEntry(0, [(at, at)], 0) for at in range(3)]
    lab.do(ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=entries))
    assert lab.steps == [(step, offset, offset, 1) for offset in range(3) for step in ("released", "dead_lettered")]


def test_two_handles_of_one_delivery_get_a_new_handle_each() -> None:
    lab = LaneLab(written=4)
    text = lab.pop(4).handle
    handle = decode_handle(text or "")
    assert text is not None
    assert handle is not None
    other = encode_handle(msgspec.structs.replace(handle, start_offset=2))
    entries = [ChangeEntry(at // 2, [(at, at)], 500) for at in range(4)]
    answer = lab.do(
        ChangeInvisible(**QUEUE, handles=[HandleRef(GROUP, text), HandleRef(GROUP, other)], entries=entries)
    )
    assert answer is not None
    assert [run.handle for run in answer.runs] == [0, 0, 1, 1]
    given = [decode_handle(new) for new in answer.handles]
    assert [new.start_offset for new in given if new] == [0, 2]


def test_ranges_of_a_page_at_once_are_those_one_after_the_other() -> None:
    chance = random.Random(5)
    for _ in range(300):
        page: Runs[str] = Runs([])
        for first, end in apart(chance, PAGE_OFFSETS):
            page.replace(first, end, chance.choice("abc"))
        ranges = apart(chance, PAGE_OFFSETS)
        assert page.within_each([(first, end, first) for first, end in ranges]) == [
            (*cut, first) for first, end in ranges for cut in page.within(first, end)
        ]
        parts = [(first, end, chance.choice(["new", None])) for first, end in ranges]
        singly: Runs[str] = Runs(list(page.runs))
        for part in parts:
            singly.replace(*part)
        page.replace_each(parts)
        assert page.runs == singly.runs


def test_runs_marked_at_once_are_those_one_after_the_other() -> None:
    chance = random.Random(6)
    for _ in range(100):
        stores = MemoryKv(), MemoryKv()
        overlays = [Overlay(kv) for kv in stores]
        one, many = (Position(Marks(overlay, b"p"), 0, 0) for overlay in overlays)
        for _ in range(4):
            runs = [(one.floor + first, one.floor + end) for first, end in apart(chance, 3 * SEGMENT_BITS)]
            one.mark_runs(runs)
            for first, end in runs:
                many.mark(first, end)
            assert (one.floor, one.above) == (many.floor, many.above)
            for kv, overlay in zip(stores, overlays, strict=True):
                kv.write(overlay)
            assert stores[0].families == stores[1].families


def test_a_batch_is_free_when_its_last_unacked_member_is_visible() -> None:
    chance = random.Random(7)
    for _ in range(30):
        info = OrderInfo(Overlay(MemoryKv()), b"lane")
        visible = {
            page * PAGE_OFFSETS + PAGE_OFFSETS - 1 - page % 2: 10_000 for page in range(0, 60, chance.randrange(1, 4))
        }
        batch = [(offset, offset + 1, Member(True)) for offset in visible]
        info.begin(batch, epoch=1, now_ms=0, invisible_time_ms=10_000)
        while visible:
            offset = chance.choice(list(visible))
            _, member = info.at(offset, offset + 1)
            assert member is not None
            if chance.random() < 0.5:
                del visible[offset]
                info.replace(offset, offset + 1, member, msgspec.structs.replace(member, acked=True))
                assert info.head.next_offset == min(visible, default=info.head.end)
            else:
                visible[offset] = chance.randrange(1, 50_000)
                changed = msgspec.structs.replace(member, next_visible_ms=visible[offset])
                info.replace(offset, offset + 1, member, changed)
            assert info.latest_visible_ms() == max(visible.values(), default=0)


def apart(chance: random.Random, span: int) -> list[tuple[int, int]]:
    """Half-open runs below `span`, in order, none touching the next."""
    cuts = sorted(chance.sample(range(span), 2 * chance.randrange(1, 9)))
    return list(zip(cuts[::2], cuts[1::2], strict=True))
