"""A job that decided what clients sent, and stopped: what the tests of restores damage, and compare in the end."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from checkpoints.layout import JobFolder
from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.tables import AUDIT_TABLES, KEY_COLUMNS
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import describe
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.restore import Restored, restore
from pipelines.recovery.verify import Inputs, Verified, WorkFolder, verify
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt
from tests.support.left_behind import applied_of, audit_rows, end_offsets, families_of
from tests.support.wire import start_job, wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pipelines.process.job import Job

OPS_PARTITIONS = 2


class RestoreScene:
    """One ops topic, the job over it, and what it left at two moments."""

    def __init__(self, spark: SparkSession, servers: str, root: Path) -> None:
        self.spark, self.servers, self.root = spark, servers, root
        self.connection = KafkaConnection(servers)
        self.prefix = f"restore{time.time_ns()}"
        self.topics = Topics.of(self.prefix)
        self.folder = JobFolder(root / "job")
        self.snapshots = SnapshotStore(str(self.folder.snapshots))
        self.snapshot_id = ""
        self.fresh: dict[tuple[int, ...], JobFolder] = {}
        ensure_topics(self.connection, self.topics, TopicSettings(ops_partitions=OPS_PARTITIONS, results_partitions=4))

    def start(self, folder: Path | None = None, **settings: Any) -> Job:
        more = {"records_per_micro_batch_max": 150, "flush_interval_s": 1.0, "snapshot_interval_s": 0.0, **settings}
        return start_job(self.spark, self.servers, folder or self.folder.root, self.prefix, **more)

    def play(self) -> None:
        """Two stretches of work with a snapshot between them, a little more, and a stop in order."""
        job = self.start(ticks=False)
        with Workload(self.servers, self.topics, OPS_PARTITIONS, seed=8, pause_s=0.005) as clients:
            wait_for(lambda: clients.sent > 250 and len(clients.answers) > 150, job)
            self.snapshot_id = job.snapshot_loop.take_now().id
            wait_for(lambda: clients.sent > 600 and len(clients.answers) > 400, job)
        self.wait_until_all_is_in_delta(job)
        # The next WriteBatches note that it is there.
        with Workload(self.servers, self.topics, OPS_PARTITIONS, seed=10) as clients:
            wait_for(lambda: len(clients.answers) > 5, job)
        self.wait_until_all_is_in_delta(job)
        # With its WAL, as a killed process leaves it. Reading RocksDB's LOCK would let go of it.
        shutil.copytree(self.folder.state, self.folder.root / "image", ignore=shutil.ignore_patterns("LOCK"))
        job.stop()
        assert job.failure is None, job.failure

    def wait_until_all_is_in_delta(self, job: Job) -> None:
        wait_for(lambda: job.apply_ops.applied.next_offset == end_offsets(self.servers, self.topics.ops), job)
        wait_for(lambda: job.flush.delivered_seq == job.apply_ops.applied.apply_seq, job)

    def drain(self, folder: Path | None = None) -> Job:
        """Decide what is left of the log without adding to it; the job has stopped."""
        job = self.start(folder, ticks=False)
        end = end_offsets(self.servers, self.topics.ops)
        wait_for(lambda: job.apply_ops.applied.next_offset == end, job)
        job.stop()
        assert job.failure is None, job.failure
        return job

    def refusal(self) -> str:
        """What a start says."""
        with pytest.raises(Corrupt) as caught:
            self.start()
        return str(caught.value)

    def restore(self, **options: Any) -> Restored:
        facts = describe(self.connection, [self.topics.ops])[self.topics.ops]
        chosen = {"lossy": False, **options}
        log = read_log_bounds(self.connection, facts)
        return restore(self.folder, log, self.connection, self.spark, self.snapshots, **chosen)

    def verify(self, since: str | None = None) -> Verified:
        facts = describe(self.connection, [self.topics.ops])[self.topics.ops]
        inputs = Inputs(
            state=self.folder.state,
            queues=None,
            delta=self.folder.delta,
            log=read_log_bounds(self.connection, facts),
            connection=self.connection,
            snapshots=self.snapshots,
        )
        with WorkFolder(self.folder.verify) as work:
            return verify(inputs, work, since=since, processes=OPS_PARTITIONS)

    def fresh_job(self) -> JobFolder:
        """The folder of a job that has decided the whole log; tests with the same log share it."""
        end = end_offsets(self.servers, self.topics.ops)
        key = tuple(end[number] for number in sorted(end))
        if key not in self.fresh:
            self.drain(self.root / "fresh")
            self.fresh[key] = JobFolder(self.root / "fresh")
        return self.fresh[key]

    def compare_with_a_fresh_job(self) -> None:
        fresh = self.fresh_job()
        assert families_of(self.folder.state) == families_of(fresh.state)
        assert applied_of(self.folder.state).next_offset == applied_of(fresh.state).next_offset
        for table in AUDIT_TABLES:
            rows, wanted = audit_rows(self.folder.delta, table), audit_rows(fresh.delta, table)
            assert rows == wanted, table
            assert wanted, f"{table} is empty: nothing was compared"
            assert len({tuple(row[name] for name in KEY_COLUMNS) for row in rows}) == len(rows), table

    def copied(self, root: Path) -> RestoreScene:
        """The same with a copy of the folder, to be damaged."""
        copy = RestoreScene.__new__(RestoreScene)
        copy.__dict__ |= {**self.__dict__, "root": root, "folder": JobFolder(root / "job")}
        shutil.copytree(self.folder.root, copy.folder.root)
        copy.snapshots = SnapshotStore(str(copy.folder.snapshots))
        return copy
