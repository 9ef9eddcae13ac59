"""The suite of `consume_queue`: one unit per record, and messages counted without gaps or overlaps."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from connectors.delta.tables import CONSUME_QUEUE
from expectations.common_expectations import rows_as_written
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["consume_queue_suite"]


class ExpectUnitsToBeUnique(ExpectNoRows):
    """Finds a repeated flush, or a rebuild that wrote its rows again."""

    description: str = "(topic, topic_id, queue_id, queue_offset) identifies a row."
    unexpected_rows_query: str = """
        SELECT topic, topic_id, queue_id, queue_offset, count(*) AS rows
        FROM {batch}
        GROUP BY topic, topic_id, queue_id, queue_offset
        HAVING count(*) > 1
    """


class ExpectUnitsToHaveValues(ExpectNoRows):
    """NOT NULL constraints would make Delta refuse the flush, and stop the job."""

    description: str = "Columns that are required (docs/tables.md) are never null."
    unexpected_rows_query: str


class ExpectMessagesToBeCountedInOrder(ExpectNoRows):
    """On batch queues a message offset belongs to one unit; on others a unit is the message at its offset."""

    description: str = (
        "Message bases rise by at least the inner count; only batch queues have units with many messages."
    )
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT topic, topic_id, queue_id, queue_offset, queue_type, message_base, inner_count, is_readable,
                   lag(message_base + inner_count) OVER in_order AS message_end_before,
                   lag(queue_offset) OVER in_order AS offset_before
            FROM {batch}
            WINDOW in_order AS (PARTITION BY topic, topic_id, queue_id ORDER BY queue_offset)
        )
        WHERE message_base < message_end_before AND queue_offset > offset_before
           OR inner_count < 1
           OR queue_type <> 'batch' AND (inner_count <> 1 OR message_base <> queue_offset)
           OR NOT is_readable AND inner_count <> 1
    """


class ExpectDateToBeThatOfTheStoreTime(ExpectNoRows):
    """Readers prune by `store_date` and would miss a row with a wrong date."""

    description: str = "`store_date` is the UTC date of `store_time_ms`."
    unexpected_rows_query: str = """
        SELECT topic, queue_id, queue_offset, store_time_ms, store_date
        FROM {batch}
        WHERE store_date <> DATE '1970-01-01' + CAST(floor(store_time_ms / 86400000) AS INT)
    """


class ExpectUnitsInLogOrder(ExpectNoRows):
    """Each WriteBatch of the builder continues where the one before ended."""

    description: str = "Within a queue, a later unit is never in an earlier WriteBatch (`build_seq`)."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT topic, topic_id, queue_id, queue_offset, build_seq, state_epoch,
                   lag(build_seq) OVER (
                       PARTITION BY state_epoch, topic, topic_id, queue_id ORDER BY queue_offset
                   ) AS build_seq_before
            FROM {batch}
        )
        WHERE build_seq < build_seq_before
    """


def consume_queue_suite() -> ExpectationSuite:
    """Return the rules about units."""
    is_null = " OR ".join(f'"{name}" IS NULL' for name in CONSUME_QUEUE.required_columns)
    return ExpectationSuite(
        CONSUME_QUEUE.name,
        expectations=[
            ExpectUnitsToBeUnique(),
            ExpectUnitsToHaveValues(
                unexpected_rows_query="SELECT topic, queue_id, queue_offset FROM {batch} WHERE " + is_null  # noqa: S608
            ),
            ExpectMessagesToBeCountedInOrder(),
            ExpectDateToBeThatOfTheStoreTime(),
            ExpectUnitsInLogOrder(),
            rows_as_written(CONSUME_QUEUE.name),
        ],
    )
