"""A part of `make bench` ends with all that it started, whatever became of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.benchmarks import part_process
from tests.benchmarks.part_process import PartError, run_apart
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 120.0
ORPHAN = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
BENCH = """
import sys
from functools import partial
from pathlib import Path
from tests.benchmarks.part_process import run_apart
from tests.unit.benchmarks.test_part_process import hangs, starts_clients
run_apart(partial(starts_clients, Path(sys.argv[1]), hangs), 600)
"""


def starts_clients(folder: Path, then: Callable[[], Any]) -> Any:
    """Start a client that does not end, for which the exit of this process waits, and one whose parent has ended."""
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    client = clients.submit(os.getpid).result()
    clients.submit(time.sleep, 600)
    # Not by a pipe: its child has this output, too.
    with (folder / "orphan").open("w+") as output:
        subprocess.run([sys.executable, "-c", ORPHAN], stdout=output, check=True)
    (folder / "written").write_text(str(client))
    (folder / "written").rename(folder / "client")
    return then()


def returns() -> dict[str, tuple[int, ...]]:
    return {"rates": (7, 9)}


def fails() -> None:
    message = "no disk"
    raise OSError(message)


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(600)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_have_ended(folder: Path) -> bool:
    return all(has_ended(int((folder / name).read_text())) for name in ("client", "orphan"))


def test_a_part_that_returns_leaves_no_process(tmp_path: Path) -> None:
    assert run_apart(partial(starts_clients, tmp_path, returns), LIMIT_S) == {"rates": (7, 9)}
    eventually(lambda: all_have_ended(tmp_path))


@pytest.mark.parametrize(("then", "why"), [(fails, "OSError: no disk"), (dies, "its process ended with exit code -9")])
def test_a_part_that_fails_leaves_no_process(tmp_path: Path, then: Callable[[], None], why: str) -> None:
    with pytest.raises(PartError, match=f"^{why}$"):
        run_apart(partial(starts_clients, tmp_path, then), LIMIT_S)
    eventually(lambda: all_have_ended(tmp_path))


def test_a_part_that_takes_too_long_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(_: object, limit_s: float) -> list[object]:
        """Wait until the part hangs."""
        assert limit_s == LIMIT_S
        eventually((tmp_path / "client").exists)
        return []

    monkeypatch.setattr(part_process, "wait", wait)
    with pytest.raises(PartError, match=r"^TimeoutError: it took longer than 120 s$"):
        run_apart(partial(starts_clients, tmp_path, hangs), LIMIT_S)
    eventually(lambda: all_have_ended(tmp_path))


def test_a_part_ends_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", BENCH, str(tmp_path)], cwd=Path(__file__).parents[3]) as bench:
        eventually((tmp_path / "client").exists)
        bench.kill()
    eventually(lambda: all_have_ended(tmp_path))
