"""Claims: executors with nothing but Python decide with the kernel that the job brings along; a killed executor is
replaced, and the job ends as without the kill; its exit code is that of the driver.

Method: a standalone cluster whose executors get a PATH without this environment; a small job tells what it finds there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from broker_state.compiled_form import build_folder
from connectors.local_servers.process_tree import command_line, descendants, kill_tree
from connectors.spark_cluster.packed_environment import FOLDER
from popstream import __version__
from tests.cluster.conftest import Submitter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from connectors.spark_cluster.standalone import StandaloneCluster

WAIT_S = 300


def wait_for(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_executors_import_everything_from_what_the_job_brings_along(
    cluster: StandaloneCluster, packed_environment: Path
) -> None:
    done = Submitter(cluster, str(packed_environment)).run("tests.cluster.executor_facts")
    assert done.returncode == 0, done.stderr[-3000:]
    executors = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(executors) == 2
    for facts in executors:
        assert facts["kernel"] == ("compiled" if build_folder().is_dir() else "pure")
        assert facts["version"] == __version__
        assert not facts["python"].startswith(sys.prefix)
        for file in [*facts["files"], facts["fold"]]:
            assert file.startswith(str(cluster.folder))
            assert f"/{FOLDER}/" in file


def test_a_killed_executor_is_replaced_and_the_job_ends_well(cluster: StandaloneCluster, submitter: Submitter) -> None:
    with submitter.started("tests.cluster.slow_sum", "60") as driver:
        wait_for(lambda: any("python" in " ".join(command_line(pid)) for pid in below_executors(cluster)))
        killed = cluster.executor_pids()[0]
        cluster.kill_executor(killed)
        out, err = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, err[-3000:]
    assert out.splitlines()[-1] == str(sum(range(60)))
    assert killed not in cluster.executor_pids()
    assert "Lost executor" in err


def below_executors(cluster: StandaloneCluster) -> list[int]:
    return [below for pid in cluster.executor_pids() for below in descendants(pid)]


def test_a_driver_that_fails_gives_its_exit_code_and_leaves_no_executor(
    cluster: StandaloneCluster, submitter: Submitter
) -> None:
    failed = submitter.run("tests.cluster.slow_sum", "none")
    assert failed.returncode == 1
    assert "ValueError: invalid literal" in failed.stdout + failed.stderr
    wait_for(lambda: cluster.executor_pids() == [])


def test_a_killed_driver_leaves_no_executor(cluster: StandaloneCluster, submitter: Submitter) -> None:
    with submitter.started("tests.cluster.slow_sum", "600") as driver:
        wait_for(lambda: cluster.executor_pids() != [])
        kill_tree(driver.pid)
        driver.communicate(timeout=WAIT_S)
    wait_for(lambda: cluster.executor_pids() == [])
