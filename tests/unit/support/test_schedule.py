"""Claim: files with Spark run on three workers only, every test runs once, and no worker waits while it could work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.support.pytest_hooks.schedule import HEAVY as HEAVY_PATHS
from tests.support.pytest_hooks.schedule import LONGEST_FIRST, LightAndHeavyScheduling, is_heavy

ROOT = Path(__file__).parents[3]
HEAVY = [f"tests/integration/test_{name}.py" for name in ("builder", "up", "x", "y", "z")]
LIGHT = [f"tests/unit/test_{number}.py" for number in range(6)]


class Worker:
    """Runs what it is sent when it is told to, one test at a time."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.waiting: list[int] = []
        self.ran: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def files_run_by(workers: list[Worker], files: list[str]) -> list[list[str]]:
    tests = [f"{file}::test_{number}" for file in files for number in range(2)]
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=lambda _: ["popen"])
    scheduler = LightAndHeavyScheduling(config, Producer("test", enabled=False))
    scheduler.numnodes = len(workers)
    for worker in workers:
        scheduler.add_node(worker)
    for worker in workers:
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    while any(worker.waiting for worker in workers):
        for worker in workers:
            if worker.waiting:
                worker.ran.append(worker.waiting.pop(0))
                scheduler.mark_test_complete(worker, worker.ran[-1])
    assert all(worker.shutting_down for worker in workers)
    assert sorted(test for worker in workers for test in worker.ran) == [*range(len(tests))]
    return [sorted({tests[test].split("::")[0] for test in worker.ran}) for worker in workers]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_files_with_spark_run_on_three_workers(count: int) -> None:
    ran = files_run_by([Worker(number) for number in range(count)], [*LIGHT, *HEAVY])
    assert [any(map(is_heavy, files)) for files in ran] == [number < 3 for number in range(count)]
    assert all(files for files in ran)


def test_workers_share_light_files() -> None:
    ran = files_run_by([Worker(number) for number in range(3)], LIGHT)
    assert [len(files) for files in ran] == [2, 2, 2]


def test_a_light_worker_ends_when_only_heavy_files_are_left() -> None:
    ran = files_run_by([Worker(number) for number in range(4)], HEAVY)
    assert ran[3] == []


def test_files_that_are_named_exist() -> None:
    assert [file for file in LONGEST_FIRST if not (ROOT / file).is_file()] == []
    assert [start for start in HEAVY_PATHS if not list(ROOT.glob(f"{start}*"))] == []
