"""A server of a peer, in a process that ends with this one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from connectors.kafka import watchdog
from connectors.kafka.loopback import HOST, is_free
from tests.benchmarks.peers.contender import PeerError

__all__ = ["PeerServer", "free_ports"]

START_LIMIT_S = 60.0
GRACE_S = 20.0
KILL_GRACE_S = 10.0
LOG_BYTES_MAX = 4 * 1024 * 1024
LOG_LINES_SHOWN = 12
POLL_S = 0.1
PORTS = range(20_000, 30_000, 10)
"""As `connectors.kafka.loopback`: below the ports from which a client gets its own."""


class PeerServer:
    """From entry to exit; the same watchdog as that of the embedded broker runs it, and stops this process alone.

    Args:
        name: Names its log.
        command: Its command line.
        folder: Its working directory, with its log.
        port: On which it listens when it is ready.
        environment: Added to that of this process.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, *, port: int, environment: Mapping[str, str]
    ) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        self._command = watchdog.watchdog_command(self._log, LOG_BYTES_MAX, GRACE_S, command)
        self._folder = folder
        self._port = port
        self._environment = {**os.environ, **environment}

    def __enter__(self) -> Self:
        """Start, and wait for the port."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._stop()

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _is_open(self._port):
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline_s:
                what = f"was not ready within {START_LIMIT_S:g} s" if code is None else f"ended with {code}"
                lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
                raise PeerError("\n".join([f"{self._name} {what}", *lines[-LOG_LINES_SHOWN:]]))
            time.sleep(POLL_S)

    def _stop(self) -> None:
        orders = self._process.stdin
        assert orders is not None
        with contextlib.suppress(BrokenPipeError):
            orders.write(watchdog.STOP)
            orders.flush()
        with contextlib.suppress(BrokenPipeError):
            orders.close()
        try:
            self._process.wait(GRACE_S + KILL_GRACE_S)
        except subprocess.TimeoutExpired:  # its death kills the server
            self._process.kill()
            self._process.wait()


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


def _is_open(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(POLL_S)
        return client.connect_ex((HOST, port)) == 0
