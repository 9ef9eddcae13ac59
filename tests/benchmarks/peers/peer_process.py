"""A server or a load in a process of its own, which ends with this one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from connectors.local_servers.loopback import HOST, is_free
from connectors.local_servers.watched_process import WatchedProcess
from tests.benchmarks.peers.contender import PeerError

__all__ = ["PeerProcess", "free_ports", "is_open"]

START_LIMIT_S = 120.0
GRACE_S = 30.0
LOG_BYTES_MAX = 64 * 1024 * 1024
LOG_LINES_SHOWN = 12
POLL_S = 0.1
PORTS = range(20_000, 30_000, 10)
"""As `connectors.local_servers.loopback`: below the ports from which a client gets its own."""


class PeerProcess:
    """From entry to exit; a watchdog runs it, and stops it alone, by its own process id.

    Args:
        name: Names its log.
        command: Its command line.
        folder: Its working directory, with its log.
        environment: Added to that of this process.
        cwd: A working directory other than the folder.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        self._command = command
        self._cwd = cwd or folder
        self._environment = {**os.environ, **(environment or {})}
        self._read_bytes = 0

    def __enter__(self) -> Self:
        """Start it."""
        self._process = WatchedProcess(
            self._command,
            self._log,
            log_bytes_max=LOG_BYTES_MAX,
            grace_s=GRACE_S,
            cwd=self._cwd,
            environment=self._environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it; kill it when it does not end in time."""
        self._process.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.exit_code

    def new_lines(self) -> list[str]:
        """The whole lines that it has printed since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            whole = log.read().rpartition(b"\n")[0]
        self._read_bytes += len(whole) + bool(whole)
        return whole.decode(errors="replace").splitlines()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait until it is ready.

        Raises:
            PeerError: It ended, or was not ready in time.
        """
        deadline_s = time.monotonic() + START_LIMIT_S
        while not is_ready():
            if self.exit_code is not None:
                raise self.failure(f"ended with {self.exit_code}")
            if time.monotonic() > deadline_s:
                raise self.failure(f"was not ready within {START_LIMIT_S:g} s")
            time.sleep(POLL_S)

    def failure(self, what: str) -> PeerError:
        """An error with the last lines that it has printed."""
        lines = self._log.read_text(errors="replace").splitlines()
        return PeerError("\n".join([f"{self._name} {what}", *lines[-LOG_LINES_SHOWN:]]))


def is_open(port: int) -> bool:
    """Whether a server listens on this port of 127.0.0.1."""
    with socket.socket() as client:
        client.settimeout(POLL_S)
        return client.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Neighbouring free ports of 127.0.0.1; another process may still take one.

    Raises:
        PeerError: There are none.
    """
    for first in PORTS:
        ports = list(range(first, first + count))
        if all(is_free(port) for port in ports):
            return ports
    raise PeerError(f"no {count} free ports beside each other on {HOST}")
