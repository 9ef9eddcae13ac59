"""A job on a cluster for clients and operators: messages are consumed, leases end, tables follow; what is refused."""

from __future__ import annotations

import re
import shutil
import threading
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from prometheus_client import CollectorRegistry, generate_latest

from connectors.delta.log.table_log import require_table_log
from connectors.delta.row_totals import WrittenTotals
from connectors.delta.tables import AUDIT_TABLES, table_path
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.topic_admin import open_admin
from pipelines.cluster.checkpoint_identity import stored_identity, write_identity
from pipelines.cluster.hadoop_file import HadoopFile
from pipelines.cluster.watch.cluster_metrics import ClusterMetrics
from popstream import Consumer, Producer
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError
from tests.cluster.job_here import LIMIT_S, job_of, orders, until
from tests.support.processes.up_process import run_for
from tests.support.written_rows import unequal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.cluster.cluster_job import ClusterJob
    from popstream.message import Message

MESSAGES = 60


def test_messages_are_consumed_leases_end_and_the_tables_follow(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    topic, client = orders(kafka, topic_prefix, queues=2)
    with job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job:
        with Producer(**client, dispatch=True) as producer:
            for number in range(MESSAGES):
                producer.send(topic, b"%d" % number, key=b"%d" % number)
        seen: list[bytes] = []
        with Consumer(**client, group="g", topics=[topic]) as consumer:
            forgotten = consumer.pop(topic, max_messages=1, invisible_time_ms=2_000)
            assert forgotten, "there are messages"

            def handle(message: Message) -> None:
                seen.append(message.value or b"")

            # Of the lease that is forgotten nobody tells the job: a tick ends it.
            with Consumer(**client, group="g", topics=[topic]) as other:
                worker = threading.Thread(target=other.run, args=(handle,), daemon=True)
                worker.start()
                until(lambda: len({*seen}) == MESSAGES, job)
                other.stop()
                worker.join(LIMIT_S)
        deliveries = str(tmp_path / "tables" / "deliveries")

        def steps() -> dict[str, int]:
            rows = cluster_spark.read.format("delta").load(deliveries).groupBy("step")
            return {row[0]: row[1] for row in rows.count().collect()}

        until(lambda: steps().get("expired", 0) >= 1 and steps().get("acked", 0) >= 1, job)
        registry = CollectorRegistry()
        registry.register(ClusterMetrics(lambda: cluster_spark.streams.active))
        shown = generate_latest(registry).decode()
        for partition in range(2):
            assert f'popstream_shard_lag_records{{partition="{partition}",query="decide_ops"}} ' in shown
        assert 'popstream_cluster_spark_batch_id{query="audit"} ' in shown
        retention = job.answers._watch._retention
        assert retention._written().keys() == set(range(job.cluster.audit_partitions))
        retention.look()
        assert retention.overdue == 0
        with open_admin(job.connection) as admin:
            audit = admin.configs([job.internal.audit])[job.internal.audit]
        assert audit["retention.bytes"] == "-1", "no default of the broker deletes what waits"
        with pytest.raises(Invalid, match="belongs to another state"):
            job_of(cluster_spark, kafka, topic_prefix, tmp_path / "other").start()
    # The same state goes on.
    with job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job, Producer(**client, dispatch=True) as producer:
        producer.send(topic, b"later", key=b"1").result(LIMIT_S)
        with Consumer(**client, group="g", topics=[topic]) as consumer:
            popped: list[bytes | None] = []

            def pop() -> bool:
                popped.extend(message.value for message in consumer.pop(topic, poll_time_ms=1_000))
                return bool(popped)

            until(pop, job)
            assert popped == [b"later"]
    require_counted_rows(tmp_path / "tables")
    tables = ("--tables", str(tmp_path / "tables"))
    checked = run_for(tmp_path / "none", "check", *tables)
    assert checked.returncode == 0, checked.stdout
    DeltaTable(deliveries).delete("step = 'acked' AND first_offset = 0")
    checked = run_for(tmp_path / "none", "check", *tables)
    assert checked.returncode != 0
    assert "deliveries expect_rows_as_written" in checked.stdout, checked.stdout


def require_counted_rows(root: Path) -> None:
    """Of each table the rows are those that its log counts, of two runs of a job."""
    assert unequal(root, *AUDIT_TABLES.values()) == []
    for name in ("operations", "deliveries"):
        (totals,) = WrittenTotals(name, require_table_log(table_path(root, name)).txns).by_epoch.values()
        counted = sum(total.rows for total in totals.values() if total is not None)
        assert counted == DeltaTable(table_path(root, name)).to_pyarrow_table().num_rows > 0


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"prefix": "another"}, Invalid, "is the state of prefix 'another'"),
        ({"ops_topic_id": "gone"}, Corrupt, "was made anew since"),
        ({"ops_partitions": 7}, Corrupt, "queues would move between partitions"),
        ({"format": 1}, Invalid, "made by another version"),
    ],
)
def test_a_state_of_another_job_is_refused(
    change: dict[str, object],
    error: type[PopstreamError],
    text: str,
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    job_of(cluster_spark, kafka, topic_prefix, tmp_path).start().stop()
    state = str(tmp_path / "state")
    identity = stored_identity(cluster_spark, state)
    assert identity is not None
    HadoopFile(cluster_spark, f"{state}/popstream.json").delete()
    write_identity(cluster_spark, state, msgspec.structs.replace(identity, **change))
    with pytest.raises(error, match=text):
        job_of(cluster_spark, kafka, topic_prefix, tmp_path).start()


def test_a_checkpoint_without_an_identity_is_refused(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    job_of(cluster_spark, kafka, topic_prefix, tmp_path).start().stop()
    HadoopFile(cluster_spark, f"{tmp_path / 'state'}/popstream.json").delete()
    with pytest.raises(Invalid, match="was deleted: name another place"):
        job_of(cluster_spark, kafka, topic_prefix, tmp_path).start()


def test_a_log_that_was_deleted_under_the_state_is_refused(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    job_of(cluster_spark, kafka, topic_prefix, tmp_path).start().stop()
    with open_admin(KafkaConnection(kafka.bootstrap_servers)) as admin:
        admin.delete(f"{topic_prefix}.ops")
    with pytest.raises(Corrupt, match="was made anew since"):
        job_of(cluster_spark, kafka, topic_prefix, tmp_path).start()


def append_unreadable(connection: KafkaConnection, ops: str) -> None:
    producer = KafkaProducer(**connection.for_kafka_python())
    producer.send(ops, b"no operation", partition=0).get(60)
    producer.close()


def test_a_log_that_has_lost_records_before_they_were_decided_is_refused(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    connection = KafkaConnection(kafka.bootstrap_servers)
    ops = f"{topic_prefix}.ops"
    with job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job:
        append_unreadable(connection, ops)
        until(lambda: job.answers._watch.progress.decided().get(0) == 1, job)
    append_unreadable(connection, ops)
    admin = KafkaAdminClient(**connection.for_kafka_python())
    admin.delete_records({TopicPartition(ops, 0): 2})
    admin.close()
    with pytest.raises(Corrupt, match="lost records before they were decided"):
        job_of(cluster_spark, kafka, topic_prefix, tmp_path).start()


class Unreadable:
    """Jobs on one checkpoint, one after the other, each of which writes a row of `rejected`."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, prefix: str, root: Path) -> None:
        self.spark, self.kafka, self.prefix, self.root = spark, kafka, prefix, root
        self.rejected = str(root / "tables" / "rejected")

    def job(self) -> ClusterJob:
        return job_of(self.spark, self.kafka, self.prefix, self.root)

    def rows(self) -> int:
        return self.spark.read.format("delta").load(self.rejected).count()

    def write_one(self) -> None:
        with self.job() as job:
            rows = self.rows()
            append_unreadable(KafkaConnection(self.kafka.bootstrap_servers), f"{self.prefix}.ops")
            until(lambda: self.rows() == rows + 1, job)


@pytest.fixture(scope="module")
def unreadable(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Unreadable:
    """With two jobs done, and in the folder `copy` the checkpoint as the first one has left it."""
    made = Unreadable(cluster_spark, kafka, f"t{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("unreadable"))
    made.write_one()
    shutil.copytree(made.root / "state", made.root / "copy")
    made.write_one()
    return made


def test_an_older_copy_of_a_checkpoint_is_refused(unreadable: Unreadable) -> None:
    """Spark would go on with it, and the tables would take its micro-batches for repeated ones."""
    state, copy = unreadable.root / "state", unreadable.root / "copy"
    newest = state.rename(unreadable.root / "newest")
    copy.rename(state)
    with pytest.raises(Corrupt, match=r"rejected has rows of micro-batch .* it is an older copy"):
        unreadable.job().start()
    state.rename(copy)
    newest.rename(state)
    unreadable.job().start().stop()


def test_a_table_that_was_restored_is_refused_until_it_has_its_rows_again(unreadable: Unreadable) -> None:
    rows = unreadable.rows()
    unreadable.spark.sql(f"RESTORE TABLE delta.`{unreadable.rejected}` TO VERSION AS OF 1")
    with pytest.raises(Corrupt, match="rejected was RESTOREd to a version before the last commit") as raised:
        unreadable.job().start()
    advised = re.search(r"RESTORE TABLE .* TO VERSION AS OF \d+", raised.value.message)
    assert advised is not None
    unreadable.spark.sql(advised.group())
    unreadable.write_one()
    assert unreadable.rows() == rows + 1


def test_an_audit_topic_that_was_made_anew_is_refused(unreadable: Unreadable) -> None:
    """The last one: it is not made whole again."""
    with open_admin(KafkaConnection(unreadable.kafka.bootstrap_servers)) as admin:
        admin.delete(ClusterTopics.of(unreadable.prefix).audit)
    with pytest.raises(Corrupt, match="cluster_audit ends below what the tables have of it"):
        unreadable.job().start()


def test_leases_end_after_the_topic_of_deadlines_was_deleted(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    """A shard tells the ticker of its deadlines when it decides a record, and nothing is sent to it any more."""
    topic, client = orders(kafka, topic_prefix, queues=1)
    with job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job:
        with Producer(**client, dispatch=True) as producer:
            producer.send(topic, b"1").result(LIMIT_S)
        consumer = Consumer(**client, group="g")
        until(lambda: bool(consumer.pop(topic, invisible_time_ms=15_000)), job)
    with open_admin(KafkaConnection(kafka.bootstrap_servers)) as admin:
        admin.delete(ClusterTopics.of(topic_prefix).deadlines)
    deliveries = str(tmp_path / "tables" / "deliveries")

    def is_expired() -> bool:
        return cluster_spark.read.format("delta").load(deliveries).where("step = 'expired'").count() == 1

    with job_of(cluster_spark, kafka, topic_prefix, tmp_path) as job:
        until(is_expired, job)
    consumer.close(release=False)
