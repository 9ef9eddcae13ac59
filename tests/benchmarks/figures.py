"""The figures that the project plans with: `python -m tests.benchmarks.figures FILE.json ...` prints those of reports.

Of a part that is in several files the one in the newest file counts, by the names that `make bench` gives them. What is
asked for has to hold; a goal says how much further it is to go. Numbers that were measured beside other programs say
little, so there is a load average of a minute before and after each part, the greatest of its runs.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["FIGURES", "Figure", "PartReport", "figure_table", "measured", "parts_of"]


class Figure(msgspec.Struct, frozen=True):
    """A number in the result of a part, and what it has to be.

    Attributes:
        name: What it is of.
        path: Where it is: keys, with slashes between them.
        unit: Its unit, as it follows a number. One that begins with % is of a share, which is multiplied by 100.
        asked: What it has to be.
        goal: What it is to become; None: there is no such number.
        divided_by: Path of the number that it is divided by; empty: it is not.
        more_is_better: Whether these are the least that it has to be; otherwise the most.
    """

    name: str
    path: str
    unit: str
    asked: float
    goal: float | None = None
    divided_by: str = ""
    more_is_better: bool = True

    def holds(self, value: float, bound: float) -> bool:
        """Return whether a value, in its unit, is as good as a bound."""
        return value >= bound if self.more_is_better else value <= bound

    def bound(self, number: float | None) -> str:
        """Return what it has to be, as text; empty for None."""
        return "" if number is None else f"{'>=' if self.more_is_better else '<='} {_text(number)}"


_at_least = partial(Figure, more_is_better=True)
_at_most = partial(Figure, more_is_better=False)


def _latencies(at_500: str, at_5000: str) -> tuple[Figure, ...]:
    return (
        _at_most("500 operations a second, p50", f"{at_500}/p50_ms", "ms", 180, 120),
        _at_most("500 operations a second, p99", f"{at_500}/p99_ms", "ms", 450, 300),
        _at_most("5,000 operations a second, p50", f"{at_5000}/p50_ms", "ms", 300, 200),
        _at_most("5,000 operations a second, p99", f"{at_5000}/p99_ms", "ms", 800, 500),
    )


def _memory_by_lanes(name: str, path: str) -> Figure:
    few, many = f"with_10_lanes/{path}", f"with_99968_lanes/{path}"
    return _at_most(f"{name} with 100,000 lanes, of that with 10", many, "%", 110, divided_by=few)


FIGURES: Final[dict[str, tuple[Figure, ...]]] = {
    "drain": (
        _at_least("single operations", "delta_beside/ops_per_s_until_answered", "a second", 40_000, 60_000),
        _at_most("CPU of all processes", "delta_beside/cpu_us_per_record/total", "us an operation", 45, 33),
    ),
    "batches": (
        _at_least("entries, acked by 1,000", "entries/acked_per_s", "a second", 400_000, 1_000_000),
        _at_least(
            "messages of pops of 10,000, leased and acked",
            "whole_pops/messages_per_s_until_answered",
            "a second",
            1_000_000,
        ),
    ),
    "latency": _latencies("operation/500_a_second", "operation/5000_a_second"),
    "timeline": _latencies("500_a_second/operation", "5000_a_second/operation"),
    "build": (_at_most("append by any producer to poppable, p50", "poppable/p50_ms", "ms", 350, 250),),
    "lease_ends": (_at_most("answers of other queues, p99", "others/p99_ms", "ms", 2_000, 1_000),),
    "size": (
        _at_least(
            "operations beside 10,000,000 leases, of those beside 1,000",
            "leases/10000000/median",
            "%",
            80,
            divided_by="leases/1000/median",
        ),
        _at_least(
            "operations over 100,000 lanes, of those over 10",
            "lanes/100000/median",
            "%",
            75,
            divided_by="lanes/10/median",
        ),
    ),
    "restart": (
        _at_most("state", "bytes_a_lease", "bytes a lease", 32),
        _at_most("start to first answer", "first_answer_s", "s", 25),
    ),
    "idle": (_at_most("job and its JVM, median", "median", "% of a core", 5, 3),),
    "consume": (
        _at_least("messages by run", "job/run/messages_a_second", "a second", 15_000),
        _at_least("messages in order, 256 queues", "job/orderly_256/messages_a_second", "a second", 15_000),
    ),
    "cluster": (
        _at_least("single operations, 2 executors", "single_2_executors/records_per_s", "a second", 15_000, 25_000),
        _at_most(
            "CPU of all but Kafka, 2 executors",
            "single_2_executors/cpu_us_per_record_without_kafka",
            "us an operation",
            80,
            50,
        ),
        _at_least("2 executors, of the rate of one", "two_executors_to_one", "times", 1.5, 1.9),
        _at_least("entries, acked by 1,000", "entries_2_executors/acked_entries_per_s", "a second", 150_000, 500_000),
        _at_most("ten operations till answered, p50", "ten_operations_ms/p50_ms", "ms", 450, 300),
        _at_most("ten operations till answered, p99", "ten_operations_ms/p99_ms", "ms", 900, 600),
        _at_most(
            "calls of the state", "single_2_executors/state_calls_per_1000_records", "per 1,000 operations", 30, 10
        ),
    ),
    "cluster_kills": (
        _at_most("all queues answer after an executor", "killed_executor_until_all_queues_answer_s", "s", 30, 15),
        _at_most("all queues answer after a driver", "killed_driver_until_all_queues_answer_s", "s", 45, 30),
    ),
    "cluster_lanes": (
        _memory_by_lanes("objects of the driver's JVM", "driver_heap_mib"),
        _memory_by_lanes("the driver's Python", "driver_python_mib"),
    ),
}
"""By the part that measures them."""

HEAD: Final = ("figure", "measured", "least .. greatest", "asked", "goal", "result", "load before -> after")


class PartReport(NamedTuple):
    """What a report says of a part.

    Attributes:
        result: What the part has measured, or why it has failed.
        runs: Loads before and after each of its runs.
        machine: What measured it.
    """

    result: Any
    runs: list[Mapping[str, Any]]
    machine: str


class Measured(NamedTuple):
    """The value of a figure, in its unit; `spread` is of several runs."""

    value: float
    spread: tuple[float, float] | None = None

    @property
    def range(self) -> str:
        """The spread as text; empty if there is none."""
        return "" if self.spread is None else " .. ".join(map(_text, self.spread))


def parts_of(reports: Iterable[Mapping[str, Any]]) -> dict[str, PartReport]:
    """Return what reports of `run_bench` say of each part; of one that is in several, what the last of them says."""
    found: dict[str, PartReport] = {}
    for report in reports:
        machine = report["machine"]
        name = f"{machine['cores']} cores, Python {machine['python']}, {machine['kernel']} kernel"
        for part, runs in machine["parts"].items():
            found[part] = PartReport(report[part], runs if isinstance(runs, list) else [runs], name)
    return found


def measured(figure: Figure, result: Any) -> Measured | None:
    """Return a figure from the result of its part, or None if that does not have it.

    The spread of a quotient is not known: a report with repeats does not say which numbers are of the same run.
    """
    found = _at(figure.path, result)
    if found is None:
        return None
    times = 100.0 if figure.unit.startswith("%") else 1.0
    if figure.divided_by:
        below = _at(figure.divided_by, result)
        return None if below is None or not below.value else Measured(times * found.value / below.value)
    spread = None if found.spread is None else (times * found.spread[0], times * found.spread[1])
    return Measured(times * found.value, spread)


def figure_table(parts: Mapping[str, PartReport]) -> list[str]:
    """Return the lines of a table with a row for each figure of the parts, in the order of FIGURES.

    There are none if the parts have no figures, and none of them has failed.
    """
    names = dict.fromkeys([*FIGURES, *parts])
    rows = [row for name in names if name in parts for row in _rows(name, parts[name])]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    lines = (HEAD, ["-" * width for width in widths], *rows)
    return [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]


def _rows(name: str, part: PartReport) -> Iterator[Sequence[str]]:
    load = _loads(part.runs)
    failure = part.result.get("failure") if isinstance(part.result, dict) else None
    if failure is not None:
        reasons = failure if isinstance(failure, list) else [failure]
        yield (f"{name}: {' '.join('; '.join(reasons).split())}", "", "", "", "", "failed", load)
    for figure in FIGURES.get(name, ()):
        found = measured(figure, part.result)
        if found is not None:
            cells = f"{_text(found.value)} {figure.unit}", found.range, _judged(figure, found.value)
        elif failure is None:
            cells = "", "", "not measured"
        else:
            continue
        value, spread, result = cells
        yield (
            f"{name}: {figure.name}",
            value,
            spread,
            figure.bound(figure.asked),
            figure.bound(figure.goal),
            result,
            load,
        )


def _judged(figure: Figure, value: float) -> str:
    if not figure.holds(value, figure.asked):
        return "missed"
    return "goal met" if figure.goal is not None and figure.holds(value, figure.goal) else "met"


def _loads(runs: Sequence[Mapping[str, Any]]) -> str:
    before, after = (max(run[name][0] for run in runs) for name in ("load_before", "load_after"))
    return f"{before:.1f} -> {after:.1f}"


def _at(path: str, result: Any) -> Measured | None:
    for key in path.split("/"):
        if not isinstance(result, dict) or key not in result:
            return None
        result = result[key]
    match result:
        case [int() | float() as median, least, greatest]:
            return Measured(median, (least, greatest))
        case int() | float():
            return Measured(result)
    return None


def _text(number: float) -> str:
    """Return a number with three digits, or all before the point.

    >>> _text(36_312.4), _text(99.96), _text(45.27), _text(1.5), _text(0)
    ('36,312', '100', '45.3', '1.5', '0')
    """
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def main() -> None:
    """Print the table of the reports that are named, and what has measured them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a report, such as var/bench/<time>.json")
    files: list[Path] = sorted(parser.parse_args().files, key=lambda file: file.name)
    parts = parts_of(json.loads(file.read_text()) for file in files)
    print(*figure_table(parts), sep="\n")
    for machine in dict.fromkeys(part.machine for part in parts.values()):
        print(f"{machine}: {', '.join(name for name, part in parts.items() if part.machine == machine)}")


if __name__ == "__main__":
    main()
