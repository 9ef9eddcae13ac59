"""Claim: a consume queue answers as a plain list of its units does, and its bytes follow from them alone.

Method: units with holes, batches, keys and times that run backwards are appended in random pieces, some of them again;
queues are truncated, rebuilt and lose their start; every lookup is compared with the list.
"""

from __future__ import annotations

import os
import random
from itertools import islice, pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_state.consume_queue import (
    BLOCK_OFFSETS,
    Absence,
    Block,
    ContradictionError,
    Scan,
    Unit,
    Units,
    encode_block,
    first_unit_since,
    holes,
    last_unit_until,
    merge,
    message_base_at,
    message_count,
    unit_at_or_after,
    unit_of_message,
    units_from,
    units_with_key,
)
from broker_state.store.value_format import CorruptValueError
from popstream.wire.command import QueueType
from tests.unit.broker_state.consume_queue.queue_lab import QueueLab

QUEUE_TYPES: tuple[QueueType, ...] = ("simple", "batch", "sparse")
KEYS = range(1, 8)
SEEDS = st.integers(0, 2**32)
few = settings(max_examples=int(os.environ.get("TEST_UNIT_HISTORIES", "20")), deadline=None)


def written(
    chance: random.Random, queue_type: QueueType, start: int, end: int, anchor: int, far: int = 0
) -> list[Unit]:
    """Units of [start, end), sparse in one stretch and dense in the next, numbered from the anchor."""
    units: list[Unit] = []
    at, base, now_ms = start, anchor, 10_000
    delayed, named = chance.choice([0, 0, 0.01, 0.9]), chance.choice([0, 0, 0.01, 0.9])
    while at < end and len(units) < 6_000:
        stretch_end = min(end, at + chance.choice([1, 50, 700, 3_000]))
        share = chance.choice([0.0, 0.01, 0.5, 1.0, 1.0])
        for queue_offset in range(at, stretch_end):
            if chance.random() >= share:
                continue
            count = chance.choice([1, 1, 10, 300]) if queue_type == "batch" else 1
            now_ms = max(0, now_ms + chance.choice([0, 0, 1, 3, -2, 40]))
            unit = Unit(
                queue_offset=queue_offset,
                size_bytes=chance.choice([0, 100, 70_000]),
                store_time_ms=now_ms,
                message_base=base if queue_type == "batch" else queue_offset,
                inner_count=count,
                tag_hash=chance.choice([0, 0, 2**64 - 1]),
                key_hash=chance.choice([0, *KEYS]) << 61 | 5 if chance.random() < 0.05 else 0,
                more_key_hashes=tuple(chance.choices(KEYS, k=chance.randrange(3))) if count > 1 else (),
                is_readable=count > 1 or chance.random() > 0.01,
                deliver_at_ms=now_ms + 7 if chance.random() < delayed else 0,
                dedup_high=5 if (has_id := chance.random() < named) else 0,
                dedup_low=2**64 - 1 if has_id else 0,
                duplicate_of=chance.choice([-1, start]) if has_id and queue_offset > start else -1,
            )
            base += count
            units.append(unit)
        at = stretch_end + chance.choice([0, 0, 0, 100, far, 32 * far])
    return units


class Listed:
    """A queue and the plain list of what was written to it."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.queue_type = chance.choice(QUEUE_TYPES)
        self.start = chance.choice([0, 1, BLOCK_OFFSETS, 64 * BLOCK_OFFSETS - 1_500, 10**12 + 77])
        self.end = self.start + chance.choice([1, 900, 5_000, 20_000, 30_000_000])
        far = 200_000 if self.end - self.start > 20_000 else 0
        self.anchor = chance.choice([0, 1_000]) if self.queue_type == "batch" else self.start
        self.units = written(chance, self.queue_type, self.start, self.end, self.anchor, far)
        self.lab = self.build(self.start, self.anchor)

    def build(self, start: int, anchor: int, *, steps: int = 8) -> QueueLab:
        lab = QueueLab(self.queue_type, start, anchor)
        cuts = sorted(self.chance.choices(range(start, self.end + 1), k=self.chance.randrange(steps)))
        for cut in [*cuts, self.end]:
            # Now and then a stretch begins before the end of the queue: it is scanned again.
            first = max(start, lab.queue.end_offset - self.chance.choice([0, 0, 1, 1_500]))
            lab.append([unit for unit in self.units if first <= unit.queue_offset < cut], max(cut, first), first)
        return lab

    def offsets(self) -> list[int]:
        chance, units = self.chance, self.units
        around = [self.start - 1, self.start, self.end - 1, self.end, self.end + 5]
        near = [unit.queue_offset + chance.choice([-1, 0, 1]) for unit in chance.choices(units, k=8)] if units else []
        return [*around, *near, *chance.choices(range(self.start, self.end), k=3)]


@few
@given(SEEDS)
def test_lookups_agree_with_a_plain_list(seed: int) -> None:
    listed = Listed(seed)
    chance, units, queue, get = listed.chance, listed.units, listed.lab.queue, listed.lab.get
    assert list(units_from(queue, get, 0)) == units
    assert (queue.unit_count, queue.message_count) == (len(units), sum(unit.inner_count for unit in units))
    for offset in listed.offsets():
        after = next((unit for unit in units if unit.queue_offset >= offset), None)
        assert unit_at_or_after(queue, get, offset) == (after or Absence.BEYOND_END)
        if queue.queue_type == "batch":
            assert message_base_at(queue, get, offset) == (after.message_base if after else queue.end_message_base)
        other = chance.choice(listed.offsets())
        between = [unit for unit in units if offset <= unit.queue_offset < other]
        assert message_count(queue, get, offset, other) == sum(unit.inner_count for unit in between)
        edges = [max(offset, listed.start) - 1, *(unit.queue_offset for unit in between), min(other, listed.end)]
        gaps = [(before + 1, after) for before, after in pairwise(edges) if before + 1 < after]
        assert list(holes(queue, get, offset, other)) == gaps


@few
@given(SEEDS)
def test_searches_by_message_time_and_key_agree_with_a_plain_list(seed: int) -> None:
    listed = Listed(seed)
    chance, units, queue, get = listed.chance, listed.units, listed.lab.queue, listed.lab.get
    messages = [queue.start_message_base - 1, queue.end_message_base - 1, queue.end_message_base]
    for unit in chance.choices(units, k=10) if units else []:
        messages += [unit.message_base - 1, unit.message_base, unit.message_end - 1, unit.message_end]
    for message in messages:
        found = next((unit for unit in units if unit.message_base <= message < unit.message_end), None)
        absent = Absence.BELOW_START if message < queue.start_message_base else Absence.HOLE
        absent = Absence.BEYOND_END if message >= queue.end_message_base else absent
        assert unit_of_message(queue, get, message) == (found or absent)
    times = [unit.store_time_ms for unit in units] or [0]
    for time_ms in [min(times) - 1, max(times) + 1, *chance.choices(range(min(times), max(times) + 1), k=20)]:
        lower = next((unit for unit in units if unit.store_time_ms >= time_ms), None)
        upper = next((unit for unit in reversed(units) if unit.store_time_ms <= time_ms), None)
        assert first_unit_since(queue, get, time_ms) == lower
        assert last_unit_until(queue, get, time_ms) == upper
    for key in {key for unit in units for key in (unit.key_hash, *unit.more_key_hashes)} | {999}:
        first, end = sorted(chance.choices(listed.offsets(), k=2))
        have = [unit for unit in reversed(units) if key and key in (unit.key_hash, *unit.more_key_hashes)]
        within = [unit for unit in have if first <= unit.queue_offset < end]
        assert list(islice(units_with_key(queue, get, key), 7)) == have[:7]
        assert list(units_with_key(queue, get, key, first, end)) == within


@few
@given(SEEDS)
def test_bytes_follow_from_the_units_alone(seed: int) -> None:
    listed = Listed(seed)
    lab, chance = listed.lab, listed.chance
    once = listed.build(listed.start, listed.anchor, steps=1)
    assert (lab.values, lab.queue) == (once.values, once.queue)
    first, end = sorted(chance.choices(range(listed.start, listed.end + 1), k=2))
    lab.scan([unit for unit in listed.units if first <= unit.queue_offset < end], end, first)
    assert (lab.values, lab.queue) == (once.values, once.queue)
    cut = chance.choice(listed.offsets())
    lab.truncate(cut)
    assert lab.queue.end_offset == min(max(cut, listed.start), listed.end)
    kept = [unit for unit in listed.units if unit.queue_offset < cut]
    assert list(units_from(lab.queue, lab.get, 0)) == kept
    lab.scan([unit for unit in listed.units if unit.queue_offset >= cut], listed.end)
    assert (lab.values, lab.queue) == (once.values, once.queue)


@few
@given(SEEDS)
def test_a_queue_that_lost_its_start_is_one_built_from_its_anchor(seed: int) -> None:
    listed = Listed(seed)
    lab = listed.lab
    for start in sorted(listed.chance.choices(listed.offsets(), k=3)):
        lab.move_start(start)
        kept = [unit for unit in listed.units if unit.queue_offset >= start]
        assert list(units_from(lab.queue, lab.get, 0)) == kept
        assert lab.queue.start_offset == max(start, listed.start)
        if start >= listed.end:
            assert not lab.values
            break
        rebuilt = QueueLab(listed.queue_type, lab.queue.start_offset, lab.queue.start_message_base)
        rebuilt.scan(kept, listed.end)
        assert (lab.values, lab.queue) == (rebuilt.values, rebuilt.queue)


@few
@given(SEEDS)
def test_merging_is_idempotent_and_refuses_what_contradicts(seed: int) -> None:
    chance = random.Random(seed)
    units = written(chance, "batch", 2048, 3072, 50)
    whole = Scan(2048, 3072, Units.of(units))
    cuts = sorted(chance.choices(range(2048, 3073), k=4))
    left, right = whole.cut(2048, cuts[2]), whole.cut(cuts[1], 3072)
    assert merge(left, right) == merge(right, left) == whole
    assert merge(whole, whole.cut(cuts[0], cuts[3])) == whole
    if not units:
        return
    block = Block(2, encode_block(whole))
    assert block.scan == whole
    assert [block.unit(row) for row in range(block.unit_count)] == units
    other = units[:]
    at = chance.randrange(len(units))
    other[at : at + 1] = chance.choice([[], [msgspec.structs.replace(units[at], size_bytes=12)]])
    with pytest.raises(ContradictionError):
        merge(whole, Scan(2048, 3072, Units.of(other)))


@few
@given(SEEDS, st.data())
def test_damaged_bytes_are_found_out(seed: int, data: st.DataObject) -> None:
    units = written(random.Random(seed), "batch", 0, 1024, 0)
    if not units:
        return
    value = bytearray(encode_block(Scan(0, 1024, Units.of(units))))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptValueError):
        Block(0, bytes(value))
    with pytest.raises(CorruptValueError):
        Block(0, bytes(value[:at]))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50), st.integers(-(2**63), 2**63 - 1))
def test_columns_hold_numbers_of_any_size(hashes: list[int], time_ms: int) -> None:
    count = len(hashes)
    units = Units.simple(np.arange(count), np.full(count, 9), np.full(count, time_ms))
    unit = Unit(queue_offset=count, size_bytes=2**40, store_time_ms=-(time_ms + 1), message_base=0, tag_hash=hashes[0])
    scan = Scan(0, 1024, Units.joined([units, Units.of([unit])]))
    block = Block(0, encode_block(scan))
    assert block.scan == scan
    assert block.unit(count) == unit


PLAIN_BLOCK = (
    "010300015a0000000000000001050000000000000000000000000000000000010000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000010001020000dc014c" + 127 * "00" + "a8ecbf0b5f7708b6"
)
"""As versions without times of delivery wrote it."""


def test_blocks_without_delays_are_as_before_there_were_any() -> None:
    units = Units.simple(np.array([1026, 1027, 1030]), np.array([90, 90, 91]), np.array([5, 6, 7]))
    plain = encode_block(Scan(1024, 1500, units))
    assert plain == bytes.fromhex(PLAIN_BLOCK)
    delayed = Units.of([msgspec.structs.replace(units.unit(0), deliver_at_ms=9), units.unit(1), units.unit(2)])
    value = encode_block(Scan(1024, 1500, delayed))
    assert (plain[0], value[0]) == (1, 2)
    assert [unit.deliver_at_ms for unit in Block(1, value).scan.units] == [9, 0, 0]
