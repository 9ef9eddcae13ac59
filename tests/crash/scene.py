"""One job that is killed again and again, and the fresh one that it is compared with.

The fresh job has an empty folder and decides the very log that was left behind, ticks included, with micro-batches of
another size. Equal have to be: the state byte for byte, the rows but for apply_seq and state_epoch, the answers by
op_id, of which copies are identical, and the dead letters, each of them sent once. Every answer that a client has
seen is among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from connectors.delta.tables import AUDIT_TABLES, KEY_COLUMNS
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from popstream.kafka_connection import KafkaConnection
from tests.support.left_behind import (
    answers_of,
    applied_of,
    audit_rows,
    end_offsets,
    families_of,
    records_between,
)
from tests.support.processes.job_process import JobProcess
from tests.support.wire import has_finished, start_job, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from pipelines.process.job import Job
    from tests.support.workload import Workload

__all__ = ["KILLED", "OPS_PARTITIONS", "PATIENCE_S", "Scene", "run_process", "run_with", "start_with"]

KILLED = -9
OPS_PARTITIONS = 2
# Generous: this is for machines on which other things run.
PATIENCE_S = 600.0


def run_process(servers: str, settings: dict[str, Any], until: dict[int, int]) -> None:
    """A job in a process of its own, from its start until the log is decided."""
    with JobProcess(servers, settings, until=until, take_over=True) as job:
        code = job.wait(PATIENCE_S)
        assert code == 0, f"{code}\n{job.log_tail()}"


def start_with(spark: SparkSession, servers: str, settings: dict[str, Any]) -> Job:
    """Start a job of this process."""
    more = {name: value for name, value in settings.items() if name not in {"folder", "topic_prefix"}}
    return start_job(spark, servers, Path(settings["folder"]), settings["topic_prefix"], **more)


def run_with(spark: SparkSession) -> Callable[[str, dict[str, Any], dict[int, int]], None]:
    """As `run_process`, but in this process: it has a Spark that is warm."""

    def run(servers: str, settings: dict[str, Any], until: dict[int, int]) -> None:
        job = start_with(spark, servers, settings)
        try:
            wait_for(lambda: has_finished(job, until), job, patience_s=PATIENCE_S)
        finally:
            job.stop()

    return run


class Scene:
    """See the module.

    Args:
        servers: The Kafka to work with.
        prefix: Of the topics, which are made.
        root: For the folders of both jobs.
        run: Runs a job with settings until the log is decided up to some offsets.
    """

    def __init__(
        self,
        servers: str,
        prefix: str,
        root: Path,
        run: Callable[[str, dict[str, Any], dict[int, int]], None] = run_process,
    ) -> None:
        self.servers = servers
        self.folder = root / "job"
        self.topics = Topics.of(prefix)
        self._root = root
        self._run = run
        self._common = {
            "topic_prefix": prefix,
            "ops_partitions": OPS_PARTITIONS,
            "results_partitions": 2,
            "flush_interval_s": 1.0,
        }
        self.settings = {**self._common, "folder": str(self.folder), "records_per_micro_batch_max": 100}
        ensure_topics(
            KafkaConnection(servers), self.topics, TopicSettings(ops_partitions=OPS_PARTITIONS, results_partitions=2)
        )

    def decide_all(self) -> dict[int, int]:
        """Decide what is left of the log, without adding to it; where it ends."""
        return self._run_to_the_end({**self.settings, "ticks": False})

    def compare(self, clients: list[Workload]) -> None:
        """See the module."""
        log_end = self.decide_all()
        results_end = end_offsets(self.servers, self.topics.results)
        letters_end = end_offsets(self.servers, self.topics.dead_letters)
        sent = self._letters({}, letters_end)
        letters = set(sent)
        assert len(sent) == len(letters), "a dead letter was sent twice"
        # The fresh job would recognise them, and send none.
        with KafkaAdminClient(bootstrap_servers=self.servers) as admin:
            admin.delete_records({TopicPartition(self.topics.dead_letters, at): end for at, end in letters_end.items()})
        fresh = self._root / "fresh"
        self._run_to_the_end(
            {**self._common, "folder": str(fresh), "records_per_micro_batch_max": 1_000, "ticks": False}
        )
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
        assert letters == set(self._letters(letters_end, end_offsets(self.servers, self.topics.dead_letters)))
        assert letters

    def _run_to_the_end(self, settings: dict[str, Any]) -> dict[int, int]:
        end = end_offsets(self.servers, self.topics.ops)
        self._run(self.servers, settings, end)
        assert end_offsets(self.servers, self.topics.ops) == end
        return end

    def _answers(self, first: dict[int, int], end: dict[int, int]) -> dict[tuple[str, int], set[bytes]]:
        return answers_of(record.value for record in records_between(self.servers, self.topics.results, first, end))

    def _letters(self, first: dict[int, int], end: dict[int, int]) -> list[Any]:
        records = records_between(self.servers, self.topics.dead_letters, first, end)
        return [(record.key, record.value, tuple(record.headers)) for record in records]
