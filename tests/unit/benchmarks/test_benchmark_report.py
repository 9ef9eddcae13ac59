"""The report of `make bench` has the results of each part that ended, whatever became of the others."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from broker_state import KERNEL_FORM
from tests.benchmarks import benchmark_report
from tests.benchmarks.benchmark_report import PARTS, run_bench
from tests.benchmarks.part_process import PartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.benchmark_options import BenchOptions


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[BenchOptions], Any]]:
    """What is measured, in this process."""
    measures: dict[str, Callable[[BenchOptions], Any]] = {}
    monkeypatch.setattr(benchmark_report, "_MEASURES", measures)
    monkeypatch.setattr(benchmark_report, "run_apart", lambda measure, _: measure())
    return measures


def fails(_: object) -> Any:
    message = "OSError: no disk"
    raise PartError(message)


def run(folder: Path, *names: str, repeats: int = 1) -> tuple[dict[str, Any], list[str]]:
    file, failed = run_bench(var=folder, parts=names, repeats=repeats, on_progress=lambda _: None)
    return json.loads(file.read_text()), failed


def test_a_part_that_fails_costs_no_other_its_results(
    tmp_path: Path, parts: dict[str, Callable[[BenchOptions], Any]]
) -> None:
    seen: list[dict[str, Any]] = []

    def looks(options: BenchOptions) -> int:
        (file,) = options.var.glob("bench/*.json")
        seen.append(json.loads(file.read_text()))
        return 7

    parts |= {"broken": fails, "whole": looks, "unwanted": fails}
    report, failed = run(tmp_path, "broken", "whole")
    assert failed == ["broken"]
    assert report["broken"] == {"failure": "OSError: no disk"}
    assert report["whole"] == 7
    assert set(report) == {"machine", "broken", "whole"}
    assert set(seen[0]) == {"machine", "broken"}, "written as each part ends"


def test_each_part_has_an_empty_folder_which_is_removed(
    tmp_path: Path, parts: dict[str, Callable[[BenchOptions], Any]]
) -> None:
    folders: list[Path] = []

    def fills(options: BenchOptions) -> None:
        assert list(options.work.iterdir()) == []
        (options.work / "data").touch()
        folders.append(options.work)

    parts |= {"first": fills, "second": fills}
    assert run(tmp_path, "first", "second")[1] == []
    assert len(folders) == 2
    assert not any(folder.exists() for folder in folders)


def test_the_form_of_the_kernel_is_there_beside_the_part_of_that_name(
    tmp_path: Path, parts: dict[str, Callable[[BenchOptions], Any]]
) -> None:
    parts["kernel"] = lambda _: 7
    machine = run(tmp_path, "kernel")[0]["machine"]
    assert machine["kernel"] == KERNEL_FORM
    assert set(machine["parts"]["kernel"]) == {"load_before", "load_after", "took_s"}


def test_each_part_can_be_handed_to_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[bytes] = []
    monkeypatch.setattr(benchmark_report, "run_apart", lambda measure, _: handed.append(pickle.dumps(measure)))
    run_bench(var=tmp_path)
    assert len(handed) == len(PARTS)


def test_the_table_says_what_each_part_measures() -> None:
    _, *rows = (benchmark_report.__doc__ or "").split("what is measured\n")[1].splitlines()
    named = [row.split()[0] for row in rows if not row.startswith((" ", "---"))]
    assert named == ["machine", *PARTS]
    assert {"latency", "lease_ends", "idle"} <= set(PARTS), "each alone: one that fails costs no other its results"


def test_a_part_is_measured_as_often_as_asked(tmp_path: Path, parts: dict[str, Callable[[BenchOptions], Any]]) -> None:
    rates = iter((30.0, 10.0, 20.0))
    parts |= {"drain": lambda _: {"rate": next(rates), "form": "compiled"}, "broken": fails}
    report, failed = run(tmp_path, "drain", "broken", repeats=3)
    assert report["drain"] == {"rate": [20.0, 10.0, 30.0], "form": "compiled"}
    assert report["broken"] == {"failure": "OSError: no disk"}
    assert failed == ["broken"] * 3
    assert [len(measured) for measured in report["machine"]["parts"].values()] == [3, 3]


def test_the_planned_figures_of_a_part_are_told_as_it_ends(
    tmp_path: Path, parts: dict[str, Callable[[BenchOptions], Any]]
) -> None:
    told: list[str] = []
    parts |= {"restart": lambda _: {"bytes_a_lease": 1.59, "first_answer_s": 26}, "lag": lambda _: 7}
    run_bench(var=tmp_path, parts=["restart", "lag"], on_progress=told.append)
    first, head, _, *rows, last = told
    assert (first, last) == ("measuring restart", "measuring lag"), "which has no such figures"
    assert "asked" in head
    assert [[cell.strip() for cell in row.split("|")[1:7:5]] for row in rows] == [
        ["restart: state", "met"],
        ["restart: start to first answer", "missed"],
    ]
