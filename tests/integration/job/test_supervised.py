"""What a supervisor of `popstream up` relies on: a health check that passes while it is ready, and bounded logs."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from connectors.local_servers.loopback import free_port
from pipelines.process.logs import FILE_BYTES_MAX
from tests.support.processes.job_process import ROOT
from tests.support.processes.up_process import Up
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def health(port: int) -> tuple[int, str]:
    """Exit code and output of the health check of docker/Dockerfile."""
    environment = {"PATH": os.environ["PATH"], "POPSTREAM_METRICS_PORT": str(port)}
    done = subprocess.run([ROOT / "docker" / "ready.sh"], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_job_is_healthy_until_it_stops_and_bounds_the_log_of_its_jvm(tmp_path: Path) -> None:
    port = free_port()
    up = Up(tmp_path / "job", "--metrics-port", str(port))
    try:
        up.wait_for("ready after")
        wait_for(lambda: health(port) == (0, "ok\n"))
        log, older = up.folder / "jvm.log", up.folder / "jvm.log.1"
        with log.open("ab") as file:
            file.write(b"x" * FILE_BYTES_MAX + b"\n")
        wait_for(older.exists)
        wait_for(lambda: log.stat().st_size < FILE_BYTES_MAX)
        assert older.stat().st_size == FILE_BYTES_MAX
        assert older.stat().st_mode & 0o077 == 0
        assert up.stop(signal.SIGTERM) == (0, [])
        assert health(port)[0] != 0
    finally:
        up.end()
