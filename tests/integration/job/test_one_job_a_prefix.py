"""Claim: of two jobs with one prefix one decides and answers; the other is refused, or stops and writes nothing after.

Method: real jobs on one Kafka, with a folder each: empty, copied, taken over, killed, and restored.
"""

from __future__ import annotations

import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkpoints.prefix_owner import Owner
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, Invalid
from tests.support.left_behind import audit_rows, end_offsets
from tests.support.processes.job_process import ROOT
from tests.support.processes.up_process import Up, run, run_for
from tests.support.wire import Wire, start_job, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.process.job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FENCE_S_MAX = 10.0


def owner_of(servers: str, prefix: str) -> Owner:
    found = OwnerLog(KafkaConnection(servers), Topics.of(prefix).owner, Owner).last()
    assert found is not None
    return found.value


def letters_in(servers: str, prefix: str) -> int:
    return sum(end_offsets(servers, Topics.of(prefix).dead_letters).values())


class Sends:
    """Counts the records that a job's answer producer takes."""

    def __init__(self, job: Job) -> None:
        self.count = 0
        producer: Any = job.publisher._producer
        send = producer.send

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return send(*arguments, **named)

        producer.send = counted


def test_another_folder_is_refused_and_a_take_over_stops_the_owner(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str
) -> None:
    servers, folder = kafka.bootstrap_servers, tmp_path / "first"
    first = start_job(spark, servers, folder, topic_prefix, take_over=False)
    second = None
    try:
        with Wire(first) as wire:
            wire.ask("declare", topic_id="id")
            wait_for(lambda: owner_of(servers, topic_prefix).state_epoch == first.applied.state_epoch)
            with pytest.raises(Invalid, match="this folder has none") as empty:
                start_job(spark, servers, tmp_path / "second", topic_prefix, take_over=False)
            assert str(folder) in empty.value.message
            shutil.copytree(folder / "state", tmp_path / "copy" / "state", ignore=shutil.ignore_patterns("LOCK"))
            with pytest.raises(Fenced, match="another job runs with the prefix"):
                start_job(spark, servers, tmp_path / "copy", topic_prefix, take_over=False)
            wire.ask("dispatch", ranges=[{"first": 0, "last": 99}])  # the owner is not disturbed
            popped = wire.ask("pop", group="g", max_messages=2, invisible_time_ms=60_000)
            handles = [{"group": "g", "handle": popped["handle"]}]
            wire.ask("reject", handles=handles, entries=[{"handle": 0, "offsets": [[0, 1]]}])
            wait_for(lambda: letters_in(servers, topic_prefix) == 2, first)

            sends = Sends(first)
            others = spark.newSession()  # a session runs one query of a name
            second = start_job(others, servers, tmp_path / "second", topic_prefix, take_over=True)
            assert isinstance(first.failure, Fenced)
            assert str(tmp_path / "second") in first.failure.message
            decided, sent = first.applied, sends.count
            wire.job = second
            for _ in range(5):
                wire.ask("pop", group="g", max_messages=1, invisible_time_ms=60_000)
            assert (first.applied, sends.count) == (decided, sent)
            rows = audit_rows(first.folder.delta, "operations")
            first.stop()
            assert audit_rows(first.folder.delta, "operations") == rows
            assert (first.applied, sends.count) == (decided, sent)
            wait_for(lambda: len(audit_rows(second.folder.delta, "operations")) > len(rows), second)
            wait_for(lambda: not second.outbox.undelivered_bytes, second)
            assert letters_in(servers, topic_prefix) == 2  # decided again, and recognised
    finally:
        first.stop()
        if second is not None:
            second.stop()
    assert owner_of(servers, topic_prefix).ended
    again = start_job(spark, servers, tmp_path / "second", topic_prefix, take_over=False)
    again.stop()
    owners = DeltaTable(tmp_path / "second" / "delta" / "owners").to_pyarrow_table().to_pylist()
    taken_over, in_order = sorted(owners, key=lambda row: row["term"])
    assert str(folder) in taken_over["took_over_from"]
    assert (in_order["took_over_from"], in_order["folder"]) == (None, str(tmp_path / "second"))
    assert taken_over["state_epoch"] == in_order["state_epoch"] == again.applied.state_epoch
    with pytest.raises(Invalid, match="belongs to another state"):
        start_job(spark, servers, folder, topic_prefix, take_over=False)


@pytest.mark.long
def test_by_its_commands(kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str) -> None:
    servers = kafka.bootstrap_servers
    options = ("--bootstrap-servers", servers, "--prefix", topic_prefix, "--var", str(ROOT / "var"))
    started: list[Up] = []

    def up(name: str, *more: str) -> Up:
        (tmp_path / name).mkdir(exist_ok=True)
        started.append(Up(tmp_path / name / "job", *options[:4], *more))
        return started[-1]

    def takes_over(first: Up) -> Up:
        second = up("second", "--take-over")
        assert first.wait() == 2
        ended_s = time.time()
        owner = owner_of(servers, topic_prefix)
        assert owner.folder == str(second.folder)
        fenced_s = ended_s - owner.since_ms / 1000
        print(f"the job ended {fenced_s:.1f} s after it was replaced")
        assert fenced_s < FENCE_S_MAX
        assert "another job has taken the prefix" in "".join(first.lines)
        second.wait_for("ready after")
        return second

    try:
        first = up("first")
        first.wait_for("ready after")
        declare = '{"type":"declare","topic":"t","queue_id":0,"topic_id":"T"}'
        assert run(first, "ops", "--json", text=declare).returncode == 0
        wait_for(lambda: owner_of(servers, topic_prefix).has_decided)

        empty = run_for(tmp_path / "not-mounted", "up", *options)
        assert empty.returncode == 2
        assert f"folder {first.folder}" in empty.stderr
        assert "this folder has none" in empty.stderr

        second = takes_over(first)
        wait_for(lambda: owner_of(servers, topic_prefix).has_decided)
        second.end()  # SIGKILL
        second = up("second")
        second.wait_for("ready after")
        assert "prefix_waits" not in (second.folder / "job.log").read_text()
        assert second.stop(signal.SIGTERM)[0] == 0

        older = run(first, "up", *options)
        assert older.returncode == 2
        assert "belongs to another state than that of this folder" in older.stderr
        restored = run(first, "restore", *options)
        assert restored.returncode == 0, restored.stderr
        first = up("first")
        first.wait_for("ready after")
        assert first.stop(signal.SIGTERM)[0] == 0
    finally:
        for each in started:
            each.end()
