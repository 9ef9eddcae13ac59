"""The process that compacts the tables: it reports what it did, and ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import psutil
import pytest

from broker_state.audit import RejectedRow
from connectors.delta.compaction import NICE, Compacted
from connectors.delta.tables import TABLES
from pipelines.process import maintenance
from pipelines.process.maintenance import compacted_aside
from popstream.wire.base_errors import Corrupt
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import NO_SPARK, append_audit_rows, create_table
from tests.support.threads import eventually

ENDED_WITH_ITS_PARENT = 3
DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The first commit of a table, not written yet."""
    log = tmp_path / "operations" / "_delta_log"
    log.mkdir(parents=True)
    return log / f"{0:020d}.json"


@pytest.fixture
def endless(log: Path, tmp_path: Path) -> Path:
    """Tables whose maintenance does not end: reading a named pipe blocks."""
    os.mkfifo(log)
    return tmp_path


def test_without_tables_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert list(compacted_aside(tmp_path)) == [Compacted(table=name) for name in TABLES]


def test_a_table_that_cannot_be_compacted_is_reported(log: Path, tmp_path: Path) -> None:
    log.write_text("not a commit")
    failed, *others = compacted_aside(tmp_path)
    assert failed.table == "operations"
    assert failed.failure is not None
    assert f"{log} cannot be read" in failed.failure
    assert [other.table for other in others] == list(TABLES)[1:], "one that fails does not keep the others from it"
    assert {other.failure for other in others} == {None}


def test_a_killed_process_fails_one_table_only(endless: Path) -> None:
    """Like a kill by the kernel when memory is short."""

    def kill() -> bool:
        for child in compactions():
            if "operations" in child.cmdline():
                child.kill()
        return False

    failed, *others = compacted_aside(endless, kill)
    assert failed == Compacted(table="operations", failure="compaction ended with exit code -9: no error output")
    assert others == [Compacted(table=name) for name in list(TABLES)[1:]]


def test_ctrl_c_does_not_reach_it_and_it_stays_in_the_session(endless: Path) -> None:
    seen: set[tuple[bool, bool]] = set()

    def look() -> bool:
        seen.update(
            (os.getsid(child.pid) == os.getsid(0), os.getpgid(child.pid) == child.pid) for child in compactions()
        )
        return bool(seen)

    assert list(compacted_aside(endless, look)) == []
    assert seen == {(True, True)}


def compactions() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if is_compaction(child)]


def is_compaction(process: psutil.Process) -> bool:
    try:
        return "connectors.delta.compaction" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended since it was listed; a zombie is a kind of it
        return False


def test_it_ends_when_the_job_stops(endless: Path) -> None:
    before = set(psutil.Process().children())
    wanted_until = time.monotonic() + 0.5
    assert list(compacted_aside(endless, lambda: time.monotonic() > wanted_until)) == []
    assert set(psutil.Process().children()) == before


def test_it_ends_with_its_parent_and_yields_cpu_and_memory_to_it(endless: Path) -> None:
    command = [sys.executable, "-m", "connectors.delta.compaction", str(endless), "operations"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        eventually(lambda: psutil.Process(process.pid).nice() == NICE)
        eventually(lambda: Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n")
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == ENDED_WITH_ITS_PARENT


def set_clock(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    """Let the machine say that the first row is this many days old."""
    first = datetime.fromtimestamp(NOW_MS / 1000, UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp((first + timedelta(days=day)).timestamp(), tz)

    monkeypatch.setattr(maintenance, "datetime", Clock)


@pytest.mark.parametrize(("clock_day", "deleted"), [(3, {"deliveries": 0}), (9, {"deliveries": 1}), (400, {})])
def test_with_a_clock_that_is_far_ahead_no_rows_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock_day: int, deleted: dict[str, int]
) -> None:
    """One table has rows of the first day, another one has newer rows."""
    for name in ("deliveries", "rejected"):
        create_table(tmp_path, name)
    append_audit_rows(tmp_path, "deliveries", [delivery(1, 0, NOW_MS)])
    row = RejectedRow(0, 2, 0, NOW_MS + 5 * DAY_MS, "NOT_JSON", "bad", 20, "ab", b"", None, None)
    append_audit_rows(tmp_path, "rejected", [row])
    set_clock(monkeypatch, clock_day)
    failures: list[maintenance._Failure] = []
    assert maintenance._delete_old_rows(tmp_path, {"deliveries": 7}, failures) == deleted
    assert [("the clock of this machine says" in failure.text) for failure in failures] == [True] * (not deleted)


def test_a_damaged_log_keeps_no_other_table_from_its_retention_and_is_told_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("deliveries", "rejected"):
        create_table(tmp_path, name)
    append_audit_rows(tmp_path, "deliveries", [delivery(1, 0, NOW_MS)])
    (tmp_path / "rejected" / "_delta_log" / f"{0:020d}.json").write_text("{")
    failures: list[maintenance._Failure] = []
    set_clock(monkeypatch, 9)
    assert maintenance._delete_old_rows(tmp_path, {"deliveries": 7, "rejected": 7}, failures) == {"deliveries": 1}
    assert {failure.text.partition(":")[0] for failure in failures} == {"rejected"}
    monkeypatch.setattr(maintenance, "_vacuumed", lambda *_: 0)
    with pytest.raises(Corrupt, match=r"the log of rejected is damaged: .*run `popstream restore --rebuild rejected`"):
        list(maintenance.maintain(NO_SPARK, tmp_path))
