"""The Delta tables, described once: their schemas (`connectors.delta.schemas`) and docs/tables.md derive from `TABLES`.

```
kernel rows (broker_state/audit.py) ── outbox_schema ──> Arrow slices in the outbox
                                    └─ + FLUSHER_COLUMNS + timestamps ── arrow_schema, spark_schema ──> Delta
```

A time in milliseconds `x_ms` has a column `x_utc` beside it, the same as a timestamp, for people and their tools. It is
stored, because no view is seen by every reader of Delta, and because packed numbers cost nothing (data_files.py).

Every column is nullable in Delta, even if it must not be null: a violated NOT NULL would stop the flush, and with it
the job. The suites in `expectations` check `required_columns` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow, OrderInfoRow, RejectedRow
from connectors.delta.column_values import CAUSES, KINDS, QUEUE_TYPES, REASONS, REJECT_REASONS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "AUDIT_TABLES",
    "CONSUME_QUEUE",
    "DATED_TABLES",
    "DELIVERIES",
    "FLUSHER_COLUMNS",
    "KEY_COLUMNS",
    "OWNERS",
    "QUOTING_COLUMNS",
    "REJECTED",
    "TABLES",
    "Column",
    "Kind",
    "Table",
    "table_path",
]


class Kind(StrEnum):
    """Types of columns, by Spark's names."""

    BIGINT = "bigint"
    BINARY = "binary"
    BOOLEAN = "boolean"
    DATE = "date"
    INT = "int"
    STRING = "string"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        name: Name, as in the row type of the kernel.
        kind: Type.
        comment: Meaning of a value; also the comment in Delta.
        required: Never null (checked by the suites, see above).
        repeats: Few distinct values: dictionary-encoded in the outbox (measured on deliveries: 791,000 instead of
            399,000 rows/s, 4 instead of 16 bytes per row).
        values: Every value that the code can write, if these are few. Clients of other versions may cause others.
        of_ms: The column in milliseconds of which this is the timestamp; None: it is none.
        quotes_clients: Has text that clients wrote, maybe a person's: it can be erased, `verify` takes an erased value
            for the one that was decided, and the statistics in Delta's log, which are kept for long, do not have it.
    """

    name: str
    kind: Kind
    comment: str
    required: bool = True
    repeats: bool = False
    values: tuple[str, ...] = ()
    of_ms: str | None = None
    quotes_clients: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `row_type` None: the kernel does not write it."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    row_type: type[NamedTuple] | None = None
    partitioned_by: str | None = None

    @property
    def day(self) -> str:
        """The column with the date by which the table is partitioned, as every table is that grows with the log."""
        assert self.partitioned_by is not None, f"{self.name} has no dates"
        return self.partitioned_by

    @property
    def decided_columns(self) -> tuple[Column, ...]:
        """The columns of the rows as they were decided: not those that the flusher adds or that follow from others."""
        return tuple(column for column in self.columns if column not in FLUSHER_COLUMNS and column.of_ms is None)

    @property
    def quoting_columns(self) -> tuple[str, ...]:
        """Names of the columns that quote what clients sent."""
        return tuple(column.name for column in self.columns if column.quotes_clients)

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Names of the columns that are never null."""
        return tuple(column.name for column in self.columns if column.required)

    @property
    def optional_columns(self) -> frozenset[str]:
        """Names of the others; a file that an older version wrote may lack them, which means null."""
        return frozenset(column.name for column in self.columns if not column.required)


def _with_timestamps(*columns: Column) -> tuple[Column, ...]:
    """Return the columns with a timestamp beside each time in milliseconds."""
    return tuple(
        each for column in columns for each in ((column, _timestamp_of(column)) if _is_time(column) else (column,))
    )


def _is_time(column: Column) -> bool:
    return column.name.endswith("_ms") and column.name not in _DURATIONS


def _timestamp_of(column: Column) -> Column:
    comment = (
        f"`{column.name}` as a timestamp; null also in rows of older versions, and outside of the years 1900 to 9999."
    )
    name = column.name.removesuffix("_ms") + "_utc"
    return Column(name, Kind.TIMESTAMP, comment, required=False, of_ms=column.name)


def _int(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.INT, comment, required)


def _long(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.BIGINT, comment, required)


def _word(name: str, comment: str, values: Iterable[str] = (), *, required: bool = True) -> Column:
    known = tuple(values)
    listed = f" Values: {', '.join(known)}." if known else ""
    return Column(name, Kind.STRING, comment + listed, required, repeats=True, values=known)


def _text(name: str, comment: str, *, required: bool = True) -> Column:
    return Column(name, Kind.STRING, comment, required)


def _quoting(column: Column) -> Column:
    return replace(column, quotes_clients=True)


def _flag(name: str, comment: str) -> Column:
    return Column(name, Kind.BOOLEAN, comment)


_DURATIONS: Final = ("invisible_time_ms",)

KEY_COLUMNS: Final = ("ops_topic_id", "partition", "kafka_offset", "ordinal")
"""Key of a row of an audit table. Equal in every replay."""

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
    _word("state_epoch", "Identity of the state that wrote the row; new after a restore. Differs between replays."),
    _word("ops_topic_id", "Kafka's id of the ops topic."),
    Column("op_date", Kind.DATE, "UTC date of `now_ms`; the tables are partitioned by it."),
)
"""Columns that the outbox does not hold: the flusher adds them."""

_OPERATIONS: Final = Table(
    "operations",
    "One row for each run of each entry of each operation: the request and its outcome.",
    _with_timestamps(
        *_CAUSE,
        _word("kind", "Type of the operation.", KINDS),
        *_QUEUE,
        _word("group", "Consumer group; null when the operation concerns the queue as a whole.", required=False),
        _text("op_id", "Id of the operation, chosen by its sender; a repetition gets the same answer.", required=False),
        _word("client_id", "Client that sent the operation, if it named itself.", required=False),
        _int("entry", "Index of the entry within the operation; null when it has no entries.", required=False),
        _long(
            "first_offset", "First queue offset of the run; null: none was named, or one out of range.", required=False
        ),
        _long("last_offset", "Last queue offset of the run, inclusive; null like `first_offset`.", required=False),
        _text("handle_before", "Receipt handle in the operation, without its signature.", required=False),
        _text("handle_after", "Receipt handle in the answer, without its signature.", required=False),
        _int("code", "RocketMQ's response code."),
        _word("reason", "The outcome in one word.", REASONS),
        _flag("applied", "Whether the operation changed state."),
        _flag("repeated", "Whether the operation repeats an op_id and was answered from the op_id window."),
        _long("deadline_before_ms", "Deadline of the lease before the operation, ms since 1970.", required=False),
        _long("deadline_after_ms", "Deadline of the lease after the operation, ms since 1970.", required=False),
        _int("attempt", "Number of the delivery, 1 for the first.", required=False),
        _quoting(
            _text(
                "detail",
                "Free-text detail: of a reject its reason; of a redrive to whom, by whom and why.",
                required=False,
            )
        ),
        _word(
            "admin_key",
            "Id of the admin key that signed the operation; null: it is not signed, or the job had no keys.",
            required=False,
        ),
        *FLUSHER_COLUMNS,
    ),
    OperationRow,
    partitioned_by="op_date",
)

DELIVERIES: Final = Table(
    "deliveries",
    "One row for each step in the life of a lease, over a range of messages of one lane.",
    _with_timestamps(
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane."),
        _word("step", "What happened to the messages.", STEPS),
        _long("first_offset", "First queue offset of the range."),
        _long("last_offset", "Last queue offset of the range, inclusive."),
        _long("epoch", "Number of the pop within its lane; a higher one makes older handles stale."),
        _int("revision", "Number of changes of the lease within this delivery."),
        _int("attempt", "Number of the delivery, 1 for the first."),
        _long("at_ms", "When the step took effect, ms since 1970: of an expiry its deadline, otherwise `now_ms`."),
        _long("deadline_ms", "Deadline of the lease, ms since 1970; of an ended one its last.", required=False),
        _quoting(
            _word(
                "cause",
                "Cause of the step. Clients name some: of a message that a failed handler gave back it is `handler: `"
                " and what it raised, of a reject its reason, of an ack of what could not be consumed GONE or"
                " UNREADABLE.",
                CAUSES,
            )
        ),
        _word(
            "client_id",
            "Client that took the step by a pop, an ack, a change or a reject, if it named itself; otherwise the client"
            " that held the lease that ended (at its deadline, by a release, at the attempt limit, with the log). Null"
            " in rows of older versions where nobody took the step; the view `lease_ends` names the holder there, too.",
            required=False,
        ),
        *FLUSHER_COLUMNS,
    ),
    DeliveryRow,
    partitioned_by="op_date",
)

_COMMIT_POSITIONS: Final = Table(
    "commit_positions",
    "One row for each position that moved, with the counts of its lane (or queue: `group` null) after the record.",
    _with_timestamps(
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane; null for the commit position of the queue itself.", required=False),
        _long("from_offset", "Position before the record: all offsets below it were done."),
        _long("to_offset", "Position after the record."),
        _long("start_offset", "First offset of the lane (or queue), where its counts begin."),
        _long("next_offset", "First offset that was never delivered (of a queue: never written)."),
        _long("holes", "Offsets in [start_offset, next_offset) without a message."),
        _long("acked", "Messages in [start_offset, next_offset) that are done, in any way."),
        _long("leased", "Messages that a client holds."),
        _long("available", "Messages that were delivered before and wait for redelivery."),
        _int("parked", "Parked pops."),
        _long("dead_lettered", "Part of `acked`: dead-lettered. Not reduced by a reset_offset."),
        _long("expired_from_log", "Part of `acked`, likewise: deleted by retention before they were consumed."),
        _long("passed_over", "Part of `acked`, likewise: had none of the tags that the pop asked for."),
        _long("skipped_by_reset", "Part of `acked`, likewise: skipped by a reset_offset."),
        *FLUSHER_COLUMNS,
    ),
    CommitPositionRow,
    partitioned_by="op_date",
)

_ORDER_INFO: Final = Table(
    "order_info",
    "One row for each record that changed the batch of an orderly lane: the latest pop and its progress.",
    _with_timestamps(
        *_CAUSE,
        *_QUEUE,
        _word("group", "Consumer group of the lane."),
        _long("epoch", "Number of the pop within its lane."),
        _long("pop_time_ms", "Time of the pop, ms since 1970; changes of the lease keep it."),
        _long("invisible_time_ms", "Invisible time that the pop asked for."),
        _text("attempt_id", "Attempt id of the pop, if any; the same id returns the same batch.", required=False),
        _long("first_offset", "First member."),
        _long("last_offset", "Last member, inclusive; offsets in between need not be members."),
        _int("members", "Number of messages in the batch."),
        _int("acked", "Number of acked members, in order or not."),
        _long("commit_offset", "The lane's commit offset: the first unacked member, or after the last one."),
        _long("free_at_ms", "When the lane becomes free by itself, ms since 1970; null: it is free.", required=False),
        _int("least_count", "Minimum over the members of the number of earlier deliveries."),
        *FLUSHER_COLUMNS,
    ),
    OrderInfoRow,
    partitioned_by="op_date",
)

REJECTED: Final = Table(
    "rejected",
    "One row for each record of the ops topic that is not readable as an operation, lacks a valid signature, or is"
    " quarantined.",
    _with_timestamps(
        *_CAUSE,
        _word("reason", "Why it is rejected.", REJECT_REASONS),
        _quoting(_text("detail", "The message of the decoder.")),
        _long("value_bytes", "Length of the record's value."),
        _text("value_sha256", "SHA-256 of the whole value, in hex."),
        Column(
            "value_head",
            Kind.BINARY,
            "The first 4 KiB of the value; by the setting `rejected_heads` their SHA-256, or empty; empty when erased.",
            quotes_clients=True,
        ),
        _text("op_id", "op_id, when it could be read.", required=False),
        _int("reply_to", "Partition of the results topic, when it could be read.", required=False),
        *FLUSHER_COLUMNS,
    ),
    RejectedRow,
    partitioned_by="op_date",
)

CONSUME_QUEUE: Final = Table(
    "consume_queue",
    "One row for each unit: a record of a message topic, as the builder first read it.",
    _with_timestamps(
        *_QUEUE,
        _word("topic_id", "Kafka's id of the message topic; a recreated topic has another one."),
        _word("queue_type", "Type of the queue.", QUEUE_TYPES),
        _long("queue_offset", "Kafka offset of the record."),
        _long(
            "message_base", "Number of its first message in the queue; on simple and sparse queues the queue offset."
        ),
        _int("inner_count", "Number of messages in the unit: more than 1 only on batch queues."),
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
            "is_readable",
            "False: the headers of its inner batch are malformed; it counts as one message, a dead letter.",
        ),
        _long("deliver_at_ms", "When it can be popped, ms since 1970; null: as soon as written.", required=False),
        _long(
            "duplicate_of",
            "Queue offset of the unit whose deduplication id it repeats, so that no group gets it; null: none.",
            required=False,
        ),
        _long("build_seq", "Number of the builder's WriteBatch with the unit. Differs between builds."),
        _word("state_epoch", "Identity of the builder's store. Differs between builds."),
        Column("store_date", Kind.DATE, "UTC date of `store_time_ms`; the table is partitioned by it."),
    ),
    partitioned_by="store_date",
)

_QUALITY_RESULTS: Final = Table(
    "quality_results",
    "One row for each expectation and each version of the tables it was checked on.",
    (
        _text("suite", "Suite, named like its table."),
        _text("expectation", "Name of the expectation within the suite."),
        _text("table", "Table that was checked."),
        _long("table_version", "Delta version of that table."),
        _text("pinned_versions", "Delta versions of all tables that the run read, as `table=version`, by name."),
        _text(
            "scope",
            "Rows that were judged: `all` (also where it is null), `changed` since the last check that held, or `since`"
            " a date.",
            required=False,
        ),
        _flag("success", "Whether the expectation holds."),
        _quoting(_text("observed", "Result as text; of a failure the first unexpected rows as JSON.")),
        _long("unexpected_count", "Rows that violate the expectation; -1: it could not be evaluated."),
        Column("run_at", Kind.TIMESTAMP, "When the check ran."),
    ),
)

OWNERS: Final = Table(
    "owners",
    "One row for each start of a job that wrote to these tables: when, where, and of a take-over from whom.",
    _with_timestamps(
        _word("prefix", "Prefix of the job's topics."),
        _long("term", "Number of the ownership; each later owner of the prefix has a higher one."),
        _long("since_ms", "When the job took the prefix, ms since 1970, by the clock of its host."),
        _text("host", "Name of its host."),
        _int("pid", "Id of its process there."),
        _text("folder", "Its folder; of a job on a cluster its checkpoint."),
        _word("version", "Its version of popstream."),
        _word("state_epoch", "Identity of the state by which it decides."),
        _word("ops_topic_id", "Kafka's id of the ops topic."),
        _text(
            "took_over_from",
            "The owner from whom it took the prefix over by `--take-over`; null: from nobody.",
            required=False,
        ),
    ),
)

AUDIT_TABLES: Final = {
    table.name: table for table in (_OPERATIONS, DELIVERIES, _COMMIT_POSITIONS, REJECTED, _ORDER_INFO)
}
"""Tables of the kernel's rows, which are written through the outbox."""

DATED_TABLES: Final = {**AUDIT_TABLES, CONSUME_QUEUE.name: CONSUME_QUEUE}
"""The tables that are partitioned by a date, which the job writes."""

TABLES: Final = {**DATED_TABLES, **{table.name: table for table in (OWNERS, _QUALITY_RESULTS)}}

QUOTING_COLUMNS: Final = frozenset(name for table in TABLES.values() for name in table.quoting_columns)
"""Names of columns that quote what clients sent, in any table: where one has the name, all that have it do."""


def table_path(root: Path, table: str) -> Path:
    """Return the folder of a table below the Delta root."""
    return root / table
