"""Lookups in cases where RocketMQ's fail, and the values that a lookup reads."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from broker_state.consume_queue import (
    BLOCK_OFFSETS,
    FILTER,
    Absence,
    ConsumeQueue,
    Unit,
    Units,
    first_unit_since,
    holes,
    last_unit_until,
    message_base_at,
    message_count,
    unit_at_or_after,
    unit_of_message,
    units_from,
    units_with_key,
)
from tests.unit.broker_state.consume_queue.queue_lab import QueueLab, unit

FAR = 10 * BLOCK_OFFSETS


def with_times(times_ms: list[int], *, apart: int = 1) -> QueueLab:
    lab = QueueLab("simple")
    lab.scan([unit(apart * at, store_time_ms=time_ms) for at, time_ms in enumerate(times_ms)], apart * len(times_ms))
    return lab


def time_of(found: Unit | None) -> int | None:
    return None if found is None else found.store_time_ms


@pytest.mark.parametrize("apart", [1, FAR], ids=["in one block", "each in its own"])
def test_upper_between_two_times_is_the_left_one(apart: int) -> None:
    """BatchConsumeQueue.binarySearchRight answers -1."""
    for times_ms in ([1, 3, 5, 7, 9], [1, 3, 3, 3]):
        lab = with_times(times_ms, apart=apart)
        for time_ms in range(11):
            expected = max((known for known in times_ms if known <= time_ms), default=None)
            assert time_of(last_unit_until(lab.queue, lab.get, time_ms)) == expected


@pytest.mark.parametrize("apart", [1, FAR], ids=["in one block", "each in its own"])
def test_among_equal_times_lower_is_the_first_and_upper_the_last(apart: int) -> None:
    """Files of RocketMQ with one first time overwrite each other in its cache."""
    lab = with_times([1, 3, 3, 3, 3, 5], apart=apart)
    lower, upper = first_unit_since(lab.queue, lab.get, 3), last_unit_until(lab.queue, lab.get, 3)
    assert lower is not None
    assert upper is not None
    assert (lower.queue_offset, upper.queue_offset) == (apart, 4 * apart)


@pytest.mark.parametrize("apart", [1, FAR], ids=["in one block", "each in its own"])
def test_times_that_run_backwards(apart: int) -> None:
    lab = with_times([10, 50, 20, 30, 60, 40], apart=apart)
    lower, upper = first_unit_since(lab.queue, lab.get, 25), last_unit_until(lab.queue, lab.get, 25)
    assert lower is not None
    assert upper is not None
    assert (lower.store_time_ms, upper.store_time_ms) == (50, 20)
    units = list(units_from(lab.queue, lab.get, 0))
    assert all(each.store_time_ms < 25 for each in units if each.queue_offset < lower.queue_offset)
    assert all(each.store_time_ms > 25 for each in units if each.queue_offset > upper.queue_offset)


def test_lower_beyond_the_last_is_none_and_not_the_last() -> None:
    """BatchConsumeQueue answers the last batch, whose time is earlier than asked for."""
    lab = with_times([1, 2, 3])
    assert first_unit_since(lab.queue, lab.get, 4) is None
    assert last_unit_until(lab.queue, lab.get, 0) is None


def test_an_empty_queue_answers() -> None:
    """BatchConsumeQueue throws a NullPointerException."""
    for lab in (QueueLab("batch", 40, 7), QueueLab("sparse", 40), QueueLab("simple", 40)):
        queue, get = lab.queue, lab.get
        base = 7 if queue.queue_type == "batch" else 40
        assert unit_at_or_after(queue, get, 0) == Absence.BEYOND_END
        assert [unit_of_message(queue, get, at) for at in (-1, base - 1, base)] == [
            "BELOW_START",
            "BELOW_START",
            "BEYOND_END",
        ]
        assert first_unit_since(queue, get, -1) is last_unit_until(queue, get, 1 << 60) is None
        assert not [*units_with_key(queue, get, 5), *holes(queue, get, 0, 100)]
        assert (message_count(queue, get, 0, 100), message_base_at(queue, get, 40)) == (0, base)
        lab.truncate(0)
        lab.move_start(30)
        assert (lab.queue, lab.values) == (queue, {})


def test_a_queue_of_holes_alone() -> None:
    lab = QueueLab("batch", 100, 7)
    lab.scan([], 5_000_000)
    assert lab.values == {}
    assert unit_at_or_after(lab.queue, lab.get, 100) == Absence.BEYOND_END
    assert list(holes(lab.queue, lab.get, 0, 10**9)) == [(100, 5_000_000)]
    assert (lab.queue.end_offset, lab.queue.end_message_base) == (5_000_000, 7)
    lab.move_start(6_000_000)
    assert (lab.queue.start_offset, lab.queue.end_offset, lab.queue.end_message_base) == (6_000_000, 6_000_000, 7)


def test_truncation_ends_exactly_at_the_cut() -> None:
    """RocksDBConsumeQueueStore stops its search at the first hit: 10 records, the first lost one 7 -> 4 are left."""
    for count in range(1, 33):
        for cut in range(count + 1):
            lab = QueueLab("batch")
            lab.scan([unit(at, inner_count=3) for at in range(count)], count)
            lab.truncate(cut)
            assert (lab.queue.end_offset, lab.queue.end_message_base, lab.queue.unit_count) == (cut, 3 * cut, cut)
            assert len(list(units_from(lab.queue, lab.get, 0))) == cut


def test_the_anchor_moves_with_the_start() -> None:
    lab = QueueLab("batch", anchor=1_000)
    lab.scan([unit(at, inner_count=10) for at in range(5_000)], 5_000)
    lab.move_start(3_000)
    queue, get = lab.queue, lab.get
    assert (queue.start_message_base, queue.message_count) == (31_000, 20_000)
    assert unit_of_message(queue, get, 30_999) == Absence.BELOW_START
    batch = unit_of_message(queue, get, 31_005)
    assert isinstance(batch, Unit)
    assert (batch.queue_offset, batch.message_base) == (3_000, 31_000)
    assert unit_at_or_after(queue, get, 0) == batch


def test_what_a_search_reads_in_a_long_queue() -> None:
    count = 1_000_000
    offsets = np.arange(count)
    lab = QueueLab("simple")
    lab.append(Units.simple(offsets, offsets % 100, offsets // 50))
    queue, get = lab.queue, lab.get
    assert queue.top_level == 2
    assert max(len(value) for place, value in lab.values.items() if 0 < place.kind < FILTER) < 4_096

    def reads(search: object) -> int:
        assert search is not None
        before, lab.gets = lab.gets, 0
        return before

    lab.gets = 0
    assert reads(unit_at_or_after(queue, get, 777_777)) == queue.top_level + 1
    assert reads(first_unit_since(queue, get, 12_345)) == queue.top_level + 1
    assert reads(last_unit_until(queue, get, 12_345)) == queue.top_level + 1
    assert reads(unit_of_message(queue, get, 777_777)) == queue.top_level + 1
    assert reads(message_count(queue, get, 1_234, 987_654)) <= 2 * (queue.top_level + 1)
    assert reads(list(holes(queue, get, 0, count))) <= queue.top_level


def test_a_key_is_looked_for_in_blocks_that_may_have_it() -> None:
    blocks = 200
    chance = np.random.default_rng(7)
    hashes = chance.integers(1, 1 << 63, blocks * BLOCK_OFFSETS, dtype=np.uint64)
    key = int(hashes[5])
    lab = QueueLab("simple")
    wanted = {5, 70_000, 150_001}
    lab.scan(
        [unit(at, key_hash=key if at in wanted else int(known)) for at, known in enumerate(hashes.tolist())],
        len(hashes),
    )
    lab.gets = 0
    found = [each.queue_offset for each in units_with_key(lab.queue, lab.get, key)]
    assert found == sorted(wanted, reverse=True)
    pages = 1 + len(lab.queue.numbers(1))
    assert lab.gets <= pages + blocks + len(wanted) + blocks // 20
    lab.gets = 0
    assert [each.queue_offset for each in islice(units_with_key(lab.queue, lab.get, key), 1)] == [150_001]
    assert lab.gets < pages + blocks // 3


def test_keys_inside_a_batch_are_found() -> None:
    lab = QueueLab("batch")
    units = [unit(at, inner_count=3, key_hash=at + 1, more_key_hashes=[100 + at, 200, 300 + at]) for at in range(3_000)]
    lab.scan(units, 3_000)
    for at in (0, 1_023, 1_024, 2_999):
        for key in (at + 1, 100 + at):
            assert at in [each.queue_offset for each in units_with_key(lab.queue, lab.get, key)]
    assert [each.queue_offset for each in islice(units_with_key(lab.queue, lab.get, 200), 3)] == [2_999, 2_998, 2_997]
    assert list(units_with_key(lab.queue, lab.get, 0)) == []


def test_a_record_of_a_queue_survives_its_bytes() -> None:
    queue = ConsumeQueue("id", "batch", 1, 2, 3, 4, 5, 6)
    assert ConsumeQueue.decode(queue.encode()) == queue
