"""How the driver of a job on a cluster takes its prefix, and how it ends (cluster_job.py). Method: without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.spark_errors import SparkError
from connectors.kafka.owner_log import LastRecord
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster import checkpoint_identity, cluster_job
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.job_settings import JobSettings
from pipelines.process.prefix_ownership import PrefixOwnership
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, Unavailable
from tests.support.hadoop_files import HadoopFiles
from tests.support.java_error import ended_jvm
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from checkpoints.prefix_owner import Owner
    from pipelines.cluster.checkpoint_identity import CheckpointIdentity

NO_SPARK = cast("Any", None)
OPS = TopicFacts("p.ops", "T", 4)


class Records(list["Owner"]):
    """The topic with the owner of a prefix, as jobs see it that start one after the other (`OwnerRecords`)."""

    is_open = True

    def last(self) -> LastRecord[Owner] | None:
        return LastRecord(len(self) - 1, self[-1]) if self else None

    def open_for_writing(self) -> None:
        """Fence nobody."""

    def write(self, value: Owner) -> None:
        self.append(value)

    def close(self) -> None:
        """Stay."""


@pytest.fixture
def job() -> ClusterJob:
    return new_job("/state")


def new_job(checkpoint: str) -> ClusterJob:
    cluster = ClusterSettings(checkpoint=checkpoint, tables="/tables")
    return ClusterJob(JobSettings(topic_prefix="p"), cluster, KafkaConnection("kafka:9092"), NO_SPARK)


def take(records: Records, checkpoint: str) -> CheckpointIdentity:
    """Take the prefix as a job that starts with a checkpoint does, and stop."""
    job = new_job(checkpoint)
    ownership = PrefixOwnership(
        "p",
        records,
        folder=checkpoint,
        place=f"place of driver {len(records)}",
        ops_topic_id=OPS.topic_id,
        state_epoch=lambda: job._state_epoch,
        on_failure=job._lose,
    )
    try:
        return job._owned_identity(OPS, ownership)
    finally:
        job.stop()


def test_a_first_start_that_cannot_write_its_checkpoint_leaves_the_prefix_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, files = Records(), HadoopFiles()
    files.full = "/full"
    monkeypatch.setattr(checkpoint_identity, "HadoopFile", files.open)
    monkeypatch.setattr(cluster_job, "begins_now", lambda *_: {})
    with pytest.raises(Unavailable, match=r"/full/popstream\.json cannot be written"):
        take(records, "/full")
    assert (records[-1].state_epoch, records[-1].ended) == ("", True)
    files.full = None
    begun = take(records, "/full")
    assert records[-1].state_epoch == begun.state_epoch
    with pytest.raises(Invalid, match="belongs to another state"):
        take(records, "/other")
    assert records[-1].state_epoch == begun.state_epoch
    assert take(records, "/full") == begun


def test_a_job_whose_jvm_has_ended_stops_and_says_what_ended_it(job: ClusterJob) -> None:
    stopped: list[str] = []
    job._stack.callback(stopped.append, "first started")
    retention: Any = SimpleNamespace(holds_back=False)
    job._keep("decide_ops", lambda: StreamingQuery(JavaObject("o1", ended_jvm()._gateway_client)), retention)
    assert job.wait(60)
    job.stop()
    assert isinstance(job.failure, SparkError)
    assert str(job.failure).startswith("Spark failed (ConnectionRefusedError)")
    assert stopped == ["first started"]


class Rows:
    """In place of the queries and the table of owners: what was done, in order."""

    def __init__(self, job: ClusterJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = job
        self.done: list[str] = []
        self.is_starting = True
        self.failure: Exception | None = None
        monkeypatch.setattr(cluster_job, "write_owner", lambda *_: self.done.append("owner"))
        monkeypatch.setattr(cluster_job, "POLL_S", 0.001)

    def start(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.done.append("audit")

    def begin(self) -> None:
        arguments: Any = (self, self, None, None, "epoch")
        self.job._start_rows(*arguments)


@pytest.fixture
def rows(job: ClusterJob, monkeypatch: pytest.MonkeyPatch) -> Rows:
    return Rows(job, monkeypatch)


def test_rows_begin_with_that_of_the_owner_once_a_micro_batch_is_decided(rows: Rows) -> None:
    rows.begin()
    assert not rows.job.wait(0.05)
    assert rows.done == []
    rows.is_starting = False
    wait_for(lambda: rows.done == ["owner", "audit"], patience_s=20)


def test_rows_do_not_wait_for_ever(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_job, "FIRST_MICRO_BATCH_S", 0.01)
    rows.begin()
    wait_for(lambda: rows.done == ["owner", "audit"], patience_s=20)


def test_a_job_that_is_stopped_before_has_the_row_of_its_owner_and_starts_nothing(rows: Rows) -> None:
    """The query is drained instead, which writes what is decided."""
    rows.begin()
    rows.job.stop()
    assert rows.done == ["owner"]


def test_a_job_that_has_failed_meanwhile_writes_no_row(rows: Rows) -> None:
    rows.begin()
    rows.job._end.fail(Unavailable("Kafka is away"))
    rows.job.stop()
    assert rows.done == []


def test_rows_that_cannot_begin_end_the_job(rows: Rows) -> None:
    rows.failure = RuntimeError("can't start new thread")
    rows.is_starting = False
    rows.begin()
    assert rows.job.wait(20)
    assert rows.job.failure is rows.failure
