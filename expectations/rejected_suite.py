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
        SELECT partition, kafka_offset, ordinal, value_bytes, length(value_head) AS head_bytes, value_sha256
        FROM {{batch}}
        WHERE NOT value_sha256 RLIKE '^[0-9a-f]{{{{64}}}}$'
           OR NOT (
               length(value_head) = 0
               OR value_bytes > {REJECTED_HEAD_BYTES} AND length(value_head) IN ({REJECTED_HEAD_BYTES}, 32)
               OR value_bytes = length(value_head) AND value_sha256 = sha2(value_head, 256)
               OR value_bytes <= {REJECTED_HEAD_BYTES} AND value_sha256 = lower(hex(value_head))
           )
    """  # noqa: S608 - constants of the code


class ExpectReasonsToBeWords(ExpectNoRows):
    """Reasons are counted and trigger alerts; text belongs into `detail`."""

    description: str = "`reason` is one word in capitals."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, reason FROM {batch} WHERE NOT reason RLIKE '^[A-Z][A-Z_]*$'
    """


class ExpectRejectedToBeUndecided(ExpectNoRows):
    """A record is either decided or rejected."""

    description: str = "A rejected record has no rows in the other tables."
    unexpected_rows_query: str = """
        SELECT r.partition, r.kafka_offset, r.reason
        FROM {batch} AS r
        LEFT SEMI JOIN (
            SELECT ops_topic_id, partition, kafka_offset FROM operations
            UNION ALL SELECT ops_topic_id, partition, kafka_offset FROM deliveries
            UNION ALL SELECT ops_topic_id, partition, kafka_offset FROM commit_positions
        ) AS decided
        USING (ops_topic_id, partition, kafka_offset)
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
        ],
    )
