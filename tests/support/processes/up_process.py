"""`popstream up` in a process of its own, and the other commands beside it, as a user runs them."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from tests.support.processes.job_process import POPSTREAM, ROOT

if TYPE_CHECKING:
    import signal
    from pathlib import Path

__all__ = ["COMMAND_TIMEOUT_S", "STOP_TIMEOUT_S", "Up", "environment", "run", "run_for", "status_of"]

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 180.0
# A JVM may take its time to go after the process that it belongs to.
GONE_WITHIN_S = 20.0
COMMAND_TIMEOUT_S = 300.0


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POPSTREAM_")}


class Up:
    """A `popstream up` and the lines that it prints."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [POPSTREAM, "up", "--folder", folder, "--var", ROOT / "var", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=folder.parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, words: str) -> str:
        """The first line with these words."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            line = self._coming.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"ended before it said {words!r}:\n{''.join(self.lines)}"
            if words in line:
                return line

    def stop(self, number: signal.Signals) -> tuple[int, list[psutil.Process]]:
        """Send the signal; the exit code, and the processes that are left."""
        own = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(number)
        code = self._process.wait(STOP_TIMEOUT_S)
        self._reader.join()
        left = psutil.wait_procs(own, timeout=GONE_WITHIN_S)[1]
        return code, [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        code = self._process.wait(START_TIMEOUT_S)
        self._reader.join()
        return code

    def end(self) -> None:
        """Whatever happened, leave nothing behind."""
        if self._process.poll() is None:
            own = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for process in own:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            self._coming.put(line)
        self._coming.put(None)


def run(up: Up, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return run_for(up.folder, *arguments, text=text)


def run_for(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command about a job's folder, which need not exist."""
    return subprocess.run(
        [POPSTREAM, *arguments, "--folder", folder],
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env=environment(),
        cwd=folder.parent,
    )


def status_of(up: Up) -> dict[str, Any]:
    done = run(up, "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return msgspec.json.decode(done.stdout, type=dict[str, Any])
