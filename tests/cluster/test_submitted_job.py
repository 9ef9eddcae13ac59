"""Claim: `popstream submit` runs the job on a cluster: clients get their answers and the tables their rows; after a
kill of its driver a new start goes on, and SIGTERM ends it with 0.

Method: a broker and a standalone cluster here; the command as a user runs it, with a settings file.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from connectors.local_servers.process_tree import kill_tree
from tests.cluster.conftest import ROOT, driver_variables

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.spark_cluster.standalone import StandaloneCluster

WAIT_S = 600
QUEUE = {"topic": "orders", "queue_id": 0}


@pytest.fixture
def command(
    tmp_path: Path, kafka: EmbeddedKafka, cluster: StandaloneCluster, unpacked_environment: str, topic_prefix: str
) -> list[str]:
    settings = tmp_path / "job.toml"
    settings.write_text(
        f"""
        bootstrap_servers = "{kafka.bootstrap_servers}"
        topic_prefix = "{topic_prefix}"
        ops_partitions = 2
        flush_interval_s = 0.5
        driver_memory = "768m"
        executor_memory = "768m"

        [spark_conf]
        "spark.driver.host" = "127.0.0.1"
        "spark.driver.bindAddress" = "127.0.0.1"
        "spark.ui.enabled" = "false"
        """
    )
    return [
        *(sys.executable, "-m", "popstream", "submit", "--var", str(ROOT / "var"), "--settings", str(settings)),
        *("--master", cluster.master_url, "--checkpoint", f"file://{tmp_path}/state"),
        *("--environment", unpacked_environment),
    ]


def started(command: list[str], folder: Path) -> Generator[subprocess.Popen[str]]:
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
        try:
            yield driver
        finally:
            kill_tree(driver.pid)


def ops(options: list[str], *operations: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers to operations, by the client of the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "popstream", "ops", "--json", *options],
        input="\n".join(msgspec.json.encode(each).decode() for each in operations),
        env=driver_variables(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def test_the_job_answers_after_a_killed_driver_and_ends_with_zero(
    command: list[str], tmp_path: Path, kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    declare = {"type": "declare", **QUEUE, "topic_id": "T"}
    dispatch = {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 9}]}
    pop = {"type": "pop", **QUEUE, "group": "billing", "max_messages": 4, "invisible_time_ms": 600_000}
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", topic_prefix]
    first = started(command, tmp_path)
    driver = next(first)
    declared, dispatched, popped = ops(asked, declare, dispatch, pop)
    assert (declared["reason"], dispatched["reason"], popped["messages"]) == ("OK", "OK", [[0, 3, 1]])
    kill_tree(driver.pid)
    first.close()
    second = started(command, tmp_path)
    driver = next(second)
    assert ops(asked, pop)[0]["messages"] == [[4, 7, 1]]
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(WAIT_S) == 0
    second.close()
    assert list((tmp_path / "state" / "tables" / "operations" / "_delta_log").glob("*.json"))
