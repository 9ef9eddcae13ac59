"""Claim: kill -9 of Python, of its JVM or of both, at any step, changes nothing that anybody can see afterwards.

Method: a job in a process group of its own is killed at a fail-point, started again, killed at the next, while clients
go on sending; Kafka lives outside. In the end the scene compares (tests/crash/scene.py). A million leases are in
flight; printed is how long it takes from each kill to the first answer to an operation that came after it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
from kafka import KafkaProducer

from popstream.exchange.partitioner import ops_key, partition_of
from tests.crash.scene import KILLED, OPS_PARTITIONS, PATIENCE_S, Scene
from tests.support.processes.job_process import FAILED, JobProcess
from tests.support.wire import wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(7_200)]

LEASES = int(os.environ.get("TEST_LEASES", "1000000"))
BIG = ("big", 0)
SENDS_EACH = 10_000


class Kill(NamedTuple):
    """What is killed, where: `python`, `jvm` or `both`, at a fail-point."""

    what: str
    failpoint: str

    @property
    def order(self) -> str:
        """As `Killer` reads it."""
        return {"python": "", "jvm": "jvm:", "both": "!"}[self.what] + self.failpoint

    @property
    def code(self) -> int:
        """How Python ends: with its JVM gone it has to end by itself."""
        return FAILED if self.what == "jvm" else KILLED


POINTS = ["decode@3", "prefetch@2", "decide@3", "write@4", "publish@3", "commit@3", "flush_begin@2", "flush@4"]
ALL = [Kill(what, point) for point in POINTS for what in ("python", "jvm", "both")]


@pytest.fixture
def scene(broker: EmbeddedKafka, tmp_path: Path, topic_prefix: str) -> Scene:
    return Scene(broker.bootstrap_servers, topic_prefix, tmp_path)


def query_started_at(log: Path) -> float:
    """When the last query of a job was started, as its log has it; in seconds since the epoch."""
    line = next(line for line in reversed(log.read_text().splitlines()) if "[info     ] query_started" in line)
    return datetime.fromisoformat(line.split()[0]).timestamp()


def lease(scene: Scene, count: int) -> None:
    """Have `count` messages of one queue leased for longer than any test, each by a pop of its own."""
    producer = KafkaProducer(bootstrap_servers=scene.servers, linger_ms=20)
    key = ops_key(*BIG)

    def send(kind: str, **fields: object) -> None:
        value = json.dumps({"v": 1, "type": kind, "topic": BIG[0], "queue_id": BIG[1], **fields}).encode()
        producer.send(scene.topics.ops, value, key, partition=partition_of(key, OPS_PARTITIONS))

    send("declare", topic_id="22222222-2222-4333-8444-555555555555")
    send("policy", group="g", in_flight_max=2 * count, window_max=max(1_000_000, count))
    for first in range(0, count, SENDS_EACH):
        send("dispatch", ranges=[{"first": first, "last": min(first + SENDS_EACH, count) - 1}])
    for number in range(count):
        send("pop", op_id=f"lease-{number}", group="g", max_messages=1, invisible_time_ms=43_200_000)
    producer.close()
    settings, scene.settings = scene.settings, {**scene.settings, "records_per_micro_batch_max": 20_000}
    scene.decide_all()
    scene.settings = settings


def test_python_jvm_and_both_killed_at_eight_points(scene: Scene) -> None:
    """The lost checkpoint of Spark comes on top, half-way: the state says where to go on."""
    lease(scene, LEASES)
    took_s: list[float] = []
    of_query_s: list[float] = []
    died_at = None
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=24) as clients:
        for number, kill in enumerate([*ALL, None]):
            if number == len(ALL) // 2:
                shutil.rmtree(scene.folder / "spark")
            with JobProcess(scene.servers, scene.settings) as job:
                if died_at is not None:
                    answered_at = wait_for(partial(clients.first_answer_after, died_at), patience_s=PATIENCE_S)
                    took_s.append(answered_at - died_at)
                    of_query_s.append(answered_at - query_started_at(job.log))
                if kill is None:
                    assert job.stop(PATIENCE_S) == 0, job.log_tail()
                    break
                job.kill_at(kill.order)
                code, died_at = job.wait_for_death(PATIENCE_S)
                assert code == kill.code, f"{kill}: {code}\n{job.log_tail()}"
                print(f"{kill.what} killed at {kill.failpoint}", took_s[-1:], flush=True)
    print(f"{LEASES:,} leases in flight, {len(took_s)} kills; seconds from the kill to the first answer:")
    print(f"median {statistics.median(took_s):.1f}, largest {max(took_s):.1f}; {[round(s, 1) for s in took_s]}")
    print(
        f"of these, from the query's start: median {statistics.median(of_query_s):.1f}, largest {max(of_query_s):.1f}"
    )
    assert len(took_s) == len(ALL) == 24
    scene.compare([clients])
