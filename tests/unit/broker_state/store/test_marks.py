"""Segments, positions and trees agree with plain sets, over patterns that failed in other brokers."""

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from pyroaring import BitMap64

from broker_state.store.marks import CountedMarks, Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.position import Position
from broker_state.store.segment import SEGMENT_BITS, decode_segment, encode_segment
from broker_state.store.tree import GrowingTree
from tests.benchmarks.positions import position_sizes
from tests.support.counting_kv import CountingKv

SPAN = 40_000


def striped(width: int) -> Iterator[tuple[int, int]]:
    for first in range(0, SPAN, 2 * width):
        yield first, first + width


def stragglers(share: float) -> Iterator[tuple[int, int]]:
    chosen = random.Random(7)
    for offset in range(1, SPAN):
        if chosen.random() > share:
            yield offset, offset + 1


def scattered() -> Iterator[tuple[int, int]]:
    chosen = random.Random(11)
    for _ in range(3_000):
        first = chosen.randrange(SPAN)
        yield first, first + chosen.randrange(1, 5_000)


@pytest.mark.parametrize(
    "ranges",
    [list(striped(1)), list(striped(32)), list(stragglers(0.001)), list(stragglers(0.5)), list(scattered())],
    ids=["every second", "pops of 32", "0.1 % stragglers", "random half", "overlapping ranges"],
)
def test_a_position_equals_a_plain_set_in_any_order(ranges: list[tuple[int, int]]) -> None:
    for seed in range(3):
        order = ranges[:]
        random.Random(seed).shuffle(order)
        kv = MemoryKv()
        overlay = Overlay(kv)
        position = Position(Marks(overlay, b"p"), 0, 0)
        plain = BitMap64()
        for count, (first, end) in enumerate(order):
            before = len(plain)
            plain.add_range(first, end)
            assert position.mark(first, end) == len(plain) - before
            if count % 500 == 0:
                kv.write(overlay)
                overlay = Overlay(kv)
                position = Position(Marks(overlay, b"p"), position.floor, position.above)
                floor = position.floor
                assert floor not in plain
        floor = next(n for n in range(SPAN + 6_000) if n not in plain)
        assert position.floor == floor
        assert position.above == sum(1 for n in plain if n > floor)
        assert position.count(0, SPAN) == plain.range_cardinality(0, SPAN)
        gaps = position.unmarked(0, SPAN)
        assert sum(end - first for first, end in gaps) == SPAN - plain.range_cardinality(0, SPAN)
        kv.write(overlay)
        assert max(map(len, kv.families["state"].values()), default=0) <= 513


def test_nothing_is_stored_for_a_position_without_gaps() -> None:
    kv = MemoryKv()
    overlay = Overlay(kv)
    position = Position(Marks(overlay, b"p"), 0, 0)
    position.mark(5, 10_000)
    position.mark(0, 5)
    assert (position.floor, position.above) == (10_000, 0)
    kv.write(overlay)
    assert kv.families["state"] == {}


@pytest.fixture(scope="module")
def sizes() -> dict[str, dict[str, int]]:
    return position_sizes()


@pytest.mark.parametrize(
    ("pattern", "values_max", "with_keys_max"),
    [
        ("one_straggler", 300, 8_000),
        ("stragglers_1_in_1000", 2_500, 10_000),
        ("random_half", 130_000, 135_000),
        ("stripes_of_32", 20_000, 26_000),
        ("stripes_of_30", 20_000, 26_000),
        ("pops_of_32_random_half", 20_000, 26_000),
    ],
)
def test_stored_bytes_of_a_million_offsets_stay_small(
    sizes: dict[str, dict[str, int]], pattern: str, values_max: int, with_keys_max: int
) -> None:
    """As `make bench` measures them."""
    assert sizes[pattern]["values"] <= values_max
    assert sizes[pattern]["values_and_keys"] <= with_keys_max
    assert sizes[pattern]["longest_value"] <= 513


def test_every_segment_survives_its_stored_form() -> None:
    chosen = random.Random(3)
    for density in (0.0, 0.001, 0.01, 0.3, 0.5, 0.99, 1.0):
        for _ in range(30):
            bits = sum(1 << i for i in range(SEGMENT_BITS) if chosen.random() < density)
            assert decode_segment(encode_segment(bits)) == bits


def test_a_tree_finds_the_least_member_whatever_comes_and_goes() -> None:
    chosen = random.Random(5)
    overlay = Overlay(MemoryKv())
    tree = GrowingTree(overlay, b"t", 1, 0)
    plain: set[int] = set()
    for _ in range(5_000):
        number = chosen.choice((chosen.randrange(50), chosen.randrange(10_000), chosen.randrange(1 << 40)))
        if chosen.random() < 0.55:
            assert tree.add(number) == (number not in plain)
            plain.add(number)
        else:
            number = chosen.choice(sorted(plain)) if plain and chosen.random() < 0.8 else number
            assert tree.discard(number) == (number in plain)
            plain.discard(number)
        least = chosen.randrange(10_000)
        assert tree.first() == min(plain, default=None)
        assert tree.first(least) == min((n for n in plain if n >= least), default=None)
        assert tree.count == len(plain)


# Marks with counts.


def joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, end in runs:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_marks_with_counts_answer_like_plain_marks(seed: int) -> None:
    chance = random.Random(seed)
    counted = CountedMarks(Overlay(MemoryKv()), b"H", b"h")
    plain = Marks(Overlay(MemoryKv()), b"H")
    size = 1 << chance.choice((14, 19, 25))

    def some_range(lengths: Sequence[int], below: int) -> tuple[int, int]:
        first = chance.randrange(below)
        first = first >> 18 << 18 if chance.random() < 0.5 else first
        return first, first + chance.choice(lengths)

    for _ in range(8):
        first, end = some_range((1, 5, 4_096, 1 << 18, 1 << 20, 1 << 24), size)
        assert counted.add(first, end) == plain.add(first, end)
    for _ in range(6):
        first, end = some_range((1, 100, 1 << 18, 1 << 24, 1 << 25), 2 * size)
        runs = joined(plain.runs(first, end))
        assert counted.count(first, end) == plain.count(first, end)
        assert joined(counted.runs(first, end)) == runs
        assert joined(counted.runs(first, end, marked=False)) == joined(plain.runs(first, end, marked=False))
        assert counted.end_of_run(first, end) == (runs[0][1] if runs and runs[0][0] == first else first)


def test_a_billion_marks_are_counted_with_few_reads() -> None:
    kv = CountingKv()
    overlay = Overlay(kv)
    marks = CountedMarks(overlay, b"H", b"h")
    for first in range(0, 1 << 30, 1 << 20):
        marks.add(first, first + (1 << 20))
    kv.write(overlay)
    assert max(len(value) for value in kv.families[STATE].values()) < 32
    kv.read.clear()
    fresh = CountedMarks(Overlay(kv), b"H", b"h")
    assert fresh.count(77, 1 << 30) == (1 << 30) - 77
    assert fresh.end_of_run(77, 1 << 31) == 1 << 30
    assert len(kv.read) < 1_000


def test_counts_are_made_for_marks_that_were_stored_without() -> None:
    overlay = Overlay(MemoryKv())
    Marks(overlay, b"H").add(10, 900_000)
    counted = CountedMarks(overlay, b"H", b"h")
    counted.recount(0, 1_000_000)
    assert (counted.count(0, 1 << 21), counted.end_of_run(10, 1 << 21)) == (899_990, 900_000)
