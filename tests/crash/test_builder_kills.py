"""Claim: a job that is killed while it builds queues, dispatches them or tells Delta of them does each of it once.

Method: a process that dies by SIGKILL at a fail-point of the builder, a second one that goes on, and a group that pops
what there is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpoints.layout import JobFolder
from popstream.consumer import Consumer
from tests.crash.scene import KILLED, PATIENCE_S
from tests.support.left_behind import table_rows
from tests.support.processes.job_process import JobProcess

if TYPE_CHECKING:
    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

# What the broker's fixture has written to `orders`.
WRITTEN = {(queue_id, offset) for queue_id in (0, 1) for offset in range(200)}


@pytest.mark.parametrize("point", ["build", "build_dispatch", "unit_flush"])
def test_a_builder_that_is_killed_tells_each_unit_once(
    broker: EmbeddedKafka, tmp_path: Path, topic_prefix: str, point: str
) -> None:
    servers = broker.bootstrap_servers
    settings = {
        "folder": str(tmp_path / "job"),
        "topic_prefix": topic_prefix,
        "ops_partitions": 2,
        "results_partitions": 2,
        "message_topics": "orders",
        "flush_interval_s": 0.5,
    }
    with JobProcess(servers, settings, failpoint=f"!{point}") as job:
        code, _ = job.wait_for_death(PATIENCE_S)
        assert code == KILLED, job.log_tail()
    with JobProcess(servers, settings) as job:
        popped: list[tuple[int, int]] = []
        with Consumer(servers, group="g", topics=["orders"], prefix=topic_prefix) as consumer:
            for message in itertools.islice(consumer, len(WRITTEN)):
                popped.append((message.queue_id, message.queue_offset))
                message.ack()
        assert job.stop(PATIENCE_S) == 0, job.log_tail()
    assert Counter(popped) == Counter(WRITTEN)
    rows = table_rows(JobFolder(tmp_path / "job").delta, "consume_queue")
    assert Counter((row["queue_id"], row["queue_offset"]) for row in rows) == Counter(WRITTEN)
