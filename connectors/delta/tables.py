"""The Delta tables, described once: Arrow, Spark, Delta and docs/tables.md are all derived from `TABLES`.

```
kernel rows (broker_state/audit.py) ── outbox_schema ──> Arrow slices in the outbox
                                    └─ + FLUSHER_COLUMNS ── arrow_schema, spark_schema ──> Delta
```

Every column is nullable in Delta, also those that must not be null: a NOT NULL that fails would stop the flush, and
with it the job. What must hold is checked beside the stream instead (`expectations`, from `required_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow, OrderInfoRow, RejectedRow

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AUDIT_TABLES",
    "CONSUME_QUEUE",
    "DELIVERIES",
    "FLUSHER_COLUMNS",
    "KEY_COLUMNS",
    "REJECTED",
    "TABLES",
    "Column",
    "Kind",
    "Table",
    "arrow_schema",
    "outbox_schema",
    "spark_schema",
    "table_path",
]


class Kind(StrEnum):
    """Types of columns, under Spark's names."""

    BIGINT = "bigint"
    BINARY = "binary"
    BOOLEAN = "boolean"
    DATE = "date"
    INT = "int"
    STRING = "string"
    TIMESTAMP = "timestamp"


_ARROW_TYPES: Final = {
    Kind.BIGINT: pa.int64(),
    Kind.BINARY: pa.binary(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.INT: pa.int32(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}

_SPARK_TYPES: Final = {
    Kind.BIGINT: types.LongType(),
    Kind.BINARY: types.BinaryType(),
    Kind.BOOLEAN: types.BooleanType(),
    Kind.DATE: types.DateType(),
    Kind.INT: types.IntegerType(),
    Kind.STRING: types.StringType(),
    Kind.TIMESTAMP: types.TimestampType(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        name: As in the row type of the kernel.
        kind: Its type.
        comment: What a value means; also the comment in Delta.
        required: Never null (checked by the suites, see the module).
        repeats: Few values for many rows: dictionary-coded in the outbox (measured on deliveries: 791,000 instead of
            399,000 rows/s, 4 instead of 16 bytes a row).
    """

    name: str
    kind: Kind
    comment: str
    required: bool = True
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table; `row_type` is None for a table that the kernel does not write."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    row_type: type[NamedTuple] | None = None
    partitioned_by: str | None = None

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Names of the columns that are never null."""
        return tuple(column.name for column in self.columns if column.required)


def _int(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.INT, comment, required)


def _long(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.BIGINT, comment, required)


def _word(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.STRING, comment, required, repeats=True)


def _text(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.STRING, comment, required)


def _flag(name: str, comment: str) -> Column:
    return Column(name, Kind.BOOLEAN, comment)


KEY_COLUMNS: Final = ("ops_topic_id", "partition", "kafka_offset", "ordinal")
"""What identifies a row of an audit table; equal in every replay and on every machine."""

_CAUSE: Final = (
    _int("partition", "Partition of the ops topic that holds the record which caused the row."),
    _long("kafka_offset", "Offset of that record in the partition."),
    _int("ordinal", "Number of the row among those of this table that the record caused, from 0."),
    _long("now_ms", "Time of the decision, ms since 1970: the record's timestamp, made monotone for its queue."),
)

_QUEUE: Final = (
    _word("topic", "Message topic of the queue."),
    _int("queue_id", "Queue within the topic: the number of the Kafka partition."),
)

FLUSHER_COLUMNS: Final = (
    _long("apply_seq", "Number of the RocksDB WriteBatch with the decision. Differs between replays."),
    _word("state_epoch", "Life of the RocksDB state that wrote the row; new after a restore. Differs between replays."),
    _word("ops_topic_id", "Kafka's id of the ops topic."),
    Column("op_date", Kind.DATE, "UTC date of `now_ms`; the tables are partitioned by it."),
)
"""Columns that are not in the outbox: the flusher knows them, or makes them from another column."""

_OPERATIONS: Final = Table(
    "operations",
    "One row for each run of each entry of each operation: what was asked, what came of it.",
    (
        *_CAUSE,
        _word("kind", "Type of the operation: pop, ack, change_invisible, dispatch, ..."),
        *_QUEUE,
        _word("group", "Consumer group; null when the operation concerns the queue as a whole.", required=False),
        _text("op_id", "Id the sender gave the operation; repeating it gets the same answer.", required=False),
        _word("client_id", "Client that sent the operation, when it said so.", required=False),
        _int("entry", "Index of the entry within the operation; null when it has no entries.", required=False),
        _long("first_offset", "First queue offset of the run (-1: the entry named none).", required=False),
        _long("last_offset", "Last queue offset of the run, inclusive.", required=False),
        _text("handle_before", "Receipt handle that was brought, without its signature.", required=False),
        _text("handle_after", "Receipt handle that was given out, without its signature.", required=False),
        _int("code", "RocketMQ's response code."),
        _word("reason", "The whole outcome in one word (popstream.wire.reason.Reason)."),
        _flag("applied", "Whether the operation changed state."),
        _flag("repeated", "Whether it is the repetition of an op_id, answered from the window."),
        _long("deadline_before_ms", "When the lease would have ended, ms since 1970.", required=False),
        _long("deadline_after_ms", "When the lease ends now, ms since 1970.", required=False),
        _int("attempt", "Number of the delivery, 1 for the first.", required=False),
        _text("detail", "What a human wants to know besides.", required=False),
        *FLUSHER_COLUMNS,
    ),
    OperationRow,
    partitioned_by="op_date",
)

DELIVERIES: Final = Table(
    "deliveries",
    "One row for each step in the life of a lease, over a range of messages of one lane.",
    (
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane."),
        _word("step", "leased, acked, changed, expired, released, dead_lettered or expired_from_log."),
        _long("first_offset", "First queue offset of the range."),
        _long("last_offset", "Last queue offset of the range, inclusive."),
        _long("epoch", "Number of the pop within its lane; a higher one makes older handles stale."),
        _int("revision", "How many times the lease of the range was changed within this delivery."),
        _int("attempt", "Number of the delivery, 1 for the first."),
        _long("at_ms", "When the step took effect, ms since 1970; for an expiry its deadline, else `now_ms`."),
        _long("deadline_ms", "When the lease ends (of an ended one: would have ended), ms since 1970.", required=False),
        _word("cause", "What brought the step about."),
        _word("client_id", "Client that holds or held the lease, when it said so.", required=False),
        *FLUSHER_COLUMNS,
    ),
    DeliveryRow,
    partitioned_by="op_date",
)

_COMMIT_POSITIONS: Final = Table(
    "commit_positions",
    "One row for each position that moved, with the account of its lane (or queue: `group` null) after the record.",
    (
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane; null for the commit position of the queue itself.", required=False),
        _long("from_offset", "Position before the record: all offsets below it were done."),
        _long("to_offset", "Position after the record."),
        _long("start_offset", "Where the account begins: the first offset of the lane (or queue)."),
        _long("next_offset", "First offset never handed out (of a queue: never written)."),
        _long("holes", "Offsets in [start, next) that hold no message."),
        _long("acked", "Messages in [start, next) that are done, in whatever way."),
        _long("leased", "Messages that a client holds."),
        _long("available", "Messages handed out before that wait to be handed out again."),
        _int("parked", "Pops that wait for a message."),
        _long(
            "dead_lettered", "Of `acked`: went to the dead-letter topic (a reset_offset does not take them off here)."
        ),
        _long("expired_from_log", "Of `acked`, likewise: left the log before they were consumed."),
        _long("passed_over", "Of `acked`, likewise: had none of the tags that the pop asked for."),
        _long("skipped_by_reset", "Of `acked`, likewise: were skipped by a reset_offset."),
        *FLUSHER_COLUMNS,
    ),
    CommitPositionRow,
    partitioned_by="op_date",
)

_ORDER_INFO: Final = Table(
    "order_info",
    "One row for each record that changed the batch of an orderly lane: the latest pop, and how far it is done.",
    (
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane."),
        _long("epoch", "Number of the pop within its lane."),
        _long("pop_time_ms", "When it was popped, ms since 1970; it stays through changes."),
        _long("invisible_time_ms", "For how long, by the pop."),
        _text("attempt_id", "Of the pop, when it brought one; the same id again gets the batch again.", required=False),
        _long("first_offset", "First member."),
        _long("last_offset", "Last member, inclusive; not every offset between need be one."),
        _int("members", "How many messages the pop got."),
        _int("acked", "How many of them are acked, in order or not."),
        _long("commit_offset", "The lane's commit offset: the first unacked member, or after the last one."),
        _long("free_at_ms", "When the lane is free by itself, ms since 1970; null: it is free.", required=False),
        _int("least_count", "How often every member was delivered before, at least."),
        *FLUSHER_COLUMNS,
    ),
    OrderInfoRow,
    partitioned_by="op_date",
)

REJECTED: Final = Table(
    "rejected",
    "One row for each record of the ops topic that could not be read as an operation, or is quarantined.",
    (
        *_CAUSE,
        _word("reason", "Why, in one word."),
        _text("detail", "Why, as the decoder said it."),
        _long("value_bytes", "Length of the record's value."),
        _text("value_sha256", "SHA-256 of the whole value, in hex."),
        Column("value_head", Kind.BINARY, "The first 4 KiB of the value."),
        _text("op_id", "op_id, when it could be read.", required=False),
        _int("reply_to", "Partition of the results topic, when it could be read.", required=False),
        *FLUSHER_COLUMNS,
    ),
    RejectedRow,
    partitioned_by="op_date",
)

CONSUME_QUEUE: Final = Table(
    "consume_queue",
    "One row for each unit: a written record of a message topic, as the builder first found it.",
    (
        *_QUEUE,
        _word("topic_id", "Kafka's id of the message topic; a topic that is made again has another."),
        _word("queue_type", "simple, batch or sparse."),
        _long("queue_offset", "Kafka offset of the record."),
        _long(
            "message_base", "Number of its first message in the queue; on simple and sparse queues the queue offset."
        ),
        _int("inner_count", "How many messages it carries: more than 1 only on batch queues."),
        _long("store_time_ms", "The record's timestamp, ms since 1970."),
        _int("size_bytes", "Length of its value."),
        _long("tag_hash", "Hash of its tag, the bits of a u64; 0: none."),
        _long("key_hash", "xxhash64 of its key, as Spark SQL computes it (0 gives 1); 0: no key."),
        Column(
            "inner_key_hashes",
            Kind.BINARY,
            "Hashes of the keys and message ids inside a batch, 8 bytes each, big-endian.",
            required=False,
        ),
        _flag(
            "is_readable", "False: its headers lie about its inner batch, and it is one message for the dead letters."
        ),
        _long("build_seq", "Number of the builder's WriteBatch with the unit. Differs between builds."),
        _word("state_epoch", "Life of the builder's store. Differs between builds."),
        Column("store_date", Kind.DATE, "UTC date of `store_time_ms`; the table is partitioned by it."),
    ),
    partitioned_by="store_date",
)

_QUALITY_RESULTS: Final = Table(
    "quality_results",
    "One row for each expectation and each version of the tables it was checked on.",
    (
        _text("suite", "Suite: the table that the expectation is about."),
        _text("expectation", "Name of the expectation within the suite."),
        _text("table", "Table that was checked."),
        _long("table_version", "Delta version of that table."),
        _text("pinned_versions", "Delta versions of all tables that the run could see, as `table=version`, by name."),
        _flag("success", "Whether the expectation held."),
        _text("observed", "What was seen, in words; for a failure the first unexpected rows as JSON."),
        _long("unexpected_count", "Rows that broke the expectation; -1 when it could not be evaluated."),
        Column("run_at", Kind.TIMESTAMP, "When the check ran."),
    ),
)

AUDIT_TABLES: Final = {
    table.name: table for table in (_OPERATIONS, DELIVERIES, _COMMIT_POSITIONS, REJECTED, _ORDER_INFO)
}
"""Tables of the kernel's rows, written through the outbox."""

TABLES: Final = {**AUDIT_TABLES, CONSUME_QUEUE.name: CONSUME_QUEUE, _QUALITY_RESULTS.name: _QUALITY_RESULTS}


def table_path(root: Path, table: str) -> Path:
    """Folder of a table below the Delta root."""
    return root / table


def outbox_schema(table: Table) -> pa.Schema:
    """Arrow schema of the kernel's columns, in the order of the row type."""
    added = {column.name for column in FLUSHER_COLUMNS}
    return pa.schema(
        [
            pa.field(
                column.name, pa.dictionary(pa.int32(), pa.string()) if column.repeats else _ARROW_TYPES[column.kind]
            )
            for column in table.columns
            if column.name not in added
        ]
    )


def arrow_schema(table: Table) -> pa.Schema:
    """Arrow schema of the whole table."""
    return pa.schema([pa.field(column.name, _ARROW_TYPES[column.kind]) for column in table.columns])


def spark_schema(table: Table) -> types.StructType:
    """Spark schema of the whole table, with the comments."""
    return types.StructType(
        [
            types.StructField(
                column.name, _SPARK_TYPES[column.kind], nullable=True, metadata={"comment": column.comment}
            )
            for column in table.columns
        ]
    )
