"""The process that compacts the tables: it tells what it did, and lives no longer than it is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from broker_state.errors import Unavailable
from connectors.delta.compaction import Compacted
from connectors.delta.tables import TABLES
from pipelines.maintenance import compacted_aside
from tests.support.threads import eventually

if TYPE_CHECKING:
    from pathlib import Path

ENDED_WITH_ITS_PARENT = 3


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The first commit of a table, not written yet."""
    log = tmp_path / "operations" / "_delta_log"
    log.mkdir(parents=True)
    return log / f"{0:020d}.json"


@pytest.fixture
def endless(log: Path, tmp_path: Path) -> Path:
    """Tables whose maintenance does not end: who reads a pipe waits for a writer."""
    os.mkfifo(log)
    return tmp_path


def test_without_tables_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert compacted_aside(tmp_path) == [Compacted(table=name) for name in TABLES]


def test_what_cannot_be_compacted_is_told(log: Path, tmp_path: Path) -> None:
    log.write_text("not a commit")
    failed, *others = compacted_aside(tmp_path)
    assert failed.table == "operations"
    assert failed.failure is not None
    assert f"{log} cannot be read" in failed.failure
    assert [other.table for other in others] == list(TABLES)[1:], "one that fails does not keep the others from it"
    assert {other.failure for other in others} == {None}


def test_an_end_before_its_time_is_told(endless: Path) -> None:
    """As by the kernel, for want of memory."""

    def kill() -> bool:
        for child in psutil.Process().children():
            if "connectors.delta.compaction" in child.cmdline():
                child.kill()
        return False

    with pytest.raises(Unavailable, match="compaction ended with exit code -9 and said: nothing"):
        compacted_aside(endless, kill)


def test_it_ends_when_it_is_no_longer_wanted(endless: Path) -> None:
    before = set(psutil.Process().children())
    wanted_until = time.monotonic() + 0.5
    assert compacted_aside(endless, lambda: time.monotonic() > wanted_until) == []
    assert set(psutil.Process().children()) == before


def test_it_ends_with_whoever_started_it_and_takes_no_core_from_them(endless: Path) -> None:
    command = [sys.executable, "-m", "connectors.delta.compaction", str(endless)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        eventually(lambda: psutil.Process(process.pid).nice() == 19)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == ENDED_WITH_ITS_PARENT
