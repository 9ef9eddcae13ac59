"""Rules of every audit table: keys, required values, dates, order, and no missing or duplicate rows."""

from __future__ import annotations

from typing import Final

from broker_state.audit import LANE_DELETING_KINDS
from connectors.delta.tables import AUDIT_TABLES
from connectors.delta.views import sql_list
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["MADE_ANEW", "common_expectations", "concerns_lane_of", "rows_as_written"]


def concerns_lane_of(row: str) -> str:
    """Return an SQL condition: operation `o` concerns the lane of `row`, or as one without a group its whole queue."""
    return f"(o.`group` IS NULL OR o.`group` = {row}.`group`)"


MADE_ANEW: Final = f"o.kind IN ({sql_list(LANE_DELETING_KINDS)}) AND {concerns_lane_of('c')}"
"""SQL condition: operation `o` deleted and made again the lane of row `c`, or its queue; positions start anew."""


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
        WHERE op_date <> date_from_unix_date(CAST(floor(now_ms / 86400000) AS INT))
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
    # The view counts the rows of the batch. It is named because Great Expectations warns of a query that does not.
    return ExpectRowsAsWritten(
        unexpected_rows_query="SELECT state_epoch, date, rows_written, rows_found, rows_changed"  # noqa: S608 - our own name
        f" FROM unequal_row_totals /* of {{batch}} */ WHERE table = '{table}'"
    )


def common_expectations(table: str) -> list[ExpectNoRows]:
    """Return the rules of this module for one audit table."""
    is_null = " OR ".join(f"`{name}` IS NULL" for name in AUDIT_TABLES[table].required_columns)
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
