"""Claim: whatever builders dispatch, in whatever order and however they die, the queue is the one of an in-order build.

Method: 8 processes share the offsets of a topic in blocks, shuffle them, dispatch some twice, and are killed with
SIGKILL at random and started again, while the job's own builder makes the units. In the end position, units and
everything that is popped are compared with the log, and with an in-order dispatch decided by the kernel in memory.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from broker_state.consume_queue import units_between
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.lane_views import queues_in
from popstream import Transport
from popstream.kafka_connection import KafkaConnection
from popstream.settings import ClientSettings
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import Declare, Dispatch, Pop, WrittenRange
from tests.support.processes.external_builder import BLOCK, BUILDERS, MESSAGES, QUEUES
from tests.support.wire import start_job, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
KILLS = 24
GROUP = "everything"


class Crew:
    """The 8 processes, one of which is killed now and then."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._chance = random.Random(7)
        self._processes = [self._start(number) for number in range(BUILDERS)]
        self.kills = 0

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        seed = self._chance.randrange(1 << 30)
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.processes.external_builder",
                *self._arguments,
                str(number),
                str(seed),
            ],
            cwd=ROOT,
        )

    def run(self) -> None:
        """Until all have done their part."""
        while any(process.poll() is None for process in self._processes):
            time.sleep(self._chance.uniform(0.2, 0.6))
            alive = [number for number, process in enumerate(self._processes) if process.poll() is None]
            if alive and self.kills < KILLS:
                number = self._chance.choice(alive)
                os.kill(self._processes[number].pid, signal.SIGKILL)
                self._processes[number].wait()
                self._processes[number] = self._start(number)
                self.kills += 1
        assert [process.returncode for process in self._processes] == [0] * BUILDERS

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def pops(transport: Transport, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """What one group gets of a queue by pops of 1,000."""
    runs: list[tuple[int, int]] = []
    while True:
        answer = transport.request(
            Pop(v=1, topic=topic, queue_id=queue_id, group=GROUP, max_messages=1000, invisible_time_ms=600_000)
        )
        if not answer.messages:
            return runs
        runs += [(run.first, run.last) for run in answer.messages]


@pytest.mark.long
def test_eight_builders_that_are_killed_build_what_one_in_order_would(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str
) -> None:
    servers = kafka.bootstrap_servers
    topic = f"{topic_prefix}-m"
    create_message_topic(KafkaConnection(servers), topic, QUEUES)
    job = start_job(
        spark, servers, tmp_path / "job", topic_prefix, message_topics=topic, build_records_per_micro_batch_max=2000
    )
    crew: Crew | None = None
    try:
        wait_for(lambda: len(list(queues_in(job.store))) == QUEUES, job)
        crew = Crew(servers, topic_prefix, topic)
        producer = KafkaProducer(bootstrap_servers=servers, linger_ms=10)
        for number in range(MESSAGES):
            producer.send(topic, b"%d" % number, partition=number % QUEUES)
        producer.close()
        crew.run()
        assert crew.kills >= BUILDERS, "they were done too soon"
        end = MESSAGES // QUEUES
        assert job.builder is not None
        built = job.builder.builder
        wait_for(lambda: all(built.queues[topic, queue_id].end_offset == end for queue_id in range(QUEUES)), job)
        wait_for(lambda: job.builder is not None and not job.builder.sender.open_count, job)
        assert [(queue.commit_position, queue.holes) for queue in queues_in(job.store)] == [(end, 0)] * QUEUES
        for queue_id in range(QUEUES):
            units = units_between(built.queues[topic, queue_id], built.get((topic, queue_id)), 0, end)
            assert units.queue_offset.tolist() == list(range(end))
        settings = ClientSettings(bootstrap_servers=servers, client_id="all", prefix=topic_prefix)
        with Transport(settings) as transport:
            popped = [pops(transport, topic, queue_id) for queue_id in range(QUEUES)]
    finally:
        if crew is not None:
            crew.stop()
        job.stop()
    assert popped == [in_order(topic, end)] * QUEUES


def in_order(topic: str, end: int) -> list[tuple[int, int]]:
    """What the same pops get where every offset was dispatched once, in order."""
    memory = MemoryJob()
    memory.send(Declare(v=1, topic=topic, queue_id=0, topic_id="id"))
    for at in range(0, end, BLOCK):
        memory.send(Dispatch(v=1, topic=topic, queue_id=0, ranges=[WrittenRange(at, at + BLOCK - 1)]))
    with memory.transport() as transport:
        return pops(transport, topic, 0)
