"""The suite of `operations`: every answer is one that the job can give."""

from __future__ import annotations

from typing import Final

from great_expectations import ExpectationSuite

from connectors.delta.column_values import KINDS, REASONS
from connectors.delta.views import sql_list
from expectations.common_expectations import common_expectations
from expectations.expect_no_rows import ExpectNoRows
from popstream.wire.reason import CODE_OF_REASON, Reason, code_of

__all__ = ["operations_suite"]

_KINDS: Final = sql_list(KINDS)
_REASONS: Final = sql_list(REASONS)
_CODES: Final = ", ".join(
    sorted(
        {
            f"({str(is_ack).lower()}, '{reason}', {code_of(reason, is_ack=is_ack, orderly=orderly)})"
            for reason in CODE_OF_REASON
            for is_ack in (True, False)
            for orderly in (True, False)
        }
    )
)


class ExpectKnownKinds(ExpectNoRows):
    """A new kind of operation needs its rules here."""

    description: str = "`kind` is a known kind of operation."
    unexpected_rows_query: str = (
        f"SELECT partition, kafka_offset, ordinal, kind FROM {{batch}} WHERE kind NOT IN ({_KINDS})"  # noqa: S608
    )


class ExpectKnownReasons(ExpectNoRows):
    """Only clients use EXPIRED_LOCALLY."""

    description: str = "`reason` is one that the job can give."
    unexpected_rows_query: str = (
        f"SELECT partition, kafka_offset, ordinal, kind, reason FROM {{batch}} WHERE reason NOT IN ({_REASONS})"  # noqa: S608
    )


class ExpectCodeToAgreeWithReason(ExpectNoRows):
    """Clients of RocketMQ read the code, those of popstream the reason: both must agree."""

    description: str = "`code` is RocketMQ's number for `reason` (two depend on the kind and on the lane's mode)."
    unexpected_rows_query: str = f"""
        SELECT partition, kafka_offset, ordinal, kind, reason, code
        FROM {{batch}}
        WHERE reason IN ({_REASONS})
          AND (kind IN ('ack', 'reject'), reason, code) NOT IN ({_CODES})
    """  # noqa: S608


class ExpectRangesInOrder(ExpectNoRows):
    """Only an operation refused as INVALID_PARAMETER may have an invalid range; -1..-1 means no range."""

    description: str = "0 <= first_offset <= last_offset, unless the range itself was refused."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, kind, reason, first_offset, last_offset
        FROM {batch}
        WHERE reason <> 'INVALID_PARAMETER'
          AND (first_offset IS NULL) <> (last_offset IS NULL)
           OR reason <> 'INVALID_PARAMETER'
          AND NOT (first_offset = -1 AND last_offset = -1)
          AND (first_offset < 0 OR first_offset > last_offset)
    """


class ExpectChangesToBeAnsweredWithSuccess(ExpectNoRows):
    """Clients retry refused operations: one that took effect would take effect twice."""

    description: str = "Only an operation with code 0 is `applied`."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, kind, reason, code FROM {batch} WHERE applied AND code <> 0
    """


class ExpectDeadlinesAfterNow(ExpectNoRows):
    """A lease that has ended when it begins is useless. A change to 0 ms ends it at once on purpose."""

    description: str = "A lease from a pop ends after `now_ms`; a changed one not before it."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, kind, now_ms, deadline_after_ms
        FROM {batch}
        WHERE applied AND NOT repeated
          AND (kind = 'pop' AND deadline_after_ms <= now_ms
               OR kind = 'change_invisible' AND deadline_after_ms < now_ms)
    """


class ExpectQueueTimeNeverToFall(ExpectNoRows):
    """Deadlines refer to this clock. Records without a queue (misrouted, not declared) have their own time."""

    description: str = "`now_ms` of a queue's records never falls."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT partition, kafka_offset, topic, queue_id, now_ms, lag(now_ms) OVER (
                       PARTITION BY ops_topic_id, topic, queue_id ORDER BY kafka_offset, ordinal
                   ) AS now_ms_before
            FROM {batch}
            WHERE reason NOT IN ('MISROUTED', 'TOPIC_NOT_EXIST')
        )
        WHERE now_ms < now_ms_before
    """


class ExpectRecordsOfTheLogToHaveRows(ExpectNoRows):
    """Compares with Kafka's own log, if it is asked (evidence.py): a record that is decided leaves a row."""

    description: str = "Every record of the ops topic, up to the last one with a row, has its rows."
    unexpected_rows_query: str = """
        SELECT * EXCLUDE (is_after_the_last_row) FROM records_without_rows  /* of {batch} */
        WHERE NOT is_after_the_last_row
    """


class ExpectTablesToBeFresh(ExpectNoRows):
    """Compares with Kafka's own log, if it is asked: the job does not decide, or does not write to its tables."""

    description: str = "The first record of the ops topic after the last row is not old."
    unexpected_rows_query: str = """
        SELECT * EXCLUDE (is_after_the_last_row) FROM records_without_rows  /* of {batch} */
        WHERE is_after_the_last_row
    """


class ExpectRefusalsThatTheJobCounted(ExpectNoRows):
    """Compares with the running job, if it is asked. After a restore rows are of two states, and not compared."""

    description: str = "There are as many rows of refused operations as the job has counted since it started."
    unexpected_rows_query: str = f"""
        SELECT * FROM (
            SELECT j.least, j.greatest, (
                SELECT count(*) FROM operations AS o  /* and not only of {{batch}} */
                WHERE o.code NOT IN (0, {CODE_OF_REASON[Reason.NO_MESSAGE]}) AND o.apply_seq >= j.since_seq
            ) AS found
            FROM job_figures AS j
            WHERE j.what = 'refused' AND NOT EXISTS (
                SELECT 1 FROM operations AS o WHERE NOT starts_with(o.state_epoch, j.state)
            )
        )
        WHERE found NOT BETWEEN least AND greatest
    """  # noqa: S608 - constants of the code


def operations_suite() -> ExpectationSuite:
    """Return the rules about answers."""
    return ExpectationSuite(
        "operations",
        expectations=[
            *common_expectations("operations"),
            ExpectKnownKinds(),
            ExpectKnownReasons(),
            ExpectCodeToAgreeWithReason(),
            ExpectRangesInOrder(),
            ExpectChangesToBeAnsweredWithSuccess(),
            ExpectDeadlinesAfterNow(),
            ExpectQueueTimeNeverToFall(),
            ExpectRecordsOfTheLogToHaveRows(),
            ExpectTablesToBeFresh(),
            ExpectRefusalsThatTheJobCounted(),
        ],
    )
