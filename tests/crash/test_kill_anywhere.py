"""Claim: kill -9 of the whole process tree, at any step, changes nothing that anybody can see afterwards.

Method: a job runs in a process group of its own and is killed at a fail-point, started again, killed at the next, while
clients go on sending; Kafka lives outside. What it left is compared with a fresh job in an empty folder, over the very
log left behind (ticks included) and with other batch limits: the same state byte for byte, the same rows but for
apply_seq and state_epoch, the same answers by op_id. Every answer that a client has seen is among them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

from connectors.delta.tables import AUDIT_TABLES, KEY_COLUMNS
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topics import Topics, TopicSettings, create_message_topic, ensure_topics
from tests.support.job_process import ROOT, JobProcess
from tests.support.left_behind import (
    answers_of,
    applied_of,
    audit_rows,
    end_offsets,
    families_of,
    records_between,
)
from tests.support.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLED = -9
OPS_PARTITIONS = 2
# Generous: this is for machines on which other things run.
DIES_WITHIN_S = 300.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), jars=kafka_jars(ROOT / "var")) as running:
        # The other queues that clients use have no Kafka topic: their dead letters can only be coordinates.
        create_message_topic(running.bootstrap_servers, "orders", 2)
        producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
        for number in range(400):
            producer.send("orders", b"message %d" % number, b"key", partition=number % 2, headers=[("h", b"v")])
        producer.close()
        yield running


class Scene:
    """One job that is killed again and again, and the fresh one that it is compared with."""

    def __init__(self, servers: str, prefix: str, root: Path) -> None:
        self.servers, self.root = servers, root
        self.topics = Topics.of(prefix)
        self._common = {
            "topic_prefix": prefix,
            "ops_partitions": OPS_PARTITIONS,
            "results_partitions": 2,
            "flush_interval_s": 1.0,
        }
        self._settings = {**self._common, "folder": str(root / "job"), "records_per_batch_max": 100}
        ensure_topics(servers, self.topics, TopicSettings(ops_partitions=OPS_PARTITIONS, results_partitions=2))

    @property
    def folder(self) -> Path:
        return self.root / "job"

    def killed_at(self, failpoint: str) -> None:
        """Run until the process group is dead."""
        with JobProcess(self.servers, self._settings, failpoint=f"!{failpoint}") as job:
            code = job.wait(DIES_WITHIN_S)
            assert code == KILLED, f"{failpoint} was not met: {code}\n{job.log_tail()}"

    def drain(self) -> dict[int, int]:
        """Decide what is left of the log, without adding to it."""
        return self._run_to_the_end({**self._settings, "ticks": False})

    def fresh(self) -> Path:
        """The same log once more, from nothing; the folder of that job."""
        folder = self.root / "fresh"
        self._run_to_the_end({**self._common, "folder": str(folder), "records_per_batch_max": 1_000, "ticks": False})
        return folder

    def _run_to_the_end(self, settings: dict[str, Any]) -> dict[int, int]:
        end = end_offsets(self.servers, self.topics.ops)
        with JobProcess(self.servers, settings, until=end) as job:
            code = job.wait(DIES_WITHIN_S)
            assert code == 0, f"{code}\n{job.log_tail()}"
        assert end_offsets(self.servers, self.topics.ops) == end
        return end

    def compare(self, clients: list[Workload]) -> None:
        """See the module."""
        log_end = self.drain()
        results_end = end_offsets(self.servers, self.topics.results)
        letters_end = end_offsets(self.servers, self.topics.dead_letters)
        fresh = self.fresh()
        assert applied_of(self.folder / "state").next_offset == log_end == applied_of(fresh / "state").next_offset
        assert families_of(self.folder / "state") == families_of(fresh / "state")
        for table in AUDIT_TABLES:
            rows, wanted = audit_rows(self.folder / "delta", table), audit_rows(fresh / "delta", table)
            assert rows == wanted, table
            assert wanted, f"{table} is empty: nothing was compared"
            assert len({tuple(row[name] for name in KEY_COLUMNS) for row in rows}) == len(rows), table
        answers = self._answers({}, results_end)
        wanted_answers = self._answers(results_end, end_offsets(self.servers, self.topics.results))
        assert answers == wanted_answers
        contradictory = {key for key, copies in answers.items() if len(copies) > 1}
        assert not contradictory
        for client in clients:
            assert client.answers
            seen = answers_of(iter(client.frames))
            assert all(copies <= wanted_answers[key] for key, copies in seen.items())
        letters = self._letters({}, letters_end)
        assert letters == self._letters(letters_end, end_offsets(self.servers, self.topics.dead_letters))
        assert letters

    def _answers(self, first: dict[int, int], end: dict[int, int]) -> dict[tuple[str, int], set[bytes]]:
        return answers_of(record.value for record in records_between(self.servers, self.topics.results, first, end))

    def _letters(self, first: dict[int, int], end: dict[int, int]) -> set[Any]:
        records = records_between(self.servers, self.topics.dead_letters, first, end)
        return {(record.key, record.value, tuple(record.headers)) for record in records}


@pytest.fixture
def scene(broker: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    prefix = "".join(letter for letter in request.node.name if letter.isalnum())[:40]
    return Scene(broker.bootstrap_servers, prefix, tmp_path)


def play(scene: Scene, failpoints: list[str]) -> list[Workload]:
    """Clients send all the time; the job is killed at each of `failpoints`."""
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=len(failpoints)) as clients:
        for failpoint in failpoints:
            scene.killed_at(failpoint)
    assert clients.sent > 100
    return [clients]


SIX_STEPS = ["decode@3", "order@4", "prefetch@2", "decide@3", "write@4", "publish@3"]
BESIDES = ["flush@2", "flush@4", "flush@7", "commit@3"]


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_killed_once_after_the_write_and_before_anybody_was_told(scene: Scene) -> None:
    """The bounded part, for every change."""
    scene.compare(play(scene, ["publish@6"]))


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_killed_at_each_of_the_six_steps(scene: Scene) -> None:
    scene.compare(play(scene, SIX_STEPS))


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_killed_between_delta_commits_and_their_notes_then_regrouped(scene: Scene) -> None:
    """After one table and not the next, after all of them, in a second flush, and before Spark's own commit.

    The lost checkpoint of Spark comes on top: the state says where to go on.
    """
    clients = play(scene, BESIDES)
    shutil.rmtree(scene.folder / "spark")
    scene.compare(clients)
