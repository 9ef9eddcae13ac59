"""Processes of the demo never outlive it, and one that fails is reported with its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.demo import crew as crew_module
from pipelines.demo.crew import Crew, CrewMember
from pipelines.demo.messages import Source
from pipelines.demo.orders import GO, STOP, Orders
from popstream.wire.failures import Unavailable

ORDERS = Orders(
    name="billing-steady-1",
    role="steady",
    bootstrap_servers="localhost:9",
    prefix="p",
    topic="t",
    queues=1,
    partitions=1,
    source=Source(count=1),
    journal="/dev/null",
    group="billing",
)
WAITS = (
    "import sys; print('{\"state\":\"ready\"}', flush=True); sys.exit(0 if sys.stdin.readline() == 'stop\\n' else 7)"
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs instead of a worker: the last item is Python code."""
    replaced = ["pass"]
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "pipelines.demo.worker"]
        return popen([sys.executable, "-c", replaced[-1]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", start)
    return replaced


def wait_for(member: CrewMember, state: str) -> None:
    for _ in range(500):
        if member.has_been(state):
            return
        with pytest.raises(subprocess.TimeoutExpired):
            member.process.wait(0.01)
    pytest.fail(f"never {state}")


def test_a_crew_that_is_told_to_stop_ends(tmp_path: Path, script: list[str]) -> None:
    script.append(WAITS)
    with Crew([ORDERS], tmp_path) as crew:
        (member,) = crew.members
        wait_for(member, "ready")
        crew.stop()
        assert member.process.returncode == 0
        member.tell(STOP)


def test_nobody_is_left_behind(tmp_path: Path, script: list[str]) -> None:
    script.append("import time; time.sleep(100)")
    with pytest.raises(KeyboardInterrupt), Crew([ORDERS, ORDERS], tmp_path) as crew:
        raise KeyboardInterrupt
    assert [member.process.returncode for member in crew.members] == [-9, -9]


def test_one_that_fails_is_reported_with_its_log(tmp_path: Path, script: list[str]) -> None:
    script.append("import sys; print('no such queue', file=sys.stderr); sys.exit(1)")
    with Crew([ORDERS], tmp_path) as crew:
        crew.members[0].process.wait(10)
        with pytest.raises(Unavailable, match=r"billing-steady-1 has ended with exit code 1(?s:.*)no such queue"):
            crew.require_well()


def test_one_that_is_killed_has_not_failed(tmp_path: Path, script: list[str]) -> None:
    script.append(WAITS)
    with Crew([ORDERS], tmp_path) as crew:
        wait_for(crew.members[0], "ready")
        crew.members[0].kill()
        crew.require_well()
        crew.stop()


def test_one_that_does_not_stop_is_an_error(tmp_path: Path, script: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "STOP_TIMEOUT_S", 0.1)
    script.append("import time; time.sleep(100)")
    with Crew([ORDERS], tmp_path) as crew:
        crew_module.go(crew.members)
        with pytest.raises(Unavailable, match="does not end"):
            crew.stop()


def test_members_are_found_by_role_and_group(tmp_path: Path, script: list[str]) -> None:
    script.append(WAITS)
    with Crew([ORDERS], tmp_path) as crew:
        assert crew.of("steady", "doomed") == crew.members == crew.of("steady", group="billing")
        assert crew.of("steady", group="search") == crew.of("doomed") == []


def test_a_worker_ends_when_the_demo_dies(tmp_path: Path) -> None:
    # It gets no Kafka, so it fails by itself after a long while; its end of input comes first.
    member = CrewMember(ORDERS, tmp_path / "log")
    assert member.process.stdin is not None
    member.tell(GO)
    member.process.stdin.close()
    assert member.process.wait(20) == 3
    member.release()


def test_a_worker_needs_no_spark() -> None:
    code = (
        "import sys, pipelines.demo.worker;"
        "print([name for name in ('pyspark', 'delta', 'rocksdict', 'great_expectations') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
