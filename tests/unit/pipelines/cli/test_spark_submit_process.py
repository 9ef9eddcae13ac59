"""Claims: a signal to `popstream submit` stops the driver alone, whose exit code is that of the command; a second one
kills all that is below.

Method: a shell in place of `spark-submit`, with a driver that notes its signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.local_servers.process_tree import descendants, kill_tree
from connectors.spark_cluster.submission import LAUNCHER

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 120
DRIVER = """
import signal, sys, time
def stop(*_):
    print("driver stops", flush=True)
    {ending}
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("driver runs", *sys.argv[1:], flush=True)
time.sleep(600)
"""
COMMAND = """
import os, signal, sys
from pipelines.cli.exits import interrupt
from pipelines.cli.cluster.spark_submit_process import run_spark_submit
signal.signal(signal.SIGTERM, interrupt)
signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests in the background ignores it
sys.exit(run_spark_submit(sys.argv[1:], os.environ))
"""


@contextlib.contextmanager
def started(folder: Path, ending: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "driver.py").write_text(DRIVER.format(ending=ending))
    submit = f"trap 'echo submit got it' TERM INT; {sys.executable} {LAUNCHER} driver one; exit $?"
    root = Path(__file__).parents[4]
    running = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "bash", "-c", submit],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{folder}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "driver runs one\n"
            yield running
        finally:  # a test that fails would wait for the driver
            kill_tree(running.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_driver_whose_exit_code_counts(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, "sys.exit(4)") as running:
        running.send_signal(number)
        out, _ = running.communicate(timeout=WAIT_S)
    assert out == "driver stops\n"
    assert running.returncode == 4


def test_a_second_signal_kills_a_driver_that_does_not_stop(tmp_path: Path) -> None:
    with started(tmp_path, "pass") as running:
        below = descendants(running.pid)
        assert len(below) == 2
        assert running.stdout is not None
        running.terminate()
        assert running.stdout.readline() == "driver stops\n"
        running.terminate()
        assert running.wait(WAIT_S) != 0
    deadline_s = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_driver_that_a_signal_ended_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    with started(tmp_path, "pass") as running:
        for pid in descendants(running.pid):
            os.kill(pid, signal.SIGKILL)
        assert running.wait(WAIT_S) == 128 + 9
