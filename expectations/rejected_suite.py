"""The suite of `rejected`: rejected records are stored unchanged, and decided nothing."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from broker_state.audit import REJECTED_HEAD_BYTES
from expectations.common_expectations import common_expectations
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["rejected_suite"]


class ExpectHeadToBeTheStartOfTheValue(ExpectNoRows):
    """The head is evidence, unless it is not kept: it has the full length, and matches the digest of a whole value."""

    description: str = (
        "`value_head` is the first 4 KiB of a value with this length and digest, or their SHA-256, or empty: not kept."
    )
    unexpected_rows_query: str = f"""
        SELECT partition, kafka_offset, ordinal, value_bytes, octet_length(value_head) AS head_bytes, value_sha256
        FROM {{batch}}
        WHERE NOT regexp_full_match(value_sha256, '[0-9a-f]{{{{64}}}}')
           OR NOT (
               octet_length(value_head) = 0
               OR value_bytes > {REJECTED_HEAD_BYTES} AND octet_length(value_head) IN ({REJECTED_HEAD_BYTES}, 32)
               OR value_bytes = octet_length(value_head) AND value_sha256 = sha256(value_head)
               OR value_bytes <= {REJECTED_HEAD_BYTES} AND value_sha256 = lower(hex(value_head))
           )
    """  # noqa: S608 - constants of the code


class ExpectReasonsToBeWords(ExpectNoRows):
    """Reasons are counted and trigger alerts; text belongs into `detail`."""

    description: str = "`reason` is one word in capitals."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, reason FROM {batch} WHERE NOT regexp_full_match(reason, '[A-Z][A-Z_]*')
    """


class ExpectRejectedToBeUndecided(ExpectNoRows):
    """A record is either decided or rejected."""

    description: str = "A rejected record has no rows in the other tables."
    unexpected_rows_query: str = """
        SELECT r.partition, r.kafka_offset, r.reason
        FROM {batch} AS r
        SEMI JOIN (
            SELECT ops_topic_id, partition, kafka_offset FROM new_operations
            UNION ALL SELECT ops_topic_id, partition, kafka_offset FROM new_deliveries
            UNION ALL SELECT ops_topic_id, partition, kafka_offset FROM new_commit_positions
        ) AS decided
        USING (ops_topic_id, partition, kafka_offset)
    """


class ExpectRejectionsThatTheJobCounted(ExpectNoRows):
    """Compares with the running job, if it is asked. After a restore rows are of two states, and not compared."""

    description: str = "There are as many rejected records as the job has counted since it started."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT j.least, j.greatest, (
                SELECT count(*) FROM rejected AS r  /* and not only of {batch} */ WHERE r.apply_seq >= j.since_seq
            ) AS found
            FROM job_figures AS j
            WHERE j.what = 'rejected' AND NOT EXISTS (
                SELECT 1 FROM operations AS o WHERE NOT starts_with(o.state_epoch, j.state)
            )
        )
        WHERE found NOT BETWEEN least AND greatest
    """


def rejected_suite() -> ExpectationSuite:
    """Return the rules about rejected records."""
    return ExpectationSuite(
        "rejected",
        expectations=[
            *common_expectations("rejected"),
            ExpectHeadToBeTheStartOfTheValue(),
            ExpectReasonsToBeWords(),
            ExpectRejectedToBeUndecided(),
            ExpectRejectionsThatTheJobCounted(),
        ],
    )
