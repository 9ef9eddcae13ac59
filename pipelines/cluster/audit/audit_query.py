"""The query that writes the tables: entries of the audit topic to Delta, each exactly once, and copies of letters.

A repeated task of another query sends its entries again, and a new start may cut them in another way. What they have
is known by its places in the log, so of each entry the rows count that are above all that is written: `Cursors`. They
are stored for each micro-batch before it is written, and a micro-batch that is repeated begins with the same ones.
Delta recognises the repeated commit by its transaction id.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.erased_values import RejectedHeads
from connectors.delta.session import join_pool
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.spark_source import source_options, starting_offsets
from connectors.kafka.topic_admin import describe
from pipelines.cluster.audit.dead_letter_copies import DeadLetterCopies
from pipelines.cluster.audit.entry_rows import EntryRows
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.unit_entries import UnitsKey
from pipelines.cluster.audit.written_files import AuditOffset
from pipelines.cluster.audit.written_tables import WrittenTables
from pipelines.cluster.checkpoint_identity import Beginnings
from pipelines.cluster.checkpoint_layout import AUDIT
from pipelines.cluster.decide.extent import KEY_FORMAT, Cursors
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.cluster.hadoop_file import HadoopFile
from pipelines.decide_ops.entry import EntryKind, LogPlace
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = [
    "AuditQuery",
    "audit_key",
    "begins_now",
    "entries_per_commit_max",
    "new_entries",
    "stored_cursors",
]

ENTRIES_PER_COMMIT_MIN, ENTRIES_PER_COMMIT_MAX = 20_000, 600_000
ENTRIES_PER_S = 2_000
"""What the query can keep up with, up to an interval of five minutes: 64 shards with micro-batches of a second send a
tenth of it. Their keys are in the memory of the driver, so their number has a bound."""
BYTES_PER_TASK = 1024 * 1024
"""Entries of this size are written by one task: of several small ones each makes files of its own in each table."""
_CURSORS_KEPT = 100
_AGAIN = "Put the file back, or begin a new checkpoint with tables of its own, which decides the log again"

Head = tuple[AuditOffset, EntryKey | UnitsKey | None, int, bytes]
"""(its place in the topic, key, table number, value if it is a dead letter) of an entry."""


class AuditQuery:
    """Writes what shards have decided.

    Args:
        spark: The session.
        connection: The Kafka.
        prefix: Prefix of the job's topics.
        tables: Where the tables are; they exist.
        state_epoch: Identity of the state.
        ops_topic_id: Kafka's id of the ops topic.
        begins: Where a new checkpoint begins, by partition of the audit topic; empty: at its first entry.
        checkpoint: Path or URL of the query's checkpoint.
        interval_s: Seconds between commits.
        rejected_heads: What is kept of the values in `rejected`.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: KafkaConnection,
        *,
        prefix: str,
        tables: TableLocations,
        state_epoch: str,
        ops_topic_id: str,
        begins: Mapping[int, int],
        checkpoint: str,
        interval_s: float,
        rejected_heads: RejectedHeads,
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._prefix = prefix
        self._tables = WrittenTables(spark, tables, EntryRows(state_epoch, ops_topic_id, rejected_heads), AUDIT)
        self._state_epoch = state_epoch
        self._begins = begins
        self._checkpoint = checkpoint
        self._interval_s = interval_s

    def start(self) -> StreamingQuery:
        """Start the query."""
        return self._start(processingTime=f"{self._interval_s} seconds")

    def start_drain(self) -> StreamingQuery:
        """Start the query so that it ends when it has written what the topic has now."""
        return self._start(availableNow=True)

    def _start(self, **trigger: Any) -> StreamingQuery:  # noqa: ANN401 - as Spark's trigger takes them
        join_pool(self._spark, AUDIT)
        topic = ClusterTopics.of(self._prefix).audit
        frame = (
            self._spark.readStream.format("kafka")
            .options(**source_options(self._connection))
            .option("subscribe", topic)
            .option("startingOffsets", starting_offsets(topic, self._begins))
            .option("maxOffsetsPerTrigger", entries_per_commit_max(self._interval_s))
            .load()
            .select("partition", "offset", "key", "value")
        )
        copies = DeadLetterCopies(self._spark, self._connection, self._prefix)
        return (
            frame.writeStream.queryName(AUDIT)
            .option("checkpointLocation", self._checkpoint)
            .trigger(**trigger)
            .foreachBatch(functools.partial(self._write, copies))
            .start()
        )

    def _write(self, copies: DeadLetterCopies, frame: DataFrame, spark_batch_id: int) -> None:
        """Write one micro-batch: a commit for each table that has rows in it."""
        frame.persist()
        try:
            cursors = stored_cursors(self._spark, self._checkpoint, spark_batch_id)
            heads = _heads(frame)
            entries = new_entries(_in_order(heads), cursors, self._state_epoch)
            fresh = _without(self._spark, frame, entries.repeated)
            tasks = 1 + (pc.sum(heads["bytes"]).as_py() or 0) // BYTES_PER_TASK
            self._tables.append(fresh, entries.numbers, entries.partly, spark_batch_id, files_tasks=tasks)
            copies.copy(entries.letters)
            self._store_cursors(spark_batch_id + 1, cursors)
        finally:
            frame.unpersist()

    def _store_cursors(self, spark_batch_id: int, cursors: Cursors) -> None:
        _cursor_file(self._spark, self._checkpoint, spark_batch_id).write(msgspec.json.encode(cursors.ends))
        _cursor_file(self._spark, self._checkpoint, spark_batch_id - _CURSORS_KEPT).delete()


def entries_per_commit_max(interval_s: float) -> int:
    """Return how many entries a micro-batch takes at most.

    A fixed number would be a bound of the rate, and a lower one the longer the interval.

    >>> entries_per_commit_max(2.0), entries_per_commit_max(60.0), entries_per_commit_max(3600.0)
    (20000, 120000, 600000)
    """
    return min(ENTRIES_PER_COMMIT_MAX, max(ENTRIES_PER_COMMIT_MIN, round(ENTRIES_PER_S * interval_s)))


class NewEntries(NamedTuple):
    """What a micro-batch has for the tables.

    Attributes:
        numbers: Numbers of the tables that get rows.
        letters: Dead letters, in order.
        repeated: Entries with nothing new, or of another state.
        partly: The place from which on entries have something new, where that is not their begin.
    """

    numbers: set[int]
    letters: list[bytes]
    repeated: list[AuditOffset]
    partly: dict[AuditOffset, LogPlace]


def new_entries(heads: Iterable[Head], cursors: Cursors, state_epoch: str) -> NewEntries:
    """Sort out what is new of the entries of a micro-batch, and note it.

    Args:
        heads: The entries, in the order of the topic.
        cursors: What is written.
        state_epoch: Identity of the state; a job that owned the prefix before or after may have sent others.

    Raises:
        Corrupt: Entries are lost.
    """
    found = NewEntries(set(), [], [], {})
    for offset, key, number, letter in heads:
        begin = None if key is None or key.state_epoch != state_epoch else cursors.take(key)
        if key is None or begin is None:
            found.repeated.append(offset)
            continue
        if begin != key.extent.begin:
            found.partly[offset] = begin
        if isinstance(key, EntryKey) and key.kind == EntryKind.DEAD_LETTER:
            found.letters.append(letter)
        else:
            found.numbers.add(number)
    return found


def stored_cursors(spark: SparkSession, checkpoint: str, spark_batch_id: int) -> Cursors:
    """Return the cursors with which a micro-batch of the query begins.

    Args:
        spark: A session.
        checkpoint: Path or URL of the checkpoint of the audit query.
        spark_batch_id: Number of the micro-batch; of the first one they are not stored.

    Raises:
        Corrupt: They are missing, or cannot be read.
        Unavailable: The place cannot be reached.
    """
    file = _cursor_file(spark, checkpoint, spark_batch_id)
    stored = file.read()
    try:
        if stored is not None:
            return Cursors(msgspec.json.decode(stored, type=dict[str, LogPlace]))
    except DECODE_ERRORS as error:
        message = f"{file.url} cannot be read: {error}. {_AGAIN}"
        raise Corrupt(message, subject=file.url) from error
    if spark_batch_id:
        message = f"{file.url} is missing, so what is written to the tables is not known. {_AGAIN}"
        raise Corrupt(message, subject=file.url)
    return Cursors({})


def begins_now(connection: KafkaConnection, prefix: str) -> Beginnings:
    """Return the fields of the identity of a state that begins now: before the ends of its topics is nothing of it.

    Raises:
        Unavailable: Kafka does not answer.
    """
    topics = ClusterTopics.of(prefix)
    fields: dict[str, dict[int, int] | int] = {}
    found = describe(connection, [topics.audit, topics.queue_log])
    for field, name in (("audit", topics.audit), ("queue_log", topics.queue_log)):
        if (facts := found.get(name)) is not None:
            fields[f"{field}_from"] = dict(read_log_bounds(connection, facts).end_offset)
            fields[f"{field}_partitions"] = facts.partition_count
    return fields


def _cursor_file(spark: SparkSession, checkpoint: str, spark_batch_id: int) -> HadoopFile:
    return HadoopFile(spark, f"{checkpoint}/cursors/{spark_batch_id}")


def audit_key(key: bytes) -> EntryKey | UnitsKey | None:
    """Decode the key of an entry; None: it is of the version before. Raises struct.error for one that is too short."""
    if not key.startswith(KEY_FORMAT):
        return None
    return UnitsKey.decode(key) if key[-1] == EntryKind.UNITS else EntryKey.decode(key)


def _heads(frame: DataFrame) -> pa.Table:
    """Return the columns of a `Head` of each entry, in any order, and the size of its value, `bytes`."""
    is_letter = f.substring("key", -1, 1) == f.lit(bytes((EntryKind.DEAD_LETTER,)))
    return frame.select(
        "partition",
        "offset",
        "key",
        f.substring("value", 1, 1).alias("number"),
        f.when(is_letter, f.col("value")).otherwise(f.lit(b"")).alias("letter"),
        f.length("value").alias("bytes"),
    ).toArrow()


def _in_order(heads: pa.Table) -> Iterator[Head]:
    """Yield the head of each entry, in the order of the topic."""
    columns = (column.to_pylist() for column in heads.columns)
    for partition, offset, key, number, letter, _ in sorted(zip(*columns, strict=True)):
        yield (partition, offset), audit_key(key), number[0], letter


def _without(spark: SparkSession, frame: DataFrame, repeated: list[AuditOffset]) -> DataFrame:
    if not repeated:
        return frame
    partitions, offsets = zip(*repeated, strict=True)
    places = pa.table({"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())})
    return frame.join(f.broadcast(spark.createDataFrame(places)), ["partition", "offset"], "left_anti")
