"""The table of planned figures says what a report has, and what it lacks or failed to measure.

tests/data/bench_report.json has what the parts wrote on one day, cut to the planned figures and the loads: one run of
each part, and two of `cluster`. No day's report has the last two parts; what they write is stated here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import figures
from tests.benchmarks.benchmark_report import PARTS
from tests.benchmarks.figures import FIGURES, figure_table, main, measured, parts_of
from tests.benchmarks.repeated import merged

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "tests/data/bench_report.json"
LOADS = {"load_before": [0.5, 1, 1], "load_after": [2.25, 1, 1], "took_s": 60}
MEMORY = {"driver_heap_mib": 92.1, "driver_python_mib": 188.1}
NOT_IN_SAMPLE = {
    "cluster_kills": {
        "killed_executor_until_all_queues_answer_s": 25.0,
        "killed_driver_until_all_queues_answer_s": 41.0,
    },
    "cluster_lanes": {"with_10_lanes": MEMORY, "with_99968_lanes": MEMORY},
}


def sample() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SAMPLE.read_text())
    found["machine"]["parts"] |= dict.fromkeys(NOT_IN_SAMPLE, LOADS)
    return found | NOT_IN_SAMPLE


def report(kernel: str = "compiled", runs: int = 1, **parts: Any) -> dict[str, Any]:
    loads = LOADS if runs == 1 else [LOADS] * runs
    machine = {"cores": 2, "python": "3.11.7", "kernel": kernel, "parts": dict.fromkeys(parts, loads)}
    return {"machine": machine, **parts}


def drain(ops_per_s: int, cpu_us: float = 40.0) -> dict[str, Any]:
    return {"delta_beside": {"ops_per_s_until_answered": ops_per_s, "cpu_us_per_record": {"total": cpu_us}}}


def rows(*reports: dict[str, Any]) -> list[list[str]]:
    """The cells of each row below the head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in figure_table(parts_of(reports))[2:]]


def test_every_figure_is_in_what_its_part_writes() -> None:
    found = sample()
    lacking = [
        (part, figure.path) for part in FIGURES for figure in FIGURES[part] if measured(figure, found[part]) is None
    ]
    assert not lacking
    assert set(FIGURES) <= set(PARTS)


def test_the_modules_of_the_parts_still_write_these_keys() -> None:
    """The sample does not change with them."""
    own = Path(str(figures.__file__))
    sources = "".join(file.read_text() for file in own.parent.glob("*.py") if file != own)
    keys = {
        path.rsplit("/", 1)[-1]
        for planned in FIGURES.values()
        for figure in planned
        for path in (figure.path, figure.divided_by)
        if path
    }
    rates = {"median"}  # of a Rate, whose fields are no texts
    assert {key for key in keys - rates if f'"{key}"' not in sources} == set()
    assert "    median: float\n" in sources


def test_a_row_has_the_number_its_bounds_and_the_loads() -> None:
    assert rows(report(drain=drain(52_345, 45.04))) == [
        ["drain: single operations", "52,345 a second", "", ">= 40,000", ">= 60,000", "met", "0.5 -> 2.2"],
        ["drain: CPU of all processes", "45 us an operation", "", "<= 45", "<= 33", "missed", "0.5 -> 2.2"],
    ]


@pytest.mark.parametrize(
    ("ops_per_s", "result"), [(39_999, "missed"), (40_000, "met"), (59_999, "met"), (60_000, "goal met")]
)
def test_a_figure_that_is_to_be_great_is_met_from_its_bound_on(ops_per_s: int, result: str) -> None:
    assert rows(report(drain=drain(ops_per_s)))[0][5] == result


@pytest.mark.parametrize(("cpu_us", "result"), [(33, "goal met"), (33.1, "met"), (45, "met"), (45.1, "missed")])
def test_a_figure_that_is_to_be_small_is_met_up_to_its_bound(cpu_us: float, result: str) -> None:
    assert rows(report(drain=drain(1, cpu_us)))[1][5] == result


def test_without_a_goal_it_is_met_and_no_more() -> None:
    (row, _) = rows(report(restart={"bytes_a_lease": 0.01, "first_answer_s": 1}))
    assert row[1:6] == ["0.01 bytes a lease", "", "<= 32", "", "met"]


def test_repeated_runs_have_a_spread_and_the_greatest_loads() -> None:
    found = report(runs=3, drain=merged([drain(50_000), drain(30_000), drain(41_000)]))
    found["machine"]["parts"]["drain"][1:] = [LOADS | {"load_before": [3.5, 1, 1]}, LOADS]
    assert rows(found)[0] == [
        "drain: single operations",
        "41,000 a second",
        "30,000 .. 50,000",
        ">= 40,000",
        ">= 60,000",
        "met",
        "3.5 -> 2.2",
    ]


def test_a_written_report_with_repeats_is_read() -> None:
    found = [row for row in rows(sample()) if row[0].startswith("cluster: ")]
    assert [row[1:3] for row in found[:3]] == [
        ["19,288 a second", "18,785 .. 19,791"],
        ["84.5 us an operation", "81.7 .. 87.3"],
        ["1.51 times", "1.48 .. 1.54"],
    ]


def test_a_share_is_of_two_numbers() -> None:
    size = {
        "leases": {"1000": {"median": 40_000}, "10000000": {"median": 31_900}},
        "lanes": {"10": {"median": 40_000}, "100000": {"median": 30_000}},
    }
    assert [row[1:6] for row in rows(report(size=size))] == [
        ["79.8 %", "", ">= 80", "", "missed"],
        ["75 %", "", ">= 75", "", "met"],
    ]
    assert [row[1:3] for row in rows(report(runs=2, size=merged([size, size])))] == [["79.8 %", ""], ["75 %", ""]]
    assert rows(report(idle={"median": 0.071, "max": 0.2}))[0][1] == "7.1 % of a core"


def test_a_part_that_failed_says_why_and_has_no_figures() -> None:
    found = rows(report(drain={"failure": "OSError:\nno disk"}, tls={"failure": "TimeoutError"}, lag={"visible_s": 1}))
    assert found == [
        ["drain: OSError: no disk", "", "", "", "", "failed", "0.5 -> 2.2"],
        ["tls: TimeoutError", "", "", "", "", "failed", "0.5 -> 2.2"],
    ]


def test_a_part_of_which_one_run_failed_has_the_figures_of_the_others() -> None:
    runs = [drain(50_000), {"failure": "no disk"}, {"failure": "no memory"}]
    found = rows(report(runs=3, drain=merged(runs)))
    assert [row[:2] for row in found[:2]] == [
        ["drain: no disk; no memory", ""],
        ["drain: single operations", "50,000 a second"],
    ]


def test_what_a_part_no_longer_writes_is_noticed() -> None:
    (rate, cpu) = rows(report(drain={"delta_beside": {"ops_per_s_until_answered": 1}}))
    assert (rate[5], cpu[5]) == ("missed", "not measured")


def test_parts_without_figures_have_no_table() -> None:
    assert figure_table(parts_of([report(lag={"visible_s": 1})])) == []


def test_columns_are_aligned() -> None:
    lines = figure_table(parts_of([sample()]))
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 2 + sum(map(len, FIGURES.values()))


def test_of_several_files_the_newest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "20261127T100000Z.json", tmp_path / "a" / "20261128T090000Z.json"
    new.parent.mkdir()
    new.write_text(json.dumps(report("pure", drain=drain(20_000))))
    old.write_text(json.dumps(report(drain=drain(50_000), idle={"median": 0.03})))
    monkeypatch.setattr(sys, "argv", ["figures", str(new), str(old)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:5]] == [
        "20,000 a second",
        "40 us an operation",
        "3 % of a core",
    ]
    assert lines[5:] == ["2 cores, Python 3.11.7, pure kernel: drain", "2 cores, Python 3.11.7, compiled kernel: idle"]
