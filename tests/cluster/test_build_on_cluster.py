"""Claim: on a cluster the messages of any producer are poppable, and units and rows are those of the embedded builder.

Method: topics of a plain and a transactional producer, with repeats, a compacted one and one with inner batches. The
query is stopped in the middle, and repeats a micro-batch whose commit is taken from it. What Spark's own reader finds
in the state store, and what left for the tables, is compared with the builder over RocksDB for the same topics; what
left for the ops topic, signed, is decided by the kernel. The whole job is run once, for what clients pop and the table.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from pydantic import SecretStr
from pyspark.sql import functions as f

from broker_state.consume_queue import Scan, Units, units_between
from broker_state.kernel.context.queue_state import load_queue
from broker_state.store.keys import end_of_prefix, queue_prefix
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import BUILDER_FAMILIES, UNITS, RocksStore
from connectors.kafka.cluster_topics import ClusterTopics, ensure_cluster_topics
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.spark_source import source_options
from connectors.kafka.topic_admin import create_message_topic, describe
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.unit_columns import unit_columns
from pipelines.build_units.unit_tables import DELTA_SCHEMA, delta_rows, units_by_queue
from pipelines.cluster.audit.unit_entries import UnitsKey, completed_units
from pipelines.cluster.checkpoint_identity import FORMAT, CheckpointIdentity
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.cluster.decide.extent import Cursors
from pipelines.cluster.keyed_log import KeyedLog
from pipelines.cluster.queues.message_queues import MessageQueues
from pipelines.cluster.queues.queue_shard import BuiltQueue, QueueMeta
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entry import EntryKind
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.decide_ops.order import order
from pipelines.job_settings import JobSettings, KeySetting
from popstream import Producer, Transport
from popstream.exchange.partitioner import queue_of_ops_key
from popstream.settings import ClientSettings
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.wire.base_errors import Corrupt
from popstream.wire.command import Pop
from popstream.wire.queue_name import QueueName
from popstream.wire.signing import OperationVerifier
from tests.support.cluster_log import take_last_commit
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from broker_state.consume_queue import ConsumeQueue
    from connectors.kafka.embedded import EmbeddedKafka

Rows = list[dict[str, Any]]
PATIENCE_S = 400.0
"""On a machine that does other things."""


class Lab:
    """A job on a cluster, and what it is compared with."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, folder: Path, prefix: str) -> None:
        self.spark, self.servers, self.connection = spark, kafka.bootstrap_servers, kafka.connection
        self.folder, self.prefix = folder, prefix
        self.settings = JobSettings(
            folder=folder / "unused",
            topic_prefix=prefix,
            message_topics=f"{prefix}-*",
            queue_types={f"{prefix}-batches": "batch"},
            ops_partitions=2,
            results_partitions=4,
            flush_interval_s=3,
            build_records_per_micro_batch_max=200,
            admin_keys={"builder": KeySetting(secret=SecretStr("x" * 32))},
            admin_key_active="builder",
        )
        self.cluster = ClusterSettings(
            checkpoint=str(folder / "checkpoint"), tables=str(folder / "tables"), tasks=2, audit_partitions=2
        )
        self.producer = KafkaProducer(bootstrap_servers=self.servers, acks="all", linger_ms=5)

    def job(self) -> ClusterJob:
        return ClusterJob(self.settings, self.cluster, self.connection, self.spark)

    @contextlib.contextmanager
    def building(self) -> Iterator[StreamingQuery]:
        """Only what builds queues."""
        topics = Topics.of(self.prefix)
        ensure_topics(self.connection, topics, TopicSettings(ops_partitions=2, results_partitions=4))
        identity = CheckpointIdentity(
            format=FORMAT, prefix=self.prefix, state_epoch="epoch", seed=1, ops_topic_id="id", ops_partitions=2
        )
        failures: list[BaseException] = []
        queues = MessageQueues(
            self.spark,
            self.connection,
            self.settings,
            identity,
            ensure_cluster_topics(self.connection, ClusterTopics.of(self.prefix), 2),
            checkpoint=f"{self.cluster.checkpoint}/build_units",
            tasks=2,
            on_failure=failures.append,
        )
        try:
            yield queues.start()
        finally:
            queues.stop()
        assert failures == []

    def topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        topic = f"{self.prefix}-{name}"
        create_message_topic(self.connection, topic, partitions, configs=configs or {})
        return topic

    def send(self, topic: str, count: int, queue_id: int = 0, **fields: Any) -> None:
        for number in range(count):
            self.producer.send(topic, **{"value": b"value %d" % number, **fields}, partition=queue_id)
        self.producer.flush()

    def topics(self) -> dict[str, MessageTopic]:
        reader = TopicReader(self.connection, client_id="lab")
        try:
            return reader.choose(lambda names: sorted(name for name in names if name.startswith(f"{self.prefix}-")))
        finally:
            reader.close()

    def metas(self) -> dict[QueueName, QueueMeta]:
        """What the job says of its queues."""
        with KeyedLog(self.connection, f"{self.prefix}.cluster_queues") as log:
            return {
                queue_of_ops_key(key): built.meta for key, value in log.to_end() if (built := BuiltQueue.decode(value))
            }

    def wait(self, query: StreamingQuery | None = None) -> None:
        """Until all queues are built to the ends of their logs."""
        topics = self.topics()

        def is_built() -> bool:
            assert query is None or query.exception() is None
            metas = self.metas()
            return all(
                (meta := metas.get((name, queue_id))) is not None
                and meta.record is not None
                and (meta.record.topic_id, meta.record.end_offset) == (topic.topic_id, end)
                for name, topic in topics.items()
                for queue_id, end in topic.ends.items()
            )

        wait_for(is_built, patience_s=PATIENCE_S, look_each_s=1)
        if query is not None:
            query.processAllAvailable()  # what has left is committed to the state store

    def records(self, topic: str) -> list[Any]:
        """All records of a topic, in the order of each partition."""
        consumer = KafkaConsumer(bootstrap_servers=self.servers)
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        records: list[Any] = []
        while any(consumer.position(place) < ends[place] for place in places):
            records += chain.from_iterable(consumer.poll(timeout_ms=500).values())
        consumer.close()
        return records

    def sent_rows(self) -> Rows:
        """The rows that left for the table, each entry once."""
        cursors = Cursors({})
        entries = [
            completed_units(record.key, record.value, "epoch").select(DELTA_SCHEMA.names)
            for record in self.records(ClusterTopics.of(self.prefix).audit)
            if record.key[-1] == EntryKind.UNITS and cursors.take(UnitsKey.decode(record.key)) is not None
        ]
        return in_order(pa.concat_tables(entries).to_pylist())

    def decided(self) -> MemoryKv:
        """The state that the kernel has after what left for the ops topic."""
        kv = MemoryKv()
        verifier = OperationVerifier.of(self.settings.admin_ring, Topics.of(self.prefix).ops)
        decider = OpsDecider(kv, Decoder(2, verifier=verifier).decode, results_partitions=4)
        found = [
            KafkaRecord(each.partition, each.offset, each.timestamp, each.key, each.value, len(each.value))
            for each in self.records(Topics.of(self.prefix).ops)
        ]
        decider.decide_at_once(order(found, {}))
        kv.write(decider.overlay)
        return kv

    def table_rows(self) -> Rows:
        """The rows of the table, without what differs by build."""
        found = DeltaTable(f"{self.cluster.tables}/consume_queue").to_pyarrow_table().select(DELTA_SCHEMA.names)
        return in_order(found.to_pylist())

    def stored(self) -> dict[QueueName, dict[bytes, bytes]]:
        """The values of all queues, as Spark's own reader finds them in the state store."""
        frame = (
            self.spark.read.format("statestore")
            .option("path", f"{self.cluster.checkpoint}/build_units")
            .option("stateVarName", "units")
            .load()
        )
        values: dict[QueueName, dict[bytes, bytes]] = {}
        for row in frame.select(
            f.col("key.queue"), f.col("user_map_key.bytes").alias("at"), f.col("user_map_value.bytes").alias("value")
        ).collect():
            values.setdefault(queue_of_ops_key(row.queue.encode()), {})[bytes(row.at)] = bytes(row.value)
        return values

    def embedded(self, folder: Path) -> tuple[dict[QueueName, ConsumeQueue], dict[QueueName, dict[bytes, bytes]], Rows]:
        """The records, the values and the rows of the builder over RocksDB, which reads the topics as they are now."""
        topics = self.topics()
        types = {name: self.metas()[name, 0].record.queue_type for name in topics}  # type: ignore[union-attr]
        batch_topics = frozenset(name for name, queue_type in types.items() if queue_type == "batch")
        assign = {name: sorted(topic.ends) for name, topic in topics.items()}
        frame = (
            self.spark.read.format("kafka")
            .options(**source_options(self.connection))
            .option("includeHeaders", "true")
            .option("assign", json.dumps(assign))
            .load()
        )
        found = dict(units_by_queue(unit_columns(frame, batch_topics).toArrow(), batch_topics=batch_topics))
        with RocksStore(folder, BUILDER_FAMILIES) as store:
            builder = Builder(store, Outbox(store), "epoch")
            builder.update_topics(topics, types)
            builder.append(
                {
                    (name, queue_id): Scan(topic.starts[queue_id], end, found.get((name, queue_id), Units.of([])))
                    for name, topic in topics.items()
                    for queue_id, end in topic.ends.items()
                }
            )
            values = {}
            rows: Rows = []
            for queue, record in builder.queues.items():
                prefix = queue_prefix(*queue)
                stored = store.scan(UNITS, prefix, end_of_prefix(prefix))
                if of_queue := {key[len(prefix) :]: value for key, value in stored}:
                    values[queue] = of_queue
                units = units_of(builder, queue)
                rows += delta_rows(queue, record.topic_id, record.queue_type, units).to_pylist()
            return dict(builder.queues), values, in_order(rows)

    def pop_all(self, topic: str, queue_id: int = 0) -> list[int]:
        """The queue offsets that a new group gets."""
        settings = ClientSettings(bootstrap_servers=self.servers, client_id="lab", prefix=self.prefix)
        offsets: list[int] = []
        group = secrets.token_hex(4)
        with Transport(settings) as transport:
            while True:
                answer = transport.request(
                    Pop(v=1, topic=topic, queue_id=queue_id, group=group, max_messages=500, invisible_time_ms=600_000)
                )
                if not answer.messages:
                    return offsets
                offsets += chain.from_iterable(range(run.first, run.last + 1) for run in answer.messages)


def units_of(builder: Builder, queue: QueueName) -> Units:
    return units_between(builder.queues[queue], builder.get(queue), 0, 1 << 62)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["topic_id"], row["queue_offset"]))


def in_transactions(lab: Lab, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=lab.servers, transactional_id=secrets.token_hex(4))
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for _ in range(number + 1):
            producer.send(topic, b"in a transaction", partition=0)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


def differences(found: dict[Any, Any], wanted: dict[Any, Any]) -> list[Any]:
    return sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))[:9]


def numbered(rows: Rows) -> dict[int, Any]:
    return dict(enumerate(rows))


@pytest.fixture
def lab(cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Lab:
    return Lab(cluster_spark, kafka, tmp_path, topic_prefix)


def test_queues_are_built_as_by_the_embedded_job(lab: Lab, tmp_path: Path) -> None:
    plain, paid, batches = lab.topic("plain", 2), lab.topic("transactions"), lab.topic("batches")
    lab.send(plain, 300, key=b"order")
    lab.send(plain, 20, 1, headers=[("popstream-tag", b"paid")])
    in_transactions(lab, paid)
    with lab.building() as query:
        lab.wait(query)
        compacted = lab.topic("compacted", configs={"cleanup.policy": "compact"})
        lab.send(compacted, 30, key=b"one of many")
        for name in (b"17", b"18", b"17", b"17"):
            lab.send(plain, 1, 1, headers=[("popstream-dedup-id", name)])
        lab.send(plain, 700)
    # It is stopped in the middle of what was sent last.
    take_last_commit(tmp_path / "checkpoint" / "build_units")
    lab.send(plain, 2, 1, headers=[("popstream-dedup-id", b"18")])
    with Producer(lab.servers, prefix=lab.prefix, queue_types={batches: "batch"}) as producer:
        sent = [producer.send(batches, b"%d" % number, key=b"k%d" % number, queue_id=0) for number in range(40)]
        producer.flush()
    assert [future.result().queue_id for future in sent] == [0] * 40
    with lab.building() as query:
        lab.wait(query)
    records, values, rows = lab.embedded(tmp_path / "queues")
    assert {queue: meta.record for queue, meta in lab.metas().items()} == records
    assert records[compacted, 0].queue_type == "sparse"
    assert records[batches, 0].message_count == 40
    repeats = [row["duplicate_of"] for row in rows if (row["topic"], row["queue_id"]) == (plain, 1)]
    assert repeats == [None] * 22 + [20, 20, 21, 21]
    assert records[paid, 0].end_offset - records[paid, 0].unit_count == 4 + 2 + 4, "markers, and what was aborted"
    assert differences(numbered(lab.sent_rows()), numbered(rows)) == []
    stored = lab.stored()
    different = {queue: differences(stored.get(queue, {}), values.get(queue, {})) for queue in records}
    assert not any(different.values()), different
    overlay = Overlay(lab.decided())
    for (topic, queue_id), record in records.items():
        queue = load_queue(overlay, topic, queue_id)
        assert queue is not None
        assert (queue.record.topic_id, queue.record.commit_position) == (record.topic_id, record.end_offset)
        repeated = 4 if (topic, queue_id) == (plain, 1) else 0
        assert queue.record.holes == record.end_offset - record.unit_count + repeated


def test_a_topic_that_loses_records_and_is_made_anew_is_read_on(lab: Lab, tmp_path: Path) -> None:
    topic = lab.topic("changing")
    lab.send(topic, 100)
    admin = KafkaAdminClient(bootstrap_servers=lab.servers)
    with lab.building() as query:
        lab.wait(query)
        admin.delete_records({TopicPartition(topic, 0): 40})
        wait_for(lambda: (record := lab.metas()[topic, 0].record) is not None and record.start_offset == 40)
        old = lab.sent_rows()
        admin.delete_topics([topic])
        wait_for(lambda: topic not in describe(lab.connection, [topic]))
        lab.topic("changing")
        lab.send(topic, 7)
        lab.wait(query)
    records, values, rows = lab.embedded(tmp_path / "queues")
    assert lab.metas()[topic, 0].record == records[topic, 0]
    assert differences(numbered(lab.sent_rows()), numbered(in_order(old + rows))) == []
    assert differences(lab.stored()[topic, 0], values[topic, 0]) == []
    queue = load_queue(Overlay(lab.decided()), topic, 0)
    assert queue is not None
    assert (queue.record.topic_id, queue.record.commit_position) == (records[topic, 0].topic_id, 7)

    # Offsets of another log would be places that rows have already.
    log = ClusterTopics.of(lab.prefix).queue_log
    admin.delete_topics([log])
    wait_for(lambda: log not in describe(lab.connection, [log]))
    admin.close()
    with pytest.raises(Corrupt, match="cluster_queue_log ends below what was taken of it"), lab.building():
        pass


def test_messages_of_a_plain_producer_are_popped_and_their_rows_written(lab: Lab, tmp_path: Path) -> None:
    topic = lab.topic("plain")
    lab.send(topic, 60)
    with lab.job() as job:

        def is_there() -> bool:
            assert job.failure is None
            return len(lab.table_rows()) == 60

        wait_for(is_there, patience_s=PATIENCE_S, look_each_s=1)
        assert lab.pop_all(topic) == list(range(60))
    _, _, rows = lab.embedded(tmp_path / "queues")
    assert differences(numbered(lab.table_rows()), numbered(rows)) == []
