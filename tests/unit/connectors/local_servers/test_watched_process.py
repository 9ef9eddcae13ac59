"""Claims: a server is stopped or killed alone or with all below it, and says in its log why it did not start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.local_servers.process_tree import command_line, descendants, kill_tree
from connectors.local_servers.watched_process import WatchedProcess
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

WAIT_S = 60
SLEEPER = "import time; time.sleep(600)"
FAMILY = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEPER}'])"


def started(code: str, folder: Path, command: Sequence[str] = (sys.executable, "-c")) -> WatchedProcess:
    return WatchedProcess([*command, code], folder / "log", log_bytes_max=100_000, grace_s=5.0, cwd=folder)


@pytest.mark.parametrize(("ending", "exit_code"), [("stop", 128 + 15), ("kill", 128 + 9)])
def test_a_process_ends_when_it_is_asked_to_and_stays_ended(ending: str, exit_code: int, tmp_path: Path) -> None:
    process = started(SLEEPER, tmp_path)
    assert process.pid > 0
    codes = [process.exit_code]
    getattr(process, ending)()
    codes.append(process.exit_code)
    assert codes == [None, exit_code]
    process.stop()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_command_that_does_not_exist_has_no_pid_and_its_log_names_it(tmp_path: Path) -> None:
    process = started("", tmp_path, ["/nowhere/program"])
    assert process.pid == 0
    process.stop()
    assert "/nowhere/program" in (tmp_path / "log").read_text()


def test_the_environment_is_the_given_one_alone(tmp_path: Path) -> None:
    code = "import os; print(sorted(os.environ.keys() - {'LC_CTYPE'}), flush=True)"
    process = WatchedProcess(
        [sys.executable, "-c", code],
        tmp_path / "log",
        log_bytes_max=100_000,
        grace_s=5.0,
        cwd=tmp_path,
        environment={"ONLY": "this"},
    )
    eventually(lambda: process.exit_code is not None)
    process.stop()
    assert (tmp_path / "log").read_text() == "['ONLY']\n"


def test_descendants_are_found_and_end_with_the_tree(tmp_path: Path) -> None:
    process = started(FAMILY, tmp_path)
    eventually(lambda: len(descendants(process.pid)) == 1)
    (child,) = descendants(process.pid)
    assert command_line(child)[1:] == ["-c", SLEEPER]
    assert child in descendants(os.getpid())
    kill_tree(process.pid)
    eventually(lambda: process.exit_code == 128 + 9)
    eventually(lambda: not command_line(child))
    kill_tree(process.pid)
    process.stop()
