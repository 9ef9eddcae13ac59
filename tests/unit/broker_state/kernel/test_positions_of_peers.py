"""Failures of positions in other brokers, replayed here: each test is named after the failure.

A test drives a position alone if its storage failed there, and the kernel if consumers noticed. `restart` drops all
that is not in the store, as a kill between two micro-batches does.
"""

from __future__ import annotations

import random

import pytest

from broker_state.store.marks import Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.position import Position
from broker_state.store.segment import FULL, SEGMENT_BITS
from popstream.wire.command import Ack, AckEntry, Dispatch, HandleRef, Policy, WrittenRange
from popstream.wire.limits import OFFSET_MAX
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab, ranges_of

LONGEST_VALUE = 513
MINUTE_MS = 60_000


class Alone:
    """A position in a store of its own."""

    def __init__(self) -> None:
        self.kv = MemoryKv()
        self.kv.families[STATE] = {}
        self.overlay = Overlay(self.kv)
        self.marks = Marks(self.overlay, b"p")
        self.position = Position(self.marks, 0, 0)

    def write(self) -> int:
        """How many keys it takes to write what changed."""
        changes = len(list(self.overlay.changes()))
        self.kv.write(self.overlay)
        return changes

    def restart(self) -> None:
        self.write()
        self.overlay = Overlay(self.kv)
        self.marks = Marks(self.overlay, b"p")
        self.position = Position(self.marks, self.position.floor, self.position.above)

    @property
    def sizes(self) -> list[int]:
        return [len(value) for value in self.kv.families[STATE].values()]


def restart(lab: LaneLab) -> None:
    lab.overlay = Overlay(lab.kv)


def ack_every_second(lab: LaneLab, handle: str | None, first: int, end: int) -> None:
    """Ack each message alone, so that the lane has as many ranges as acks."""
    assert handle is not None
    ranges = [(offset, offset) for offset in range(first + 1, end, 2)]
    answer = lab.do(Ack(**QUEUE, handles=[HandleRef(GROUP, handle)], entries=[AckEntry(0, ranges)]))
    assert answer is not None
    assert {run.reason for run in answer.runs} == {"OK"}


# Pulsar


def test_pulsar_25540_no_ack_is_dropped_however_many_ranges_there_are() -> None:
    """10,000 ranges are kept there and the rest is silently dropped; after a restart those messages come again."""
    lab = LaneLab(written=24_000)
    for first in range(0, 24_000, 8_000):
        ack_every_second(lab, lab.pop(8_000).handle, first, first + 8_000)
    assert lab.lane().acked.above == 12_000
    restart(lab)
    lab.tick(MINUTE_MS)
    again = [message for _ in range(2) for message in ranges_of(lab.pop(10_000))]
    assert again == [(offset, offset, 2) for offset in range(0, 24_000, 2)]


def test_pulsar_25985_no_backlog_is_too_long_to_be_written() -> None:
    """30,000,000 entries are a frame of 5 MB there, and nothing can be persisted from then on."""
    alone = Alone()
    segments = 40_000_000 // SEGMENT_BITS
    alone.position.mark(1, 2)
    for segment_no in range(1, segments):
        alone.marks.begin(segment_no, FULL // 3)  # every second offset acked: nothing that could be compressed
    alone.position.above += (segments - 1) * SEGMENT_BITS // 2
    alone.restart()
    assert max(alone.sizes) == LONGEST_VALUE
    assert alone.position.mark(39_000_001, 39_000_002) == 1
    assert alone.write() == 1, "one more ack is one value, not all of them"
    alone.restart()
    assert alone.position.contains(39_000_001)


def test_pulsar_25985_what_is_stored_follows_the_gaps_and_not_the_backlog() -> None:
    alone = Alone()
    alone.position.mark(1, 30_000_000)
    alone.write()
    maps = 30_000_000 // SEGMENT_BITS**2 + 1
    assert len(alone.sizes) == maps + 2, "and the first segment and the last are not full"
    assert sum(alone.sizes) <= 4 * len(alone.sizes)
    alone.position.mark(0, 1)
    alone.write()
    assert alone.sizes == []


def test_pulsar_26266_only_what_changed_is_written() -> None:
    """Each time a cursor is persisted there, all of it is."""
    alone = Alone()
    alone.position.mark(1, 1_000_000)
    alone.restart()
    chance = random.Random(1)
    acked = [1_000_000 + chance.randrange(8_192) for _ in range(2_000)]
    for offset in acked:
        alone.position.mark(offset, offset + 1)
    assert alone.write() == len({offset // SEGMENT_BITS for offset in acked}) == 3


def test_pulsar_22709_what_is_acked_stays_acked_and_what_is_not_comes_again() -> None:
    """Acks are lost there when broker and bookie restart, and messages with them; so here after every operation."""
    lab = LaneLab(written=200)
    chance = random.Random(2)
    done: set[int] = set()
    attempts = [0] * 200
    while len(done) < 200:
        restart(lab)
        answer = lab.pop(32, invisible_ms=1_000)
        for first, last, attempt in ranges_of(answer):
            for offset in range(first, last + 1):
                assert offset not in done
                attempts[offset] += 1
                assert attempt == attempts[offset]
                if chance.random() < 0.5:
                    restart(lab)
                    assert lab.ack(answer.handle, (offset, offset)) == [(offset, offset, "OK")]
                    done.add(offset)
        restart(lab)
        assert lab.commit_offset == min(set(range(201)) - done)
        lab.tick(1_000)
    restart(lab)
    assert (lab.commit_offset, lab.lane().acked.above, lab.pop().messages) == (200, 0, [])


# Kafka share groups


def test_kafka_23074_a_late_or_repeated_write_never_takes_a_position_back() -> None:
    """The start offset was taken as it came there, and out of order it fell: records were delivered again."""
    lab = LaneLab()
    chance = random.Random(3)
    builders = [(first, first + 6) for first in range(0, 700, 7)] * 3
    chance.shuffle(builders)
    positions = [0]
    seen: set[int] = set()
    for first, last in builders:
        answer = lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(first, last)]))
        assert answer is not None
        seen.update(range(first, last + 1))
        assert answer.commit_position == min(set(range(701)) - seen)
        positions.append(answer.commit_position)
        restart(lab)
    assert positions == sorted(positions)
    assert positions[-1] == 700


def test_kafka_23074_an_ack_from_before_the_floor_changes_nothing() -> None:
    lab = LaneLab(written=10)
    handle = lab.pop(10).handle
    lab.ack(handle, (0, 6))
    restart(lab)
    for late in ((3, 3), (0, 6), (0, 0)):
        lab.ack(handle, late)
        assert not lab.last.applied
        assert lab.commit_offset == 7


# NATS


def test_nats_5008_what_has_left_the_log_does_not_hold_the_floor() -> None:
    """Also when it is the end of what was handed out, and when it was leased at the time."""
    lab = LaneLab(written=8)
    handle = lab.pop(8).handle
    lab.ack(handle, (0, 1), (4, 5))
    lab.do(Dispatch(**QUEUE, skip=[(2, 3)]))  # compacted, while leased
    lab.do(Dispatch(**QUEUE, skip=[(8, 8)]))  # a control record at the end
    lab.ack(handle, (6, 7))
    restart(lab)
    assert lab.commit_offset == 9
    assert lab.lane().record.leased == 0


def test_nats_2083_a_lane_at_its_limit_goes_on_when_its_messages_expire_from_the_log() -> None:
    """They count as pending for ever there, and nothing is delivered any more."""
    lab = LaneLab(written=20)
    lab.do(Policy(**QUEUE, group=GROUP, in_flight_max=10))
    lab.pop(10, invisible_ms=43_200_000)
    assert lab.pop(10).messages == []
    lab.do(Dispatch(**QUEUE, skip=[(0, 9)]))
    restart(lab)
    assert ranges_of(lab.pop(10)) == [(10, 19, 1)]


def test_nats_4427_dead_letters_and_restarts_leave_no_more_in_flight_than_allowed() -> None:
    """At the delivery limit the count of pending messages grew past its maximum there, and blocked the consumer."""
    lab = LaneLab(written=12)
    lab.do(Policy(**QUEUE, group=GROUP, in_flight_max=2, max_attempts=2))
    seen = []
    for _ in range(12):
        restart(lab)
        seen += ranges_of(lab.pop(10))
        assert lab.lane().record.leased == 2
        restart(lab)
        lab.tick(10_000)
    assert seen == [(first, first + 1, attempt) for first in range(0, 12, 2) for attempt in (1, 2)]
    record = lab.lane().record
    assert (lab.commit_offset, record.dead_lettered, record.leased, record.available) == (12, 12, 0, 0)


def test_nats_6093_messages_that_back_off_take_no_place_in_flight() -> None:
    """A delayed redelivery stayed pending there: with as many as the limit allows, nothing else was delivered."""
    lab = LaneLab(written=5)
    lab.do(Policy(**QUEUE, group=GROUP, in_flight_max=2, back_off_ms=[MINUTE_MS]))
    answer = lab.pop(2)
    lab.change(answer.handle, 0, (0, 1))
    restart(lab)
    following = lab.pop(2)
    assert ranges_of(following) == [(2, 3, 1)]
    lab.ack(following.handle, (2, 3))
    lab.tick(MINUTE_MS)
    assert ranges_of(lab.pop(2)) == [(0, 1, 2)]


# Parallel Consumer


def test_parallel_consumer_647_no_size_is_too_large_and_no_pop_waits_for_it_to_shrink() -> None:
    """Beyond 4,096 bytes the acks are left out of the commit there, and before that no more records are taken."""
    lab = LaneLab(written=60_000)
    for first in range(0, 60_000, 10_000):
        answer = lab.pop(10_000)
        assert ranges_of(answer) == [(first, first + 9_999, 1)]
        ack_every_second(lab, answer.handle, first, first + 10_000)
    prefix = lab.lane().prefix + b"a"
    sizes = [len(value) for key, value in lab.kv.families[STATE].items() if key.startswith(prefix)]
    assert sum(sizes) > 4_096
    assert max(sizes) <= LONGEST_VALUE
    restart(lab)
    assert lab.lane().acked.unmarked(0, 60_000) == [(offset, offset + 1) for offset in range(0, 60_000, 2)]


def test_parallel_consumer_647_one_irregular_stretch_does_not_spoil_the_form_of_the_rest() -> None:
    """One encoding is chosen there for everything."""
    alone = Alone()
    alone.position.mark(1, 400_000)
    for offset in random.Random(4).sample(range(400_000, 404_000), 2_000):
        alone.position.mark(offset, offset + 1)
    alone.position.mark(404_000, 1_000_000)
    alone.write()
    *others, one, two = sorted(alone.sizes)
    assert (one, two) == (LONGEST_VALUE, LONGEST_VALUE)
    assert max(others) <= 6


@pytest.mark.parametrize("far", [32_768, 1 << 31, OFFSET_MAX])
def test_parallel_consumer_35_no_distance_is_too_long(far: int) -> None:
    """A bit set of more than 32,767 bits could not be encoded there."""
    alone = Alone()
    assert alone.position.mark(far, far + 1) == 1
    alone.restart()
    assert len(alone.sizes) == 1
    assert (alone.position.floor, alone.position.above) == (0, 1)
    assert alone.position.contains(far)
    assert not alone.position.contains(far - 1)


def test_parallel_consumer_832_a_straggler_costs_a_byte_for_4096_offsets_and_then_nothing() -> None:
    """Records kept coming in there until memory was full."""
    alone = Alone()
    for first in range(1, 2_000_000, 32):
        alone.position.mark(first, first + 32)
        if first % 160_000 == 1:
            alone.write()
    alone.write()
    assert sum(alone.sizes) <= 2_000_000 // SEGMENT_BITS + 20
    alone.position.mark(0, 1)
    alone.restart()
    assert alone.sizes == []


# RocketMQ, Quix


def test_rocketmq_9112_in_order_there_is_nothing_to_delete() -> None:
    """Rows put and deleted again leave tombstones, and a seek over them is slow."""
    alone = Alone()
    for first in range(0, 1_000_000, 1_000):
        alone.position.mark(first, first + 1_000)
        assert alone.write() == 0


def test_rocketmq_order_info_knows_more_than_64_messages() -> None:
    """One long is the set of acked messages there."""
    lab = LaneLab(written=300)
    handle = lab.pop(200, order=True).handle
    lab.ack(handle, (64, 199))
    restart(lab)
    assert lab.commit_offset == 0
    lab.ack(handle, (0, 63))
    assert lab.commit_offset == 200


def test_quix_1017_a_removed_control_record_at_the_end_is_passed() -> None:
    """Recovery waited there for an offset that no record has."""
    lab = LaneLab(written=3)
    lab.ack(lab.pop(3).handle, (0, 2))
    answer = lab.do(Dispatch(**QUEUE, skip=[(3, 3)]))
    assert answer is not None
    assert answer.commit_position == 4
    lab.pop(1)
    restart(lab)
    assert lab.commit_offset == 4
