"""Worker processes start in turn, never outlive the demo, and one that fails is reported with its log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.demo import processes
from pipelines.demo.message_source import MessageSource
from pipelines.demo.processes import WorkerProcesses, peak_mib
from pipelines.demo.tasks import Role, Task
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable

UNTIL_END_OF_INPUT = "import sys; sys.stdin.read()"


def task(folder: Path, role: Role = "steady", group: str = "billing") -> Task:
    return Task(
        name=f"{group}-{role}",
        role=role,
        connection=KafkaConnection("localhost:9"),
        prefix="p",
        topic="t",
        queues=1,
        ops_partitions=1,
        source=MessageSource(count=1),
        folder=str(folder),
        group=group,
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs instead of a worker: the last item is Python code."""
    replaced = [UNTIL_END_OF_INPUT]
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "pipelines.demo.demo_worker"]
        return popen([sys.executable, "-c", replaced[-1]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", start)
    return replaced


@pytest.mark.usefixtures("script")
def test_a_worker_that_is_asked_to_stop_ends(tmp_path: Path) -> None:
    with WorkerProcesses([task(tmp_path)], tmp_path) as workers:
        workers.step()
        workers.stop()
        assert [worker.process.returncode for worker in workers.started] == [0]


def test_no_worker_is_left_behind(tmp_path: Path, script: list[str]) -> None:
    script.append("import time; time.sleep(100)")
    with WorkerProcesses([task(tmp_path), task(tmp_path, "orderly")], tmp_path) as workers:
        workers.step()
        (tmp_path / "billing-steady.armed").touch()
        workers.step()
    assert [worker.process.returncode for worker in workers.started] == [-9, -9]


@pytest.mark.usefixtures("script")
def test_a_role_starts_when_those_before_it_in_its_group_are_armed(tmp_path: Path) -> None:
    tasks = [task(tmp_path, "steady"), task(tmp_path, "doomed"), task(tmp_path, "steady", "search")]
    with WorkerProcesses(tasks, tmp_path) as workers:
        workers.step()
        workers.step()
        assert [worker.task.name for worker in workers.started] == ["billing-doomed", "search-steady"]
        (tmp_path / "billing-doomed.armed").touch()
        workers.step()
        assert workers.started[-1].task.name == "billing-steady"
        assert workers.have_sent_all


@pytest.mark.usefixtures("script")
def test_a_role_does_not_wait_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ARMED_TIMEOUT_S", 0.0)
    with WorkerProcesses([task(tmp_path, "doomed"), task(tmp_path, "steady")], tmp_path) as workers:
        workers.step()
        workers.step()
        assert len(workers.started) == 2


@pytest.mark.usefixtures("script")
def test_the_doomed_is_killed_and_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DOOMED_FOR_S", 0.0)
    with WorkerProcesses([task(tmp_path, "doomed")], tmp_path) as workers:
        workers.step()
        assert workers.started[0].process.poll() is None
        (tmp_path / "billing-doomed.armed").touch()
        workers.step()
        time.sleep(0.01)
        workers.step()
        assert workers.started[0].process.returncode == -9
        workers.stop()


def test_a_worker_that_fails_is_reported_with_its_log(tmp_path: Path, script: list[str]) -> None:
    is_watched = tmp_path / "watched"
    script.append(
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(is_watched)!r}).exists(): time.sleep(0.01)\n"
        "print('no such queue', file=sys.stderr); sys.exit(1)"
    )
    with WorkerProcesses([task(tmp_path)], tmp_path) as workers:
        workers.step()
        is_watched.touch()
        workers.started[0].process.wait(60)
        with pytest.raises(Unavailable, match=r"billing-steady has ended with exit code 1(?s:.*)no such queue"):
            workers.step()


def test_a_worker_that_does_not_stop_is_an_error(
    tmp_path: Path, script: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.1)
    script.append("import time; time.sleep(100)")
    with WorkerProcesses([task(tmp_path)], tmp_path) as workers:
        workers.step()
        with pytest.raises(Unavailable, match="does not end"):
            workers.stop()


def test_a_worker_ends_when_the_demo_dies() -> None:
    code = (
        "import threading, pipelines.demo.consumers as c; c.STOP_GRACE_S = 0.0;"
        "c.at_end_of_input(lambda: print('closed', flush=True)); threading.Event().wait()"
    )
    child = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, check=False, timeout=60)
    assert (child.returncode, child.stdout) == (3, b"closed\n")


def test_a_worker_needs_no_spark() -> None:
    code = (
        "import sys, pipelines.demo.demo_worker;"
        "print([name for name in ('pyspark', 'delta', 'rocksdict', 'great_expectations') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_memory_of_a_process_is_known_where_there_is_proc() -> None:
    assert (peak_mib(os.getpid()) > 0) == Path("/proc/self/status").exists()
    assert peak_mib(2**22 + 1) == 0
