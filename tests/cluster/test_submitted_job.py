"""Claim: `popstream submit` runs the job on a cluster: clients get their answers and the tables their rows; after a
kill of its driver a new start goes on, and SIGTERM ends it with 0.

Method: a broker and a standalone cluster here; the command as a user runs it, with a settings file.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from connectors.local_servers.process_tree import kill_tree
from tests.cluster.submitted import WAIT_S, ops, settings_file, started, submit_command

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.spark_cluster.standalone import StandaloneCluster

QUEUE = {"topic": "orders", "queue_id": 0}


def test_the_job_answers_after_a_killed_driver_and_ends_with_zero(
    tmp_path: Path, kafka: EmbeddedKafka, cluster: StandaloneCluster, unpacked_environment: str, topic_prefix: str
) -> None:
    settings = settings_file(tmp_path, kafka.bootstrap_servers, topic_prefix)
    command = submit_command(settings, f"file://{tmp_path}/state", cluster, unpacked_environment)
    declare = {"type": "declare", **QUEUE, "topic_id": "T"}
    dispatch = {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 9}]}
    pop = {"type": "pop", **QUEUE, "group": "billing", "max_messages": 4, "invisible_time_ms": 600_000}
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", topic_prefix]
    with started(command, tmp_path) as driver:
        declared, dispatched, popped = ops(asked, declare, dispatch, pop)
        assert (declared["reason"], dispatched["reason"], popped["messages"]) == ("OK", "OK", [[0, 3, 1]])
        kill_tree(driver.pid)
    with started(command, tmp_path) as driver:
        assert ops(asked, pop)[0]["messages"] == [[4, 7, 1]]
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(WAIT_S) == 0
    assert list((tmp_path / "state" / "tables" / "operations" / "_delta_log").glob("*.json"))
