"""Runs one child for no longer than its parent lives; `embedded` starts it as a script.

```
our process ──stdin (pipe)──> keeper ──fork, exec──> child (a JVM)
            <──stdout── pid          <──its output── log file, bounded
```

* Standard input carries orders of one byte: `s` stop (SIGTERM, then SIGKILL after the grace), `k` SIGKILL. Its end
  means that our process is gone, however it died: the same as `s`. A new parent id means the same, for the pipe may be
  held open by a process that ours forked.
* The keeper is the child's parent, so an order can never reach a stranger that was given the same process id.
* On Linux the child also asks the kernel to die with the keeper. Elsewhere only a SIGKILL of the keeper itself leaves
  the child running.

PR_SET_PDEATHSIG in our own process would be wrong: it fires when the *thread* that forked ends, and a preexec function
in a process with threads can deadlock. The keeper has one thread, and needs the standard library alone: `python -I -S`
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

__all__ = ["KILL", "STOP", "keeper_command"]

STOP = b"s"
KILL = b"k"
PR_SET_PDEATHSIG = 1
TICK_S = 0.2
READ_BYTES = 65_536


class BoundedLog:
    """An append-only file that moves to `<name>.1` when it is full: at most two files of `bytes_max` bytes.

    `bytes_max` must be above `READ_BYTES`, the most that one call writes.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Open the file and go on at its end."""
        self._path = path
        self._bytes_max = bytes_max
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append, in a fresh file when this one would grow beyond its bound."""
        if self._file.tell() + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)


def keeper_command(log: Path, log_bytes_max: int, grace_s: float, command: Sequence[str]) -> list[str]:
    """Command line that runs `command` under a keeper.

    Args:
        log: File for everything the child prints.
        log_bytes_max: Bound of that file; one older file of the same size is kept.
        grace_s: Seconds between SIGTERM and SIGKILL.
        command: The child.
    """
    return [sys.executable, "-I", "-S", __file__, str(log), str(log_bytes_max), str(grace_s), *command]


class Keeper:
    """The parent of the child; `run` ends when the child has ended."""

    def __init__(self, command: Sequence[str], log: BoundedLog, grace_s: float) -> None:
        """Start the child."""
        self._parent = os.getppid()
        self._log = log
        self._grace_s = grace_s
        self._stop_asked_at: float | None = None
        self._orders_open = True
        self.child = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - this process has one thread
        )
        self._output = cast("IO[bytes]", self.child.stdout).fileno()
        self._orders = sys.stdin.fileno()

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Ask the child to end, once; `run` kills it after the grace. Also the handler of our own signals."""
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
            self.child.terminate()

    def run(self) -> int:
        """Follow orders and log the child's output until it ends; give its exit code (negative: a signal's number)."""
        is_open = True
        while is_open or self.child.poll() is None:
            watched = [self._output] * is_open + [self._orders] * self._orders_open
            ready, _, _ = select.select(watched, [], [], TICK_S)
            if self._output in ready:
                is_open = self._take_output()
            if self._orders in ready:
                self._take_order()
            self._look_around()
        return self.child.wait()

    def _take_output(self) -> bool:
        data = os.read(self._output, READ_BYTES)
        if data:
            self._log.write(data)
        return bool(data)

    def _take_order(self) -> None:
        order = os.read(self._orders, 1)
        self._orders_open = bool(order)
        if order == KILL:
            self.child.kill()
        else:
            self.stop()

    def _look_around(self) -> None:
        if os.getppid() != self._parent:
            self.stop()
        if self._stop_asked_at is not None and time.monotonic() - self._stop_asked_at > self._grace_s:
            self.child.kill()


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does before exec: on Linux, ask to be killed with the keeper; elsewhere nothing."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main(arguments: Sequence[str]) -> int:
    """Entry of the script, with the arguments of `keeper_command`; its exit code is a shell's: 128 + n for signal n."""
    log, log_bytes_max, grace_s, *command = arguments
    keeper = Keeper(command, BoundedLog(Path(log), int(log_bytes_max)), float(grace_s))
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, keeper.stop)
    os.write(sys.stdout.fileno(), b"%d\n" % keeper.child.pid)
    code = keeper.run()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
