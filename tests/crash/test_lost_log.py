"""Claim: a log that has lost records stops the start, with a sentence that says what to do; and that helps.

Method: a job decides a little and stops; then records beyond its position are deleted, as retention does; or the whole
topic is deleted and made again; or the broker dies and its disk has lost the end of the log. The runbook's commands
follow, as they are written.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.store.rocks_store import RocksStore
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import describe
from pipelines.apply_ops.quarantine import Quarantine
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from tests.support.left_behind import applied_of, end_offsets
from tests.support.processes.job_process import POPSTREAM, ROOT, JobProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

START_S = 240.0
TOPICS = Topics.of("lost")
TOPIC_SETTINGS = TopicSettings(ops_partitions=2, results_partitions=2)
TICK = json.dumps({"v": 1, "type": "tick", "topic": "orders", "queue_id": 0}).encode()
PARTITION = partition_of(ops_key("orders", 0), 2)


class Scene:
    """A Kafka of its own, and the folder of the job that works with it."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.kafka, self.folder, self.servers = kafka, folder, kafka.bootstrap_servers
        self.settings: dict[str, Any] = {
            "folder": str(folder),
            "topic_prefix": "lost",
            "ops_partitions": 2,
            "results_partitions": 2,
        }
        ensure_topics(KafkaConnection(self.servers), TOPICS, TOPIC_SETTINGS)

    def send(self, count: int) -> None:
        """Each is a record batch of its own."""
        producer = KafkaProducer(bootstrap_servers=self.servers)
        for _ in range(count):
            producer.send(TOPICS.ops, TICK, ops_key("orders", 0), partition=PARTITION).get(30)
        producer.close()

    def decide(self) -> None:
        """Let a job decide all there is, and put it into Delta."""
        with JobProcess(self.servers, self.settings, until=end_offsets(self.servers, TOPICS.ops)) as job:
            assert job.wait(START_S) == 0, job.log_tail()

    def refusal(self) -> str:
        """What the job says when it does not start."""
        with JobProcess(self.servers, self.settings) as job:
            assert job.wait(START_S) == 1, job.log_tail()
            return job.log_tail()

    def restore(self) -> subprocess.CompletedProcess[str]:
        """`popstream restore --lossy`."""
        options = ["--folder", str(self.folder), "--bootstrap-servers", self.servers, "--prefix", "lost"]
        return subprocess.run(
            [POPSTREAM, "restore", "--lossy", "--json", *options], cwd=ROOT, capture_output=True, text=True, check=False
        )

    def delete_topic(self) -> None:
        with KafkaAdminClient(bootstrap_servers=self.servers) as admin:
            admin.delete_topics([TOPICS.ops])
        deadline = time.monotonic() + 30
        while describe(KafkaConnection(self.servers), [TOPICS.ops]) and time.monotonic() < deadline:
            time.sleep(0.1)

    @property
    def decided(self) -> int:
        return applied_of(self.folder / "state").next_offset[PARTITION]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with EmbeddedKafka(tmp_path / "kafka", jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED_JVM) as kafka:
        yield Scene(kafka, tmp_path / "job")


def test_retention_and_recreation_are_noticed_at_the_start(scene: Scene) -> None:
    scene.send(5)
    scene.decide()
    assert scene.decided == 5
    scene.send(5)
    with KafkaAdminClient(bootstrap_servers=scene.servers) as admin:
        admin.delete_records({TopicPartition(TOPICS.ops, PARTITION): 8})
    said = scene.refusal()
    assert "Corrupt: lost.ops has lost records that are to be decided: bring the log back, or accept" in said
    assert f"partition {PARTITION} starts at 8, but is decided only up to 5" in said
    scene.delete_topic()
    ensure_topics(KafkaConnection(scene.servers), TOPICS, TOPIC_SETTINGS)
    scene.send(9)
    assert "Corrupt: lost.ops was deleted and made again" in scene.refusal()
    assert scene.decided == 5


def test_a_log_that_lost_its_end_goes_on_as_a_new_topic(scene: Scene) -> None:
    scene.send(5)
    scene.decide()
    scene.kafka.kill()
    (segment,) = (scene.kafka.folder / "data" / f"{TOPICS.ops}-{PARTITION}").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    scene.kafka.start()
    said = scene.refusal()
    assert "Corrupt: lost.ops has lost its end" in said
    assert f"partition {PARTITION} ends at 4, but is decided up to 5" in said
    done = scene.restore()
    assert done.returncode == 4
    assert "lost.ops has lost its end" in done.stderr
    with RocksStore(scene.folder / "state") as store:
        Quarantine(store).add(PARTITION, 1, "of the old topic")
    scene.delete_topic()
    assert "Corrupt: lost.ops was deleted and made again" in scene.refusal()
    done = scene.restore()
    assert done.returncode == 0, done.stderr
    with RocksStore(scene.folder / "state") as store:
        assert not len(Quarantine(store)), "the new topic's records have other offsets"
    scene.send(3)
    scene.decide()
    assert scene.decided == 3
