"""A log in a topic, decided by Spark's operator on local threads and by the kernel over any store; what left both."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from broker_state.store.overlay import Kv, Overlay
from connectors.delta.rows import decode_rows
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import create_message_topic
from pipelines.cluster.decide.decide_query import start_decide_query
from pipelines.cluster.decide.shard import ShardSettings
from pipelines.cluster.decide.shard_rows import PROGRESS_MAPS, content_of, progress_of
from pipelines.cluster.migration.stored_state import rows_of_checkpoint, shards_of_checkpoint
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entries import read_frame, read_notifications, read_slice
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.decide_ops.order import order
from popstream.kafka_connection import KafkaConnection
from popstream.wire.handle import Signer
from tests.model.generator import PARTITIONS
from tests.support.in_process.folding import KERNEL_FAMILIES, RESULTS_PARTITIONS
from tests.support.in_process.memory_maps import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pipelines.cluster.decide.decide_query import Beginning
    from tests.model.reference_model import Record

__all__ = [
    "Left",
    "Log",
    "decide",
    "decided_entries",
    "left_by",
    "start_deciding",
    "stored_families",
    "stored_quarantine",
    "take_last_commit",
    "with_signed_handles",
]

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
HANDLE = re.compile(rb'"(1\.[\w-]{20,})"')
UNREADABLE = [b"", b"no json", b"[]", b'{"v":9,"type":"pop"}', b'{"v":1,"type":"dance","op_id":"u1","reply_to":1}']


class Log:
    """A log in a topic of a broker, with the times that it was generated with, and unreadable records in the middle."""

    partition_count = PARTITIONS

    def __init__(
        self,
        connection: KafkaConnection,
        prefix: str,
        records: Sequence[Record],
        unreadable: Sequence[bytes] = UNREADABLE,
    ) -> None:
        self.connection, self.prefix = connection, prefix
        self.topics, self.internal = Topics.of(prefix), ClusterTopics.of(prefix)
        configs = {
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": str(2**63 - 1),
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
            "retention.ms": "-1",
        }
        create_message_topic(connection, self.topics.ops, PARTITIONS, configs=configs)
        create_message_topic(connection, self.topics.results, RESULTS_PARTITIONS)
        for name in (self.topics.notifications, *self.internal.names):
            create_message_topic(connection, name, 1)
        counts: Counter[int] = Counter()
        self.records: list[KafkaRecord] = []
        for at, record in enumerate(records):
            for value in (record.value, *(unreadable if at == len(records) // 2 else ())):
                place = record.partition, counts[record.partition], record.timestamp_ms
                self.records.append(KafkaRecord(*place, record.key, value, len(value)))
                counts[record.partition] += 1

    def write(self, records: Sequence[KafkaRecord]) -> None:
        # Some records are larger than those of a client.
        producer = KafkaProducer(**self.connection.for_kafka_python(), linger_ms=20, max_request_size=MESSAGE_BYTES_MAX)
        for each in records:
            producer.send(
                self.topics.ops,
                key=each.key,
                value=each.value,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
            )
        producer.flush()
        producer.close()

    def read(self, topic: str) -> Iterator[Any]:
        """All records of a topic, in the order of each partition."""
        consumer = KafkaConsumer(**self.connection.for_kafka_python(), group_id=None, enable_auto_commit=False)
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=500).values():
                yield from records
        consumer.close()


def decide(
    spark: SparkSession,
    log: Log,
    run_id: str,
    checkpoint: str,
    *,
    seed: int = SEED,
    beginning: Beginning | None = None,
    signer: Signer | None = None,
) -> None:
    """Decide all that is in the log, with a memory of its own for each run."""
    at_once = max(1, len(log.records) // 6)
    query = start_deciding(
        spark, log.connection, log.prefix, run_id, checkpoint, at_once, seed=seed, beginning=beginning, signer=signer
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def start_deciding(
    spark: SparkSession,
    connection: KafkaConnection,
    prefix: str,
    run_id: str,
    checkpoint: str,
    records_per_micro_batch_max: int,
    *,
    seed: int = SEED,
    beginning: Beginning | None = None,
    signer: Signer | None = None,
) -> StreamingQuery:
    """Start the query that decides the log of a prefix."""
    return start_decide_query(
        spark,
        connection,
        ShardSettings(run_id, PARTITIONS, RESULTS_PARTITIONS, signer, seed, 1 << 20),
        prefix=prefix,
        audit_partitions=1,
        state_epoch="epoch",
        records_per_micro_batch_max=records_per_micro_batch_max,
        tasks=2,
        checkpoint=checkpoint,
        beginning=beginning,
    )


def take_last_commit(checkpoint: Path) -> int:
    """Let Spark repeat the last micro-batch that it has committed; its number."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink()
    return last


def stored_quarantine(spark: SparkSession, checkpoint: str) -> dict[int, dict[int, str]]:
    """The errors of records that each shard could not decide."""
    return progress_of(rows_of_checkpoint(spark, checkpoint, PARTITIONS, PROGRESS_MAPS)).quarantined


def stored_families(spark: SparkSession, checkpoint: str) -> dict[str, dict[bytes, bytes]]:
    """The state of all shards, as Spark's own reader finds it in the state store."""
    families: dict[str, dict[bytes, bytes]] = {name: {} for name in KERNEL_FAMILIES}
    for family, key, value in content_of(shards_of_checkpoint(spark, checkpoint, PARTITIONS), SEED):
        families[family][key] = value
    return families


def with_signed_handles(records: Sequence[Record], signer: Signer) -> list[Record]:
    """The same records with handles as the job has signed them; some are left as they are, which is refused."""

    def signed(found: re.Match[bytes]) -> bytes:
        is_left = zlib.crc32(found[1]) % 7 == 0
        return found[0] if is_left else b'"' + signer.sign(found[1].decode()).encode() + b'"'

    return [record._replace(value=HANDLE.sub(signed, record.value)) for record in records]


class Left:
    """What has left a runner, by kind, however it was cut into records."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[Any]] = defaultdict(Counter)

    def add_frame(self, partition: int, frame: bytes) -> None:
        for answer in msgspec.json.decode(frame)["answers"]:
            self.kinds["answers"][partition, msgspec.json.encode(answer)] += 1

    def add_audit(self, kind: int, value: bytes) -> None:
        if kind == EntryKind.DEAD_LETTER:
            self.kinds["dead letters"][value] += 1
            return
        table, data = read_slice(value)
        for row in decode_rows(table, [data]).to_pylist():
            self.kinds[table][repr(row)] += 1


class Store(Kv, Protocol):
    """`MemoryKv` and `RocksStore`."""

    def write(self, overlay: Overlay) -> object:
        """Take what the overlay changed."""


def decided_entries(kv: Store, records: Sequence[KafkaRecord], signer: Signer | None = None) -> list[Entry]:
    """What leaves when all records are decided at once over `kv`."""
    decoder = Decoder(PARTITIONS, signer)
    decider = OpsDecider(kv, decoder.decode, results_partitions=RESULTS_PARTITIONS, signer=signer)
    decider.decide_at_once(order(records, {}))
    entries = decider.entries(1)
    kv.write(decider.overlay)
    return entries


def left_by(entries: Sequence[Entry]) -> dict[str, Counter[Any]]:
    left = Left()
    for entry in entries:
        if entry.kind == EntryKind.ANSWERS:
            left.add_frame(*read_frame(entry.value))
        elif entry.kind == EntryKind.NOTIFICATIONS:
            left.kinds["notifications"].update(read_notifications(entry.value))
        else:
            left.add_audit(entry.kind, entry.value)
    return left.kinds
