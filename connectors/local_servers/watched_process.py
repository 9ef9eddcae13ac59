"""A server in a process of its own, under a `watchdog`: it never outlives the process that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import IO, TYPE_CHECKING, cast

from connectors.local_servers import watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["WatchedProcess"]

KILL_GRACE_S = 10.0


class WatchedProcess:
    """One child process, from its start here to `stop` or `kill`. Not thread-safe.

    It ends with this process, however that ends: return, exception, Ctrl-C, SIGTERM, SIGKILL.

    Args:
        command: Its command line.
        log: File to which everything that it prints is appended.
        log_bytes_max: Bound of that file; one older file of the same size is kept.
        grace_s: Seconds between SIGTERM and SIGKILL when it is stopped.
        cwd: Its working directory.
        environment: Its environment variables; None: those of this process.
        pass_fds: Descriptors that it inherits.

    Attributes:
        pid: Its process id; 0 if it could not be started, of which the log has the reason.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        log_bytes_max: int,
        grace_s: float,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it."""
        self._grace_s = grace_s
        with log.open("ab") as errors:
            self._watchdog = subprocess.Popen(  # noqa: S603 - the command is ours
                watchdog.watchdog_command(log, log_bytes_max, grace_s, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=pass_fds,
                # Ctrl-C must not reach it: `finally` blocks of this process may need the server before they stop it.
                start_new_session=True,
                cwd=cwd,
                env=dict(os.environ if environment is None else environment),
            )
        # The watchdog prints nothing when it could not start the child: it has ended then.
        self.pid = int(cast("IO[bytes]", self._watchdog.stdout).readline() or 0)

    @property
    def exit_code(self) -> int | None:
        """Its exit code as a shell reports it; None while it runs."""
        return self._watchdog.poll()

    def stop(self) -> None:
        """Send SIGTERM; kill it when it does not end in time. Does nothing if it has ended."""
        self._end(watchdog.STOP, self._grace_s + KILL_GRACE_S)

    def kill(self) -> None:
        """Kill it by SIGKILL, like a crash. Does nothing if it has ended."""
        self._end(watchdog.KILL, KILL_GRACE_S)

    def _end(self, order: bytes, timeout_s: float) -> None:
        orders, answers = cast("IO[bytes]", self._watchdog.stdin), cast("IO[bytes]", self._watchdog.stdout)
        if orders.closed:
            return
        # A broken pipe means that the child and the watchdog have ended already.
        with contextlib.suppress(BrokenPipeError):
            orders.write(order)
            orders.flush()
        try:
            self._watchdog.wait(timeout_s)
        except BaseException as stuck:
            # The watchdog hangs, or Ctrl-C came while waiting. Its death ends the child, too.
            self._watchdog.kill()
            self._watchdog.wait()
            if not isinstance(stuck, subprocess.TimeoutExpired):
                raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                orders.close()
            answers.close()
