"""Claims: a child ends on command or with its owner, even if it ignores SIGTERM; its log is bounded."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from connectors.local_servers import watchdog

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 60
OBEDIENT = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
TALKATIVE = "for number in range(20000): print(f'line {number:06}', flush=True)"


def started(code: str, log: Path, *, log_bytes_max: int = 10_000, grace_s: float = 0.3) -> subprocess.Popen[bytes]:
    command = watchdog.watchdog_command(log, log_bytes_max, grace_s, [sys.executable, "-c", code])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("code", "order", "exit_code"),
    [(OBEDIENT, watchdog.STOP, 128 + 15), (OBEDIENT, watchdog.KILL, 128 + 9), (OBEDIENT, b"", 128 + 15)],
)
def test_child_ends_on_command_and_at_the_end_of_the_pipe(
    code: str, order: bytes, exit_code: int, tmp_path: Path
) -> None:
    with started(code, tmp_path / "log") as running:
        assert running.stdout is not None
        assert int(running.stdout.readline()) > 0
        running.communicate(order, timeout=WAIT_S)
        assert running.returncode == exit_code


def test_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(STUBBORN, log) as running:
        assert running.stdout is not None
        assert int(running.stdout.readline()) > 0
        while not log.exists() or b"deaf" not in log.read_bytes():
            assert running.poll() is None
        running.communicate(watchdog.STOP, timeout=WAIT_S)
        assert running.returncode == 128 + 9


def test_log_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    bound = 100_000
    with started(TALKATIVE, tmp_path / "log", log_bytes_max=bound) as running:
        assert running.wait(WAIT_S) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert (tmp_path / "log").read_bytes().endswith(b"line 019999\n")
    assert all(path.stat().st_size <= bound for path in tmp_path.iterdir())
