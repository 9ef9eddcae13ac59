"""A position alone: its bytes in the store, and its rate of marks.

A mark is one call, or one run within a call, whatever its length. Rates are of CPU time of one core, the loop that
makes the calls included, over an `Overlay` on a `MemoryKv`: the kernel's own way, without its store.
"""

import gc
import random
import statistics
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from broker_state.store.keys import lane_prefix, queue_prefix
from broker_state.store.marks import Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.position import Position
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.kernel import Rate

__all__ = ["measure_positions", "position_sizes"]

_OFFSETS = 1_000_000
_WINDOW = 100_000
_FAR = 100_000_000
_PREFIX = lane_prefix(queue_prefix("measurements", 0), 1) + b"a"
_SPANS = [10**power for power in range(3, 9)]

_Run = tuple[int, int]


def measure_positions(options: BenchOptions) -> dict[str, Any]:
    """Measure sizes, rates and costs."""
    runs = options.runs
    return {"bytes": position_sizes(), "rates": _mark_rates(runs), "ns_a_mark": _mark_costs(runs)}


def position_sizes() -> dict[str, dict[str, int]]:
    """Return the stored bytes of a position over 1,000,000 offsets, by the pattern of offsets that are not marked.

    The floor and the count of marks beyond it are not included: they are two fields of the record of queue or lane.
    """
    chance = random.Random(1)
    everything = range(_OFFSETS)
    popped = [chance.random() < 0.5 for _ in range(_OFFSETS // 32 + 1)]
    unmarked: dict[str, list[int]] = {
        "one_straggler": [5],
        "stragglers_1_in_1000": sorted(chance.sample(everything, _OFFSETS // 1000)),
        "random_half": [offset for offset in everything if chance.random() < 0.5],
        "stripes_of_32": [offset for offset in everything if offset // 32 % 2],
        "stripes_of_30": [offset for offset in everything if offset // 30 % 2],
        "pops_of_32_random_half": [offset for offset in everything if popped[offset // 32]],
    }
    return {name: _sizes(offsets) for name, offsets in unmarked.items()}


def _sizes(unmarked: Iterable[int]) -> dict[str, int]:
    kv = MemoryKv()
    overlay = Overlay(kv)
    position = Position(Marks(overlay, _PREFIX), 0, 0)
    at = 0
    for offset in (*unmarked, _OFFSETS):
        position.mark(at, offset)
        at = offset + 1
    kv.write(overlay)
    segments = kv.families[STATE]
    values = sum(map(len, segments.values()))
    return {
        "values": values,
        "values_and_keys": values + sum(map(len, segments)),
        "segments": len(segments),
        "longest_value": max(map(len, segments.values())),
    }


def _mark_rates(runs: int, marks: int = 200_000) -> dict[str, Rate]:
    """Return the marks a second, by their place and their order.

    `beyond_...` follow an offset that is not marked, `below_...` precede one that is marked. `..._by_record` are
    2,000 numbers at a time, all over a window of 100,000, in order within the record, as the runs of an ack are.
    """
    chance = random.Random(2)
    in_order = range(1, marks + 1)
    shuffled = [first + at for first in range(1, marks, _WINDOW) for at in chance.sample(range(_WINDOW), _WINDOW)]
    records = [_singles(sorted(shuffled[at : at + 2_000])) for at in range(0, marks, 2_000)]
    late = sorted(chance.sample(in_order, marks // 1000))
    stragglers = [*_singles(sorted(set(in_order).difference(late))), *_singles(late)]
    far = (_FAR, _FAR + 1)
    ways: dict[str, tuple[list[_Run], Sequence[_Run]]] = {
        "singles_at_the_floor": ([(0, 1)], _singles(in_order)),
        "ranges_of_32_at_the_floor": ([(0, 1)], _ranges(marks, 32)),
        "singles_at_the_floor_below_a_mark": ([(0, 1), far], _singles(in_order)),
        "singles_beyond_a_straggler": ([], _singles(in_order)),
        "ranges_of_32_beyond_a_straggler": ([], _ranges(marks, 32)),
        "singles_random_in_a_window": ([], _singles(shuffled)),
        "singles_but_for_1_in_1000_and_those_last": ([(0, 1)], stragglers),
    }
    rates: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, (before, after) in ways.items():
            rates.setdefault(name, []).append(len(after) / _seconds(before, [after], one_by_one=True))
        spent = _seconds([], records, one_by_one=False)
        rates.setdefault("singles_random_in_a_window_by_record", []).append(marks / spent)
    return {name: Rate.of("marks", values) for name, values in rates.items()}


def _mark_costs(runs: int, marks: int = 1_000_000) -> dict[str, dict[str, object]]:
    """Nanoseconds a mark, [median, least, greatest], by the span beyond an unmarked offset over which marks are spread.

    In random order the segments of a long span do not fit the caches of the processor; nothing else grows.
    """
    costs: dict[str, dict[str, object]] = {}
    for name in ("in_order", "random_order"):
        medians = []
        costs[name] = {}
        chance = random.Random(3)
        for span in _SPANS:
            offsets = range(1, span, max(1, span // marks))
            singles = _singles(offsets if name == "in_order" else chance.sample(offsets, len(offsets)))
            again = max(1, marks // len(singles))
            spent = [_seconds([], [singles], one_by_one=True, again=again) / len(singles) for _ in range(runs)]
            medians.append(statistics.median(spent))
            costs[name][str(span)] = [round(seconds * 1e9) for seconds in (medians[-1], min(spent), max(spent))]
        costs[name]["slowest_to_fastest"] = round(max(medians) / min(medians), 2)
    return costs


def _singles(offsets: Iterable[int]) -> list[_Run]:
    """One range each, the numbers side by side in memory in their order, as decoding leaves them."""
    return [(offset, offset + 1) for offset in array("q", offsets)]


def _ranges(count: int, length: int) -> list[_Run]:
    return [(first, first + length) for first in range(1, count * length, length)]


def _seconds(before: Iterable[_Run], batches: Iterable[Sequence[_Run]], *, one_by_one: bool, again: int = 1) -> float:
    """CPU time of `batches` of marks on a position that has the marks `before`, the mean of `again` times."""
    spent = 0.0
    gc.collect()
    gc.disable()  # as the job does while it decides
    for _ in range(again):
        position = Position(Marks(Overlay(MemoryKv()), _PREFIX), 0, 0)
        _mark(position, before)
        started = time.process_time()
        for runs in batches:
            if one_by_one:
                _mark(position, runs)
            else:
                position.mark_runs(runs)
        spent += time.process_time() - started
    gc.enable()
    return spent / again


def _mark(position: Position, runs: Iterable[_Run]) -> None:
    mark = position.mark
    for first, end in runs:
        mark(first, end)
