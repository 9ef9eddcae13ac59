"""Claim: an executor that is out of memory costs no decision, whether the kernel ends its JVM or a Python worker.

Method: a standalone cluster; processes of executors get a limit to their memory, and a micro-batch takes more.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import psutil

from tests.cluster.conftest import ROOT
from tests.cluster.submitted import WAIT_S, ops, popstream, settings_file, started, submit_command
from tests.support.processes.memory_group import memory_group

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.spark_cluster.standalone import StandaloneCluster

QUEUE = {"topic": "orders", "queue_id": 0}
DECLARE = {"type": "declare", **QUEUE, "topic_id": "T"}
DISPATCH = {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 9}]}
GROUPS = 1_000
"""That pop at a time: what a micro-batch has of them does not fit into the limit."""
MEMORY_BYTES_MAX = 1024 * 1024


def pops(name: str, groups: int = GROUPS) -> list[dict[str, object]]:
    pop = {"type": "pop", **QUEUE, "max_messages": 4, "invisible_time_ms": 3_600_000}
    return [{**pop, "group": f"{name}-{number}"} for number in range(groups)]


def python_workers(executor_pid: int) -> list[int]:
    """Those that have decided something; what has started them starts others in their place."""
    below = psutil.Process(executor_pid).children(recursive=True)
    return [each.pid for each in below if each.ppid() != executor_pid]


def test_executors_without_memory_cost_no_decision(
    tmp_path: Path, kafka: EmbeddedKafka, cluster: StandaloneCluster, unpacked_environment: str, topic_prefix: str
) -> None:
    settings = settings_file(tmp_path, kafka.bootstrap_servers, topic_prefix)
    command = submit_command(settings, f"file://{tmp_path}/state", cluster, unpacked_environment)
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", topic_prefix]
    with memory_group(MEMORY_BYTES_MAX) as group, started(command, tmp_path) as driver:
        ops(asked, DECLARE, DISPATCH, *pops("before", 1))
        executors = cluster.executor_pids()
        group.add(worker for executor in executors for worker in python_workers(executor))
        assert group.pids()
        answers = ops(asked, *pops("worker"))
        assert [answer["messages"] for answer in answers] == [[[0, 3, 1]]] * GROUPS
        assert group.ended() > 0
        assert cluster.executor_pids() == executors

        ended = group.ended()
        group.add(executors)
        answers = ops(asked, *pops("executor"))
        assert [answer["messages"] for answer in answers] == [[[0, 3, 1]]] * GROUPS
        assert group.ended() > ended
        assert not {*executors} <= {*cluster.executor_pids()}
        assert driver.poll() is None
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(WAIT_S) == 0
    verified = popstream(
        *("verify", "--json", "--folder", str(tmp_path / "verified"), "--checkpoint", f"file://{tmp_path}/state"),
        *("--var", str(ROOT / "var"), *asked),
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert msgspec.json.decode(verified.stdout)["rows"]["deliveries"] == 1 + 2 * GROUPS
