"""Runs a child process that ends together with the watchdog's owner. `watched_process` starts it as a script.

```
owner (the job) ──stdin (pipe)──> watchdog ──fork, exec──> child (a JVM)
                <──stdout── pid            <──output── child; written to a bounded log file
```

* Standard input carries commands of one byte: `s` stop (SIGTERM, then SIGKILL after the grace period), `k` SIGKILL. Its
  end means that the owner has died, with the effect of `s`. So does a new parent id, because a process that the owner
  forked may hold the pipe open.
* The watchdog is the child's parent, so a command can never reach another process that was given the same process id.
* On Linux the child also asks the kernel for a SIGKILL when the watchdog dies. Elsewhere a SIGKILL of the watchdog
  leaves the child running.

The owner itself cannot use PR_SET_PDEATHSIG: it takes effect when the *thread* that forked ends, and a preexec function
in a process with threads can deadlock. The watchdog has one thread and needs only the standard library: `python -I -S`
starts in about 30 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

__all__ = ["KILL", "STOP", "watchdog_command"]

STOP = b"s"
KILL = b"k"
PR_SET_PDEATHSIG = 1
TICK_S = 0.2
READ_BYTES = 65_536


class BoundedLog:
    """An append-only file that is rotated to `<name>.1` when it is full: at most two files of `bytes_max` bytes.

    `bytes_max` must be above `READ_BYTES`, the most that one call writes.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Open the file for appending."""
        self._path = path
        self._bytes_max = bytes_max
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append `data`, after a rotation if the file would exceed its limit."""
        if self._file.tell() + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)


def watchdog_command(log: Path, log_bytes_max: int, grace_s: float, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` under a watchdog.

    Args:
        log: File for everything the child prints.
        log_bytes_max: Bound of that file; one older file of the same size is kept.
        grace_s: Seconds between SIGTERM and SIGKILL.
        command: The child.
    """
    return [sys.executable, "-I", "-S", __file__, str(log), str(log_bytes_max), str(grace_s), *command]


class Watchdog:
    """The parent of the child. `run` ends when the child has ended."""

    def __init__(self, command: Sequence[str], log: BoundedLog, grace_s: float) -> None:
        """Start the child."""
        self._parent = os.getppid()
        self._log = log
        self._grace_s = grace_s
        self._stop_asked_at: float | None = None
        self._commands_open = True
        self.child = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - this process has one thread
        )
        self._output = cast("IO[bytes]", self.child.stdout).fileno()
        self._commands = sys.stdin.fileno()

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Send SIGTERM to the child, once; `run` kills it after the grace period. Also the signal handler."""
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            self.child.terminate()

    def run(self) -> int:
        """Follow commands and log output until the child ends; return its exit code (negative: a signal number)."""
        is_open = True
        while is_open or self.child.poll() is None:
            watched = [self._output] * is_open + [self._commands] * self._commands_open
            ready, _, _ = select.select(watched, [], [], TICK_S)
            if self._output in ready:
                is_open = self._take_output()
            if self._commands in ready:
                self._follow_command()
            self._check_parent()
        return self.child.wait()

    def _take_output(self) -> bool:
        data = os.read(self._output, READ_BYTES)
        if data:
            self._log.write(data)
        return bool(data)

    def _follow_command(self) -> None:
        command = os.read(self._commands, 1)
        self._commands_open = bool(command)
        if command == KILL:
            self.child.kill()
        else:
            self.stop()

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            self.stop()
        if self._stop_asked_at is not None and time.monotonic() - self._stop_asked_at > self._grace_s:
            self.child.kill()


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function for the child before exec: on Linux it asks for a SIGKILL when the watchdog dies."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Run the script with the arguments of `watchdog_command`. The exit code is a shell's: 128 + n for signal n."""
    log, log_bytes_max, grace_s, *command = arguments
    watchdog = Watchdog(command, BoundedLog(Path(log), int(log_bytes_max)), float(grace_s))
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, watchdog.stop)
    os.write(sys.stdout.fileno(), b"%d\n" % watchdog.child.pid)
    code = watchdog.run()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
