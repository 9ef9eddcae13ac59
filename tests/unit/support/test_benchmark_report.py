"""The report of `make bench` has the results of each part that ended, whatever became of the others."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks import benchmark_report
from tests.benchmarks.benchmark_report import PARTS, run_bench

if TYPE_CHECKING:
    from pathlib import Path


def fails(_: object) -> Any:
    message = "no disk"
    raise OSError(message)


def test_a_part_that_fails_or_hangs_costs_no_other_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def looks(options: Any) -> int:
        (file,) = options.var.glob("bench/*.json")
        seen.append(json.loads(file.read_text()))
        return 7

    parts = {"broken": fails, "stuck": lambda _: time.sleep(60), "whole": looks, "unwanted": fails}
    monkeypatch.setattr(benchmark_report, "_PARTS", parts)
    monkeypatch.setattr(benchmark_report, "LIMIT_S", 0.2)

    file, failed = run_bench(var=tmp_path, parts=["broken", "stuck", "whole"], on_progress=lambda _: None)

    report = json.loads(file.read_text())
    assert failed == ["broken", "stuck"]
    assert report["broken"] == {"failure": "OSError: no disk"}
    assert report["stuck"] == {"failure": "TimeoutError: it took longer than 0.2 s"}
    assert report["whole"] == 7
    assert set(report["machine"]) == {"cores", "python", "kernel", "broken", "stuck", "whole"}
    assert set(seen[0]) == {"machine", "broken", "stuck"}, "written as each part ends"


def test_the_table_says_what_each_part_measures() -> None:
    _, *rows = (benchmark_report.__doc__ or "").split("what is measured\n")[1].splitlines()
    named = [row.split()[0] for row in rows if not row.startswith((" ", "---"))]
    assert named == ["machine", *PARTS]
    assert {"latency", "lease_ends", "idle"} <= set(PARTS), "each alone: one that fails costs no other its results"
