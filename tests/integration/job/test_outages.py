"""Claim: while Kafka or Delta is away the process lives, decides nothing more than it has room for, and says why.

Method: a broker of the test's own is killed under a running host, for so long that Spark gives up, and comes back; and
Delta refuses every commit of a job, whose outbox is small.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest

from checkpoints.snapshot_store import Snapshot
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.client import ask
from pipelines.control.messages import SnapshotRequest, Status, StatusRequest
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream.wire.base_errors import Unavailable, is_transient
from popstream.wire.reason import Reason, code_of
from tests.support.left_behind import audit_rows, table_rows
from tests.support.wire import Wire, start_job, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from pipelines.control.job_file import JobFile
    from pipelines.process.job import Job

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
OUTBOX_BYTES_MAX = 1 << 20
SENT = 20_000
"""Operations whose rows are several times as large."""


class Running:
    """A host that somebody waits for, as `popstream up` does."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ended_with: list[BaseException | None] = []
        self._thread = threading.Thread(target=lambda: self.ended_with.append(host.wait()), daemon=True)
        self._thread.start()

    @property
    def job_file(self) -> JobFile:
        assert self.host.job_file is not None
        return self.host.job_file

    def status(self) -> Status:
        return ask(self.job_file, StatusRequest(), Status)

    def metric(self, name: str) -> float:
        lines = generate_latest(self.host.metrics.registry).decode().splitlines()
        (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
        return float(value)

    def stop(self) -> None:
        self.host.request_stop()
        self._thread.join()


def go_away_and_come_back(host: Host, running: Running, own_kafka: EmbeddedKafka, fails: Callable[[Job], None]) -> None:
    """Kill the broker until the job has failed, and see that another one goes on where it was."""
    first = host.job
    with Wire(first) as wire:
        wire.ask("declare", topic_id="id")
        wire.ask("dispatch", ranges=[{"first": 0, "last": 9}])
        handle = wire.ask("pop", group="g", max_messages=1, invisible_time_ms=3_600_000)["handle"]
    assert (running.status().not_ready_reasons, running.metric("popstream_ready")) == ([], 1.0)
    own_kafka.kill()
    (why,) = wait_for(lambda: running.status().not_ready_reasons)
    assert "Kafka has not answered" in why
    assert running.metric("popstream_ready") == 0.0
    fails(first)
    assert first.failure is not None
    assert is_transient(first.failure)
    (why,) = wait_for(
        lambda: [why for why in running.status().not_ready_reasons if "no Kafka accepts connections" in why]
    )
    assert (running.ended_with, running.metric("popstream_ready")) == ([], 0.0)
    with pytest.raises(Unavailable, match="no Kafka accepts connections"):
        ask(running.job_file, SnapshotRequest(), Snapshot)
    own_kafka.restart()
    wait_for(lambda: not running.status().not_ready_reasons)
    assert host.job is not first
    assert (running.metric("popstream_ready"), running.metric("popstream_restarts_total")) == (1.0, 1.0)
    with Wire(host.job) as wire:
        acked = wire.ask(
            "ack", handles=[{"group": "g", "handle": handle}], entries=[{"handle": 0, "offsets": [[0, 0]]}]
        )
        assert acked["commit_offsets"] == {"g": 1}
        wire.row("operations", op_id=acked["op_id"])
    wait_for(lambda: running.metric("popstream_ops_lag_records") == 0.0)
    running.stop()
    assert running.ended_with == [None]


@pytest.fixture
def running(spark: SparkSession, own_kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Running]:
    """A host on the broker that will be killed."""
    assert spark.sparkContext._jsc is not None, "a host that finds no Spark starts and ends one of its own"
    create_message_topic(own_kafka.connection, "messages", 1)
    settings = JobSettings(
        folder=tmp_path / "job",
        bootstrap_servers=own_kafka.bootstrap_servers,
        message_topics="messages",
        flush_interval_s=0.5,
    )
    with Host(settings, var=ROOT / "var") as host:
        yield Running(host)


def test_kafka_away_for_a_while(running: Running, own_kafka: EmbeddedKafka) -> None:
    """The job is told to fail, as it would by itself after two minutes."""
    go_away_and_come_back(running.host, running, own_kafka, lambda job: job.fail(Unavailable("Kafka is away")))


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_kafka_away_until_the_job_fails_by_itself(running: Running, own_kafka: EmbeddedKafka) -> None:
    go_away_and_come_back(running.host, running, own_kafka, lambda job: wait_for(lambda: job.failure, patience_s=600))


def pop(wire: Wire) -> dict[str, Any]:
    """With an op_id that does not compress."""
    return {**wire.operation("pop", group="g", max_messages=1, invisible_time_ms=1_000), "op_id": token_hex(60)}


def is_still(job: Job) -> bool:
    """Whether nothing is decided for a while; what Spark has read ahead still is, at first."""
    decided = job.apply_ops.applied
    time.sleep(2)
    return job.apply_ops.applied == decided


@pytest.mark.crash
def test_delta_away_until_the_outbox_is_full(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str
) -> None:
    messages = f"{topic_prefix}-messages"
    create_message_topic(kafka.connection, messages, 1)
    limits: dict[str, Any] = {"outbox_bytes_max": OUTBOX_BYTES_MAX, "message_topics": messages}
    job = start_job(spark, kafka.bootstrap_servers, tmp_path, topic_prefix, **limits)
    delta, away = job.folder.delta, tmp_path / "away"
    try:
        with Wire(job) as wire:
            wire.ask("declare", topic_id="id")
            wait_for(lambda: job.flush.delivered_seq == job.apply_ops.applied.apply_seq)
            delta.rename(away)
            delta.write_text("where the volume was mounted")
            for number in range(50):
                wire.producer.send(messages, b"%d" % number)
            for _ in range(SENT):
                wire.send_later(pop(wire))
            wait_for(lambda: len(job.not_ready_reasons) == 3, job)
            assert ["Delta does not take" in reason for reason in job.not_ready_reasons] == [True, True, False]
            assert "nothing is decided until" in job.not_ready_reasons[2]
            wait_for(lambda: is_still(job), job)
            unheard = pop(wire)
            wire.send(unheard)
            assert is_still(job)
            assert not job.wait(0)
            delta.unlink()
            away.rename(delta)
            assert wire.answer(unheard["op_id"])["code"] == code_of(Reason.NO_MESSAGE)
            wait_for(lambda: not job.not_ready_reasons)
            wait_for(lambda: job.flush.delivered_seq == job.apply_ops.applied.apply_seq)
            op_ids = [row["op_id"] for row in audit_rows(delta, "operations") if row["kind"] == "pop"]
            assert len(op_ids) == len(set(op_ids)) == SENT + 1
            units = wait_for(lambda: len(rows := table_rows(delta, "consume_queue")) >= 50 and rows, job)
            assert sorted(row["queue_offset"] for row in units) == list(range(50))
    finally:
        job.stop()
