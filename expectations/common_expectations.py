"""Rules of every audit table: keys, required values, dates, order, and no missing or duplicate rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.delta.tables import AUDIT_TABLES
from connectors.delta.views import sql_list
from expectations.expect_no_rows import ExpectNoRows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["common_expectations", "rows_as_written", "unless_ended"]


def unless_ended(kinds: Sequence[str], after: str) -> str:
    """Return an SQL condition: no operation of these kinds ended the lane of row `c`, or its queue, up to that row.

    Args:
        kinds: Some of `ERA_ENDING_KINDS`.
        after: The Kafka offset after which operations count.
    """
    return f"""NOT EXISTS (
            SELECT 1 FROM era_endings AS o
            WHERE o.ops_topic_id = c.ops_topic_id AND o.topic = c.topic AND o.queue_id = c.queue_id
              AND (o."group" IS NULL OR o."group" = c."group") AND o.kind IN ({sql_list(kinds)})
              AND o.kafka_offset > {after} AND o.kafka_offset <= c.kafka_offset
        )"""  # noqa: S608 - constants of the code


class ExpectKeysToBeUnique(ExpectNoRows):
    """Finds a repeated flush, or a record that was decided twice."""

    description: str = "(ops_topic_id, partition, kafka_offset, ordinal) identifies a row."
    unexpected_rows_query: str = """
        SELECT ops_topic_id, partition, kafka_offset, ordinal, count(*) AS rows
        FROM {batch}
        GROUP BY ops_topic_id, partition, kafka_offset, ordinal
        HAVING count(*) > 1
    """


class ExpectNoOrdinalToBeMissing(ExpectNoRows):
    """Finds an incomplete flush, or deleted rows."""

    description: str = "The rows of one record are numbered from 0 without gaps."
    unexpected_rows_query: str = """
        SELECT ops_topic_id, partition, kafka_offset, max(ordinal) AS ordinal_max, count(*) AS rows
        FROM {batch}
        GROUP BY ops_topic_id, partition, kafka_offset
        HAVING max(ordinal) + 1 > count(*) OR min(ordinal) < 0
    """


class ExpectRequiredColumnsToHaveValues(ExpectNoRows):
    """NOT NULL constraints would make Delta refuse the flush, and stop the job."""

    description: str = "Columns that are required (docs/tables.md) are never null."
    unexpected_rows_query: str


class ExpectDateToBeThatOfTheTime(ExpectNoRows):
    """Readers prune by `op_date` and would miss a row with a wrong date."""

    description: str = "`op_date` is the UTC date of `now_ms`."
    unexpected_rows_query: str = """
        SELECT ops_topic_id, partition, kafka_offset, ordinal, now_ms, op_date
        FROM {batch}
        WHERE op_date <> DATE '1970-01-01' + CAST(floor(now_ms / 86400000) AS INT)
    """


class ExpectDecisionsInLogOrder(ExpectNoRows):
    """Each WriteBatch covers a span of each partition, and spans follow each other."""

    description: str = "Within a partition, a later record is never in an earlier WriteBatch (`apply_seq`)."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT state_epoch, ops_topic_id, partition, apply_seq, first_record,
                   max(last_record) OVER (
                       PARTITION BY state_epoch, ops_topic_id, partition ORDER BY apply_seq
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                   ) AS last_record_before
            FROM (
                SELECT state_epoch, ops_topic_id, partition, apply_seq,
                       min(kafka_offset) AS first_record, max(kafka_offset) AS last_record
                FROM {batch}
                GROUP BY state_epoch, ops_topic_id, partition, apply_seq
            )
        )
        WHERE first_record <= last_record_before
    """


class ExpectRowsAsWritten(ExpectNoRows):
    """Finds rows that anybody has deleted, changed, doubled or added; `popstream verify` says which."""

    description: str = "Of each date there are the rows that the job has written, with the content that they had."
    unexpected_rows_query: str


def rows_as_written(table: str) -> ExpectRowsAsWritten:
    """Return the rule for one table."""
    # Counted outside of SQL (row_totals.py). `{batch}` is named because Great Expectations warns of a query without it.
    return ExpectRowsAsWritten(
        unexpected_rows_query="SELECT state_epoch, date, rows_written, rows_found, rows_changed"  # noqa: S608 - our own name
        f" FROM unequal_row_totals /* of {{batch}} */ WHERE \"table\" = '{table}'"
    )


def common_expectations(table: str) -> list[ExpectNoRows]:
    """Return the rules of this module for one audit table."""
    is_null = " OR ".join(f'"{name}" IS NULL' for name in AUDIT_TABLES[table].required_columns)
    return [
        ExpectKeysToBeUnique(),
        ExpectNoOrdinalToBeMissing(),
        ExpectRequiredColumnsToHaveValues(
            unexpected_rows_query="SELECT ops_topic_id, partition, kafka_offset, ordinal FROM {batch} WHERE "  # noqa: S608
            + is_null
        ),
        ExpectDateToBeThatOfTheTime(),
        ExpectDecisionsInLogOrder(),
        rows_as_written(table),
    ]
