"""The suite of `order_info`: an orderly lane's batch is what its pop leased, and blocks while members are leased."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from expectations.common_expectations import common_expectations
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["order_info_suite"]


class ExpectBatchesToBePossible(ExpectNoRows):
    """The other rules need consistent counts."""

    description: str = "A batch has members, at most as many as its range has offsets, and at most as many are acked."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, first_offset, last_offset, members, acked, epoch, least_count
        FROM {batch}
        WHERE members < 1 OR members > last_offset - first_offset + 1 OR acked NOT BETWEEN 0 AND members
           OR first_offset < 0 OR epoch < 1 OR least_count < 0
    """


class ExpectDoneBatchesToMoveTheCommitOffset(ExpectNoRows):
    """The commit offset of an orderly lane follows its acked batches."""

    description: str = "When every member is acked, the commit offset is after the last one."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, last_offset, members, acked, commit_offset
        FROM {batch}
        WHERE acked = members AND commit_offset <= last_offset
    """


class ExpectBlocksToEnd(ExpectNoRows):
    """A lane must not be blocked until a time in the past."""

    description: str = "`free_at_ms` is after `now_ms`, and null when every member is acked."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, now_ms, free_at_ms, members, acked
        FROM {batch}
        WHERE free_at_ms <= now_ms OR acked = members AND free_at_ms IS NOT NULL
    """


class ExpectBatchesToFollowEachOther(ExpectNoRows):
    """Handles of an older batch must stay stale."""

    description: str = "Epochs of a lane never fall."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT partition, kafka_offset, ordinal, topic, queue_id, "group", epoch,
                   lag(epoch) OVER (
                       PARTITION BY ops_topic_id, topic, queue_id, "group" ORDER BY kafka_offset, ordinal
                   ) AS epoch_before
            FROM {batch}
        )
        WHERE epoch < epoch_before
    """


class ExpectMembersToBeLeased(ExpectNoRows):
    """The batch and the deliveries of a pop must agree."""

    description: str = "The record that created a batch leased as many messages as the batch has members."
    unexpected_rows_query: str = """
        SELECT b.partition, b.kafka_offset, b.ordinal, b.topic, b.queue_id, b."group", b.epoch, b.members, d.leased
        FROM {batch} AS b
        JOIN deliveries_seen AS seen ON seen.state_epoch = b.state_epoch AND b.apply_seq <= seen.apply_seq
        JOIN (
            SELECT ops_topic_id, partition, kafka_offset, topic, queue_id, "group", epoch,
                   sum(last_offset - first_offset + 1) AS leased
            FROM new_deliveries WHERE step = 'leased'
            GROUP BY ALL
        ) AS d
            ON d.ops_topic_id = b.ops_topic_id AND d.partition = b.partition AND d.kafka_offset = b.kafka_offset
            AND d.topic = b.topic AND d.queue_id = b.queue_id AND d."group" = b."group" AND d.epoch = b.epoch
        WHERE d.leased <> b.members
    """


def order_info_suite() -> ExpectationSuite:
    """Return the rules about the batches of orderly lanes."""
    return ExpectationSuite(
        "order_info",
        expectations=[
            *common_expectations("order_info"),
            ExpectBatchesToBePossible(),
            ExpectDoneBatchesToMoveTheCommitOffset(),
            ExpectBlocksToEnd(),
            ExpectBatchesToFollowEachOther(),
            ExpectMembersToBeLeased(),
        ],
    )
