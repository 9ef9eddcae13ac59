"""Claim: a `Position` is a plain set of offsets, whatever is marked in whatever order and wherever the store is opened
anew; what is stored of it depends on the set alone; a segment takes the smallest of its forms and gives its bits back.

Method: Hypothesis draws histories of marks over a few segments from the patterns that broke others (random, striped,
stragglers, pops of 32, mixtures), with writes and reopenings between them. A set of ints is the model; the bytes
that must be in the store are computed from it, and the changes between two writes are held against what was marked.
"""

from __future__ import annotations

import os
import random
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_state.store.marks import Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.position import Position
from broker_state.store.segment import (
    FULL,
    SEGMENT_BITS,
    SEGMENT_SHIFT,
    bit_runs,
    decode_segment,
    encode_segment,
    mask,
    ones_from,
)
from broker_state.store.value_format import CorruptValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SPAN = 3 * SEGMENT_BITS
PREFIX = b"p"
LISTED_MAX = 256
"""Bits or edges that a form of a segment lists."""
Run = tuple[int, int]

STARTS = st.sampled_from(
    [0, 1, 32, SEGMENT_BITS - 1, SEGMENT_BITS, SEGMENT_BITS + 1, 10 * SEGMENT_BITS + 77, (SEGMENT_BITS - 1) ** 2]
)
HISTORIES = settings(max_examples=int(os.environ.get("TEST_POSITION_HISTORIES", "20")), deadline=None)


@st.composite
def scattered(draw: st.DrawFn) -> list[Run]:
    """Runs of any length anywhere, overlapping as they like."""
    first = st.integers(0, SPAN - 1)
    length = st.one_of(st.just(1), st.integers(1, 40), st.integers(1, SPAN))
    return [(at, min(SPAN, at + count)) for at, count in draw(st.lists(st.tuples(first, length), max_size=30))]


@st.composite
def striped(draw: st.DrawFn) -> list[Run]:
    """As many marked as not, over and over."""
    width = draw(st.sampled_from([1, 2, 3, 30, 32, 100, 1000, 4096]))
    first = draw(st.integers(0, SPAN // 2))
    count = draw(st.integers(1, 60))
    return [(at, min(SPAN, at + width)) for at in range(first, SPAN, 2 * width)][:count]


@st.composite
def all_but_stragglers(draw: st.DrawFn) -> list[Run]:
    """Everything but a few offsets."""
    return runs_of(set(range(SPAN)) - draw(st.sets(st.integers(0, SPAN - 1), min_size=1, max_size=20)))


@st.composite
def pops_of_32(draw: st.DrawFn) -> list[Run]:
    """Some of the pops that follow each other from some offset on."""
    first = draw(st.integers(0, 40))
    chosen = draw(st.sets(st.integers(0, (SPAN - first) // 32 - 1), max_size=60))
    return [(first + 32 * at, first + 32 * at + 32) for at in sorted(chosen)]


PATTERNS = {
    "random": scattered(),
    "striped": striped(),
    "stragglers": all_but_stragglers(),
    "pops of 32": pops_of_32(),
}
MIXTURES = st.lists(st.one_of(*PATTERNS.values()), min_size=1, max_size=3).map(lambda parts: [*chain(*parts)])


class Twin:
    """A position that starts at `start`, its store, and the set that it should be."""

    def __init__(self, start: int) -> None:
        self.kv = MemoryKv()
        self.kv.families[STATE] = {}
        self.overlay = Overlay(self.kv)
        self.position = Position(Marks(self.overlay, PREFIX), start, 0)
        self.plain: set[int] = set()
        self.start = start
        self.floor = start
        self.floor_before = start
        self.fresh: set[int] = set()
        """What was marked since the last write, when the floor was at `floor_before`."""

    def mark(self, first: int, end: int) -> None:
        new = {offset for offset in range(first, end) if offset >= self.start} - self.plain
        assert self.position.mark(first, end) == len(new)
        self._marked(new)

    def mark_runs(self, runs: Sequence[Run]) -> None:
        """Of `runs`, as one record: what lies beyond the floor."""
        left = runs_of({n for first, end in runs for n in range(max(first, self.position.floor), end)})
        new = {n for first, end in left for n in range(first, end)} - self.plain
        self.position.mark_runs(left)
        self._marked(new)

    def _marked(self, new: set[int]) -> None:
        self.plain |= new
        self.fresh |= new
        before = self.floor
        while self.floor in self.plain:
            self.floor += 1
        assert self.position.floor == self.floor >= before
        assert self.position.above == len(self.plain) - (self.floor - self.start)

    def stored(self) -> dict[bytes, bytes]:
        """What must be in the store: the segments with a mark beyond the floor, and that of the floor before them.

        Full ones are bits of their maps.
        """
        beyond = [offset for offset in self.plain if offset > self.floor]
        segments: dict[int, int] = {}
        if beyond and self.floor % SEGMENT_BITS:
            segments[self.floor >> SEGMENT_SHIFT] = (1 << self.floor % SEGMENT_BITS) - 1
        for offset in beyond:
            number = offset >> SEGMENT_SHIFT
            segments[number] = segments.get(number, 0) | 1 << offset % SEGMENT_BITS
        maps: dict[int, int] = {}
        for number in [number for number, bits in segments.items() if bits == FULL]:
            del segments[number]
            maps[number >> SEGMENT_SHIFT] = maps.get(number >> SEGMENT_SHIFT, 0) | 1 << number % SEGMENT_BITS
        return {key_of(number): encode_segment(bits) for number, bits in segments.items()} | {
            map_key_of(number): encode_segment(bits) for number, bits in maps.items()
        }

    def write(self) -> int:
        """The store has exactly these segments, and only dirty ones were written; how many it were."""
        before = dict(self.kv.families[STATE])
        changes = [key for _, key, _ in self.overlay.changes()]
        assert len(changes) == len(set(changes)), "each key once"
        passed = range(self.floor_before >> SEGMENT_SHIFT, (self.floor >> SEGMENT_SHIFT) + 1) if self.fresh else ()
        touched = {*passed, *{n >> SEGMENT_SHIFT for n in self.fresh}}
        maps = {map_key_of(number >> SEGMENT_SHIFT) for number in touched}
        assert set(changes) <= {key_of(number) for number in touched} | maps
        self.kv.write(self.overlay)
        after = self.kv.families[STATE]
        assert after == self.stored()
        assert {key for key in before | after if before.get(key) != after.get(key)} <= set(changes)
        self.fresh.clear()
        self.floor_before = self.floor
        return len(changes)

    def reopen(self) -> None:
        """As after a restart: nothing is known but the store and the owner's two fields."""
        self.write()
        self.overlay = Overlay(self.kv)
        self.position = Position(Marks(self.overlay, PREFIX), self.position.floor, self.position.above)

    def check(self, first: int, end: int) -> None:
        """Every question about [first, end)."""
        marked = {n for n in range(first, end) if n in self.plain or n < self.start}
        assert self.position.count(first, end) == len(marked)
        assert self.position.unmarked(first, end) == runs_of(set(range(first, end)) - marked)
        assert {n for n in range(first, end) if self.position.contains(n)} == marked


def key_of(segment_no: int) -> bytes:
    return PREFIX + segment_no.to_bytes(8, "big")


def map_key_of(number: int) -> bytes:
    return PREFIX + b"\x01" + number.to_bytes(7, "big")


def runs_of(offsets: Iterable[int]) -> list[Run]:
    """The runs of a set, in order and apart."""
    runs: list[Run] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


def shifted(runs: Iterable[Run], start: int) -> list[Run]:
    return [(start + first, start + end) for first, end in runs]


@pytest.mark.parametrize("pattern", [*PATTERNS, "mixed"])
def test_a_position_is_a_plain_set_wherever_it_is_reopened(pattern: str) -> None:
    @HISTORIES
    @given(start=STARTS, runs=PATTERNS.get(pattern, MIXTURES), chance=st.randoms(use_true_random=False))
    def play(start: int, runs: list[Run], chance: random.Random) -> None:
        twin = Twin(start)
        runs = shifted(runs, start)
        chance.shuffle(runs)
        while runs:
            if chance.random() < 0.5:
                twin.mark(*runs.pop())
            else:
                count = chance.randrange(1, len(runs) + 1)
                twin.mark_runs([runs.pop() for _ in range(count)])
            if chance.random() < 0.2:
                twin.write()
            if chance.random() < 0.2:
                twin.reopen()
            if chance.random() < 0.3:
                first = start + chance.randrange(SPAN)
                twin.check(first, first + chance.randrange(2 * SEGMENT_BITS))
        twin.reopen()
        twin.check(max(0, start - 10), start + SPAN + 10)
        assert twin.write() == 0, "to look is not to write"

    play()


@HISTORIES
@given(start=STARTS, runs=MIXTURES, chance=st.randoms(use_true_random=False))
def test_the_same_marks_in_any_order_leave_equal_bytes(start: int, runs: list[Run], chance: random.Random) -> None:
    stores = []
    for order in range(3):
        twin = Twin(start)
        for first, end in shifted(runs, start):
            twin.mark(first, end)
            if order and chance.random() < 0.3:
                twin.reopen()
        twin.write()
        stores.append((twin.position.floor, twin.position.above, twin.kv.families))
        chance.shuffle(runs)
    assert stores[0] == stores[1] == stores[2]


@HISTORIES
@given(start=STARTS, runs=MIXTURES, chance=st.randoms(use_true_random=False))
def test_a_mark_counts_once_and_is_written_once(start: int, runs: list[Run], chance: random.Random) -> None:
    twin = Twin(start)
    for first, end in shifted(runs, start):
        twin.mark(first, end)
    twin.write()
    chance.shuffle(runs)
    for first, end in shifted(runs, start):
        assert twin.position.mark(first, end) == 0
    twin.mark_runs(shifted(runs, start))
    assert twin.write() == 0


@HISTORIES
@given(start=STARTS, runs=MIXTURES, chance=st.randoms(use_true_random=False))
def test_nothing_is_left_when_every_gap_is_filled(start: int, runs: list[Run], chance: random.Random) -> None:
    twin = Twin(start)
    for first, end in shifted(runs, start):
        twin.mark(first, end)
    gaps = twin.position.unmarked(start, start + SPAN)
    chance.shuffle(gaps)
    for first, end in gaps:
        twin.mark(first, end)
        if chance.random() < 0.3:
            twin.reopen()
    twin.write()
    assert (twin.position.floor, twin.position.above, twin.kv.families[STATE]) == (start + SPAN, 0, {})


@HISTORIES
@given(runs=MIXTURES, more=MIXTURES, chance=st.randoms(use_true_random=False))
def test_marks_without_a_floor_are_a_plain_set_too(runs: list[Run], more: list[Run], chance: random.Random) -> None:
    kv = MemoryKv()
    overlay = Overlay(kv)
    marks = Marks(overlay, PREFIX)
    plain: set[int] = set()
    for first, end in runs:
        assert marks.add(first, end) == len(set(range(first, end)) - plain)
        plain.update(range(first, end))
        if chance.random() < 0.2:
            kv.write(overlay)
            overlay = Overlay(kv)
            marks = Marks(overlay, PREFIX)
    together = {n for first, end in more for n in range(first, end)}
    assert marks.add_runs(runs_of(together)) == len(together - plain)
    plain |= together
    first, end = sorted(chance.sample(range(SPAN + 1), 2))
    assert marks.count(first, end) == len(plain & set(range(first, end)))
    assert {n for low, high in marks.runs(first, end) for n in range(low, high)} == plain & set(range(first, end))
    unmarked = {n for low, high in marks.runs(first, end, marked=False) for n in range(low, high)}
    assert unmarked == set(range(first, end)) - plain
    for segment_no in range(end >> SEGMENT_SHIFT):
        marks.delete(segment_no)
    assert marks.count(0, SPAN) == len({n for n in plain if n >= end >> SEGMENT_SHIFT << SEGMENT_SHIFT})


def test_a_position_passes_a_billion_marks_in_a_few_steps() -> None:
    overlay = Overlay(MemoryKv())
    position = Position(Marks(overlay, PREFIX), 5, 0)
    end = 10**9
    assert position.mark(6, end) == end - 6
    assert position.contains(end // 2)
    assert position.unmarked(0, 3 * SEGMENT_BITS) == [(5, 6)]
    kv = MemoryKv()
    kv.write(overlay)
    segments = end >> SEGMENT_SHIFT
    maps = -(-segments // SEGMENT_BITS)
    assert len(kv.families[STATE]) == maps + 2, "and the first segment and the last are not full"
    overlay = Overlay(kv)
    position = Position(Marks(overlay, PREFIX), position.floor, position.above)
    assert position.mark(5, 6) == 1
    assert (position.floor, position.above) == (end, 0)
    assert len(list(overlay.changes())) <= maps + 3
    kv.write(overlay)
    assert kv.families[STATE] == {}


@HISTORIES
@given(start=STARTS, runs=MIXTURES, chance=st.randoms(use_true_random=False))
def test_full_segments_of_older_states_are_passed_like_others(
    start: int, runs: list[Run], chance: random.Random
) -> None:
    twin = Twin(start)
    runs = shifted(runs, start)
    for first, end in runs:
        twin.mark(first, end)
    twin.reopen()
    state = twin.kv.families[STATE]
    for key in [key for key in state if key[len(PREFIX)]]:
        of_map = int.from_bytes(key[len(PREFIX) + 1 :], "big") << SEGMENT_SHIFT
        for first, end in bit_runs(decode_segment(state.pop(key))):
            state |= {key_of(of_map + number): encode_segment(FULL) for number in range(first, end)}
    twin.check(max(0, start - 10), start + SPAN + 10)
    gaps = twin.position.unmarked(start, start + SPAN)
    chance.shuffle(gaps)
    for first, end in gaps:
        twin.mark(first, end)
    twin.kv.write(twin.overlay)
    assert (twin.position.floor, twin.position.above, state) == (start + SPAN, 0, {})


# Segments


def varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def form_lengths(bits: int) -> dict[int, int]:
    """Bytes of each form by the docstring of the module: tag -> length with the tag."""
    flags = [bits >> at & 1 for at in range(SEGMENT_BITS)]
    zeros = [-1] + [at for at, flag in enumerate(flags) if not flag]
    lengths = [(flag, len(list(run))) for flag, run in groupby(flags)]
    if lengths[0][0]:
        lengths.insert(0, (0, 0))
    if not lengths[-1][0]:
        lengths.pop()
    found = {2: 513}
    if len(zeros) - 1 <= LISTED_MAX:
        found[0] = 1 + sum(varint_bytes(at - before - 1) for before, at in pairwise(zeros))
    if len(lengths) <= LISTED_MAX:
        found[1] = 1 + sum(varint_bytes(length) for _, length in lengths)
    if bits == FULL:
        found[3] = 1
    cuts = [at for at in range(1, SEGMENT_BITS) if flags[at] != flags[at - 1]]
    steps = [s for s in range(2, SEGMENT_BITS) if all(cut % s == cuts[0] % s for cut in cuts)] if cuts[1:] else []
    if steps and len(lengths) <= LISTED_MAX:
        step = steps[-1]
        shift = -cuts[0] % step
        last_cell = (bits.bit_length() - 1 + shift) // step
        found[4] = 1 + 3 + last_cell // 8 + 1
    return found


def evenly(count: int) -> int:
    """`count` one bits, as far from each other as they can be, from bit 0 on."""
    return sum(1 << at * SEGMENT_BITS // count for at in range(count))


def irregular(edges: int) -> int:
    """Bits with this number of edges, on no grid."""
    chance = random.Random(edges)
    cuts = sorted(chance.sample(range(1, SEGMENT_BITS), edges))
    return sum(mask(first, end) for first, end in zip(cuts[::2], cuts[1::2], strict=True))


BORDERS = {
    "nothing": 0,
    "everything": FULL,
    "the first bit": 1,
    "the last bit": 1 << SEGMENT_BITS - 1,
    "all but the first": FULL ^ 1,
    "all but the last": FULL ^ 1 << SEGMENT_BITS - 1,
    "all but both": FULL ^ 1 ^ 1 << SEGMENT_BITS - 1,
    "the first half": mask(0, SEGMENT_BITS // 2),
    "the last half": mask(SEGMENT_BITS // 2, SEGMENT_BITS),
    **{f"{n} pending, evenly": FULL ^ evenly(n) for n in (2, 127, 128, 255, 256, 257, 512)},
    **{f"{n} pending, at the end": mask(0, SEGMENT_BITS - n) for n in (127, 128, 255, 256, 257, 512)},
    **{
        f"{n} pending, irregular": FULL ^ sum(1 << at for at in random.Random(n).sample(range(SEGMENT_BITS), n))
        for n in (95, 96, 97, 255, 256, 257, 512)
    },
    **{f"{n} edges, irregular": irregular(n) for n in (2, 4, 64, 126, 128, 254, 256, 258, 512)},
    **{
        f"stripes of {width} from {first}": sum(
            mask(at, min(SEGMENT_BITS, at + width)) for at in range(first, SEGMENT_BITS, 2 * width)
        )
        for width in (1, 2, 3, 7, 8, 9, 15, 16, 17, 30, 32, 33, 1000, 2047)
        for first in (0, 1, 31, 100)
    },
}


@pytest.mark.parametrize("bits", BORDERS.values(), ids=BORDERS.keys())
def test_a_segment_at_a_border_of_its_forms_takes_the_smallest_and_comes_back(bits: int) -> None:
    value = encode_segment(bits)
    lengths = form_lengths(bits)
    assert len(value) == min(lengths.values()) == lengths[value[0]]
    assert decode_segment(value) == bits


def test_each_form_is_the_smallest_of_some_segment_at_a_border() -> None:
    assert {encode_segment(bits)[0] for bits in BORDERS.values()} == {0, 1, 2, 3, 4}


@settings(max_examples=150, deadline=None)
@given(runs=st.one_of(*PATTERNS.values()), inverted=st.booleans())
def test_any_segment_takes_its_smallest_form_and_comes_back(*, runs: list[Run], inverted: bool) -> None:
    bits = FULL * inverted
    for first, end in runs:
        if first < SEGMENT_BITS:
            bits ^= mask(first, min(end, SEGMENT_BITS))
    value = encode_segment(bits)
    lengths = form_lengths(bits)
    assert len(value) == min(lengths.values()) == lengths[value[0]]
    assert decode_segment(value) == bits
    flags = [bool(bits >> at & 1) for at in range(SEGMENT_BITS)]
    assert bit_runs(bits) == runs_of(at for at, flag in enumerate(flags) if flag)
    start = runs[0][0] % SEGMENT_BITS if runs else 0
    assert ones_from(bits, start) == ([*flags, False].index(False, start) - start)


OLD_VALUES = {
    "00 09 05": FULL ^ 1 << 9 ^ 1 << 15,
    "00 ff1f": FULL ^ 1 << 4095,
    "01": 0,
    "01 01 03": 0b1110,
    "00" + "07" * 512: sum(1 << at for at in range(SEGMENT_BITS) if at % 8 != 7),
    "01" + "0404" * 512: sum(mask(at, at + 4) for at in range(4, SEGMENT_BITS, 8)),
    "04 002001" + "55" * 256: sum(mask(at, at + 2) for at in range(0, SEGMENT_BITS, 4)) >> 1,
    "01" + "2020" * 64: sum(mask(at, at + 32) for at in range(32, SEGMENT_BITS, 64)),
    "01 00 01 fe1f 01": 1 | 1 << 4095,
    "02" + "aa" * 512: FULL // 3 * 2,
    "03": FULL,
}


@pytest.mark.parametrize("value", OLD_VALUES)
def test_values_of_older_versions_are_read_as_ever(value: str) -> None:
    """Also those which are not the smallest any more, since there is a grid, or which list more than they do now."""
    assert decode_segment(bytes.fromhex(value)) == OLD_VALUES[value]


@pytest.mark.parametrize(
    "value", ["", "05", "ff", "02" + "00" * 511, "02" + "00" * 513, "00 ff20", "01 00 8120", "01 00 ffffffffff7f"]
)
def test_a_value_of_no_form_is_told(value: str) -> None:
    with pytest.raises(CorruptValueError):
        decode_segment(bytes.fromhex(value))
