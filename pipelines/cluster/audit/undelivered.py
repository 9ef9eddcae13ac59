"""What the audit topic holds and the tables may lack, as the outbox of an embedded job has it."""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from broker_state.store.overlay import Change
from broker_state.store.rocks_store import OUTBOX
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.builder_records import UnitSpan
from pipelines.cluster.arrow_slices import read_slice_rows
from pipelines.cluster.audit.audit_query import audit_key, stored_cursors
from pipelines.cluster.audit.unit_entries import UnitsKey
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import audit_checkpoint
from pipelines.cluster.committed import last_committed
from pipelines.cluster.decide.extent import Cursors
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.recovery.ops_log import OpsPartitionReader, read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["Undelivered", "read_undelivered", "require_delivered"]


class Undelivered(NamedTuple):
    """Entries of the outbox of the state, and of that of the builder's store; and the number of dead letters."""

    rows: list[Change]
    units: list[Change]
    dead_letters: int


def require_delivered(
    spark: SparkSession, connection: KafkaConnection, checkpoint: str, identity: CheckpointIdentity
) -> None:
    """Refuse to go on elsewhere with a state of which rows or dead letters are only in the audit topic.

    Args:
        spark: A session.
        connection: The Kafka.
        checkpoint: Path or URL of the state of the job, which does not run.
        identity: Its identity.

    Raises:
        Invalid: Some are.
        Corrupt: As in `read_undelivered`.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
    """
    if entries := sum(1 for _ in _undelivered(spark, connection, checkpoint, identity)):
        message = (
            f"{entries:,} entries of {ClusterTopics.of(identity.prefix).audit} are not in the tables or the dead-letter"
            " topic yet, and nobody else would write them: start the job once more with `popstream submit`, and stop it"
            " by SIGTERM: at its end it writes what waits"
        )
        raise Invalid(message, subject=checkpoint)


def read_undelivered(
    spark: SparkSession, connection: KafkaConnection, checkpoint: str, identity: CheckpointIdentity
) -> Undelivered:
    """Return what comes after the last micro-batch that the audit query has committed: each entry once.

    Some of it may be in the tables, if the query ended in the middle of a micro-batch. Dead letters are counted.

    Args:
        spark: A session.
        connection: The Kafka.
        checkpoint: Path or URL of the state of the job.
        identity: Its identity.

    Raises:
        Corrupt: The checkpoint of the audit query cannot be read, or Kafka returns damaged records.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
    """
    rows: list[Change] = []
    units: list[Change] = []
    dead_letters = 0
    for key, value in _undelivered(spark, connection, checkpoint, identity):
        if isinstance(key, UnitsKey):
            units.append(_entry(EntryKind.UNIT_SPANS, len(units), _spans_of(value)))
        elif key.kind == EntryKind.AUDIT:
            rows.append(_entry(EntryKind.AUDIT, len(rows), value))
        else:
            dead_letters += 1
    return Undelivered(rows, units, dead_letters)


def _undelivered(
    spark: SparkSession, connection: KafkaConnection, checkpoint: str, identity: CheckpointIdentity
) -> Iterator[tuple[EntryKey | UnitsKey, bytes]]:
    """Yield the key and the value of each entry: there may be those of days."""
    topic = ClusterTopics.of(identity.prefix).audit
    query_checkpoint = audit_checkpoint(checkpoint)
    committed = last_committed(spark, query_checkpoint, topic)
    first = identity.audit_from if committed is None else committed.ends
    cursors = stored_cursors(spark, query_checkpoint, 0 if committed is None else committed.spark_batch_id + 1)
    facts = describe(connection, [topic]).get(topic)
    if facts is None:
        return
    log = read_log_bounds(connection, facts)
    for partition, end in sorted(log.end_offset.items()):
        # What retention has deleted is in no table: its rows are missing there.
        begin = max(first.get(partition, 0), log.first_offset[partition])
        with closing(OpsPartitionReader(connection, topic, partition)) as reader:
            for record in reader.between(begin, end):
                key = audit_key(record.key)
                if key is not None and key.state_epoch == identity.state_epoch and _is_new(key, cursors):
                    yield key, record.value


def _is_new(key: EntryKey | UnitsKey, cursors: Cursors) -> bool:
    try:
        return cursors.take(key) is not None
    except Corrupt:  # rows that are in no table are what a verification reports
        cursors.ends[key.source] = key.extent.end
        return True


def _entry(kind: int, number: int, value: bytes) -> Change:
    entry = Entry(kind, 0, number, value)
    return OUTBOX, entry.key, entry.value


def _spans_of(value: bytes) -> bytes:
    return msgspec.msgpack.encode(list(_spans(read_slice_rows(value[1:]))))


def _spans(rows: pa.Table) -> Iterator[UnitSpan]:
    """Yield what the rows of an entry, which are those of one queue, span."""
    if rows.num_rows:
        first = rows.slice(0, 1).to_pylist()[0]
        yield UnitSpan(
            topic=first["topic"],
            queue_id=first["queue_id"],
            topic_id=first["topic_id"],
            queue_type=first["queue_type"],
            first_offset=first["queue_offset"],
            end_offset=pc.max(rows["queue_offset"]).as_py() + 1,
            message_base=first["message_base"],
            unit_count=rows.num_rows,
        )
