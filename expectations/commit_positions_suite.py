"""The suite of `commit_positions`: positions advance without gaps, and every message is counted."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from broker_state.audit import ERA_ENDING_KINDS, LANE_RESETTING_KINDS
from connectors.delta.views import sql_list
from expectations.common_expectations import MADE_ANEW, common_expectations
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["commit_positions_suite"]


class ExpectPositionsNeverToFall(ExpectNoRows):
    """A violation is redelivery of everything."""

    description: str = f"A position goes back only when its record is one of {', '.join(ERA_ENDING_KINDS)}."
    unexpected_rows_query: str = f"""
        SELECT p.partition, p.kafka_offset, p.topic, p.queue_id, p.`group`, p.from_offset, p.to_offset
        FROM {{batch}} AS p
        JOIN operations_seen AS seen ON seen.state_epoch = p.state_epoch AND p.apply_seq <= seen.apply_seq
        LEFT ANTI JOIN operations AS o
            ON o.ops_topic_id = p.ops_topic_id AND o.partition = p.partition AND o.kafka_offset = p.kafka_offset
            AND o.applied AND o.kind IN ({sql_list(ERA_ENDING_KINDS)})
        WHERE p.from_offset > p.to_offset
    """  # noqa: S608 - constants of the code


class ExpectPositionsToChain(ExpectNoRows):
    """A missing row, or a row without a move, breaks the chain."""

    description: str = (
        "A position starts where the row before ended, unless its lane or queue was recreated in between."
    )
    unexpected_rows_query: str = f"""
        SELECT c.* EXCEPT (state_epoch, apply_seq, ops_topic_id)
        FROM (
            SELECT ops_topic_id, state_epoch, apply_seq, partition, topic, queue_id, `group`, kafka_offset, from_offset,
                   lag(to_offset) OVER lane AS to_offset_before, lag(kafka_offset) OVER lane AS kafka_offset_before
            FROM {{batch}}
            WINDOW lane AS (PARTITION BY ops_topic_id, topic, queue_id, `group` ORDER BY kafka_offset, ordinal)
        ) AS c
        JOIN operations_seen AS seen ON seen.state_epoch = c.state_epoch AND c.apply_seq <= seen.apply_seq
        LEFT ANTI JOIN operations AS o
            ON o.ops_topic_id = c.ops_topic_id AND o.topic = c.topic AND o.queue_id = c.queue_id
            AND o.kafka_offset > c.kafka_offset_before AND o.kafka_offset <= c.kafka_offset AND o.applied
            AND {MADE_ANEW}
        WHERE c.from_offset <> c.to_offset_before
    """  # noqa: S608 - constants of the code


class ExpectEveryMessageToBeAccountedFor(ExpectNoRows):
    """Conservation: no message is lost or invented between the start of the lane and its next new message."""

    description: str = "next_offset - start_offset = holes + acked + leased + available, in every row of a lane."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, topic, queue_id, `group`,
               start_offset, next_offset, holes, acked, leased, available
        FROM {batch}
        WHERE `group` IS NOT NULL AND next_offset - start_offset <> holes + acked + leased + available
    """


class ExpectCountsToBePossible(ExpectNoRows):
    """Negative counts can balance each other, so each is checked."""

    description: str = "No count is negative, and a lane's position lies between its start and its next offset."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, topic, queue_id, `group`, start_offset, to_offset, next_offset, holes,
               acked, leased, available, parked, dead_lettered, expired_from_log, passed_over, skipped_by_reset
        FROM {batch}
        WHERE least(from_offset, to_offset, start_offset, holes, acked, leased, available, parked,
                    dead_lettered, expired_from_log, passed_over, skipped_by_reset) < 0
           OR `group` IS NOT NULL AND (to_offset < start_offset OR to_offset > next_offset)
    """


class ExpectPartsNotToExceedTheWhole(ExpectNoRows):
    """A reset reduces `acked` but not its parts, which count for the lane's whole life.

    In an orderly lane a member counts as `acked` only when the commit offset has passed it. Until then it may be
    delivered again, and end in another way, or in the same way once more (docs/semantics.md, orderly lanes).
    """

    description: str = (
        "The parts of `acked` do not exceed it, unless the lane is orderly or was reset. (Where retention may have"
        " deleted a reset, this is not checked.)"
    )
    unexpected_rows_query: str = f"""
        SELECT p.partition, p.kafka_offset, p.ordinal, p.topic, p.queue_id, p.`group`, p.acked,
               p.dead_lettered, p.expired_from_log, p.passed_over, p.skipped_by_reset
        FROM {{batch}} AS p
        JOIN deliveries_seen AS seen ON seen.state_epoch = p.state_epoch AND p.apply_seq <= seen.apply_seq
        LEFT ANTI JOIN (
            SELECT DISTINCT ops_topic_id, topic, queue_id, `group`
            FROM deliveries WHERE step = 'leased' AND cause = 'pop_in_order'
        ) AS orderly
            ON orderly.ops_topic_id = p.ops_topic_id AND orderly.topic = p.topic AND orderly.queue_id = p.queue_id
            AND orderly.`group` = p.`group`
        LEFT ANTI JOIN operations AS o
            ON o.ops_topic_id = p.ops_topic_id AND o.topic = p.topic AND o.queue_id = p.queue_id
            AND o.`group` = p.`group` AND o.kafka_offset <= p.kafka_offset
            AND o.applied AND o.kind IN ({sql_list(LANE_RESETTING_KINDS)})
        WHERE p.`group` IS NOT NULL AND (SELECT first_day IS NULL FROM history_cut)
          AND p.dead_lettered + p.expired_from_log + p.passed_over + p.skipped_by_reset > p.acked
    """  # noqa: S608 - constants of the code


class ExpectLeasedToAgreeWithDeliveries(ExpectNoRows):
    """The counter in the state and the history of leases are stored separately, and must agree."""

    description: str = (
        "`leased` in a lane's last row equals the number of live leases in its deliveries (or exceeds it by those from"
        " before the first date that retention has left)."
    )
    unexpected_rows_query: str = """
        WITH last AS (
            SELECT xxhash64(p.ops_topic_id, p.topic, p.queue_id, p.`group`) AS lane,
                   max(struct(p.kafka_offset, p.ordinal, p.leased, p.partition, p.topic, p.queue_id, p.`group`)) AS row
            FROM {batch} AS p
            JOIN deliveries_seen AS seen ON seen.state_epoch = p.state_epoch AND p.apply_seq <= seen.apply_seq
            WHERE p.`group` IS NOT NULL
            GROUP BY 1
        ), totals AS (
            SELECT lane, max_by(total, era) AS total
            FROM (
                SELECT /*+ BROADCAST(last) */ s.lane, s.era, sum(s.leased_delta) AS total
                FROM lease_steps AS s JOIN last ON s.lane = last.lane AND s.kafka_offset <= last.row.kafka_offset
                GROUP BY s.lane, s.era
            )
            GROUP BY lane
        )
        SELECT row.partition, row.kafka_offset, row.topic, row.queue_id, row.`group`, row.leased,
               coalesce(total, 0) AS in_deliveries
        FROM last LEFT JOIN totals USING (lane)
        WHERE row.leased < coalesce(total, 0)
           OR row.leased > coalesce(total, 0) AND (SELECT first_day IS NULL FROM history_cut)
    """


def commit_positions_suite() -> ExpectationSuite:
    """Return the rules about positions and counts."""
    return ExpectationSuite(
        "commit_positions",
        expectations=[
            *common_expectations("commit_positions"),
            ExpectPositionsNeverToFall(),
            ExpectPositionsToChain(),
            ExpectEveryMessageToBeAccountedFor(),
            ExpectCountsToBePossible(),
            ExpectPartsNotToExceedTheWhole(),
            ExpectLeasedToAgreeWithDeliveries(),
        ],
    )
