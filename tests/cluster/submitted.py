"""The job on a cluster as a user runs it: `popstream submit` with a settings file, and other commands."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from connectors.local_servers.process_tree import kill_tree
from tests.cluster.conftest import ROOT, driver_variables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connectors.spark_cluster.standalone import StandaloneCluster

__all__ = ["WAIT_S", "ops", "popstream", "run", "settings_file", "started", "submit_command"]

WAIT_S = 600


def settings_file(folder: Path, bootstrap_servers: str, prefix: str, more: str = "") -> Path:
    """Write the settings of a small job; `more`: further sections."""
    file = folder / "job.toml"
    file.write_text(
        f"""
        bootstrap_servers = "{bootstrap_servers}"
        topic_prefix = "{prefix}"
        ops_partitions = 2
        flush_interval_s = 0.5
        driver_memory = "768m"
        executor_memory = "768m"

        [spark_conf]
        "spark.driver.host" = "127.0.0.1"
        "spark.driver.bindAddress" = "127.0.0.1"
        "spark.ui.enabled" = "false"
        {more}
        """
    )
    return file


def submit_command(settings: Path, checkpoint: str, cluster: StandaloneCluster, environment: str) -> list[str]:
    """The command that submits the job."""
    return [
        *(sys.executable, "-m", "popstream", "submit", "--var", str(ROOT / "var"), "--settings", str(settings)),
        *("--master", cluster.master_url, "--checkpoint", checkpoint, "--environment", environment),
    ]


@contextlib.contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the driver and wait until it is ready; what is left of it at the end is killed."""
    with subprocess.Popen(
        command, env=driver_variables(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        assert driver.stdout is not None
        lines = []
        for line in driver.stdout:
            lines.append(line)
            if "ready: " in line:
                break
        else:
            raise AssertionError("".join(lines))
        # It logs on: a driver whose log nobody reads waits for ever.
        reader = threading.Thread(target=lines.extend, args=(driver.stdout,), daemon=True)
        reader.start()
        try:
            yield driver
        finally:
            kill_tree(driver.pid)
            reader.join()


def popstream(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run another command."""
    return run([sys.executable, "-m", "popstream", *arguments], text=text)


def run(command: list[str], *, folder: Path | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a folder of its own if one is given."""
    return subprocess.run(
        command,
        cwd=folder,
        input=text,
        env=driver_variables(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def ops(options: list[str], *operations: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers to operations, by the client of the command line."""
    lines = "\n".join(msgspec.json.encode(each).decode() for each in operations)
    done = popstream("ops", "--json", "--timeout", f"{WAIT_S // 2}s", *options, text=lines)
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]
