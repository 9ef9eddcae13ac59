"""The suite of `commit_positions`: positions advance without gaps, and every message is counted."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from broker_state.audit import ERA_ENDING_KINDS, LANE_DELETING_KINDS, LANE_RESETTING_KINDS
from expectations.common_expectations import common_expectations, unless_ended
from expectations.expect_no_rows import ExpectNoRows
from expectations.lease_steps import LANE

__all__ = ["commit_positions_suite"]


class ExpectPositionsNeverToFall(ExpectNoRows):
    """A violation is redelivery of everything."""

    description: str = f"A position goes back only when its record is one of {', '.join(ERA_ENDING_KINDS)}."
    unexpected_rows_query: str = """
        SELECT p.partition, p.kafka_offset, p.topic, p.queue_id, p."group", p.from_offset, p.to_offset
        FROM {batch} AS p
        JOIN operations_seen AS seen ON seen.state_epoch = p.state_epoch AND p.apply_seq <= seen.apply_seq
        WHERE p.from_offset > p.to_offset AND NOT EXISTS (
            SELECT 1 FROM era_endings AS o
            WHERE o.ops_topic_id = p.ops_topic_id AND o.partition = p.partition AND o.kafka_offset = p.kafka_offset
        )
    """


class ExpectPositionsToChain(ExpectNoRows):
    """A missing row, or a row without a move, breaks the chain."""

    description: str = (
        "A position starts where the row before ended, unless its lane or queue was recreated in between."
    )
    unexpected_rows_query: str = f"""
        SELECT c.* EXCLUDE (state_epoch, apply_seq, ops_topic_id, is_new)  /* of {{batch}} */
        FROM (
            SELECT ops_topic_id, state_epoch, apply_seq, partition, topic, queue_id, "group", kafka_offset, from_offset,
                   is_new, lag(to_offset) OVER lane AS to_offset_before, lag(kafka_offset) OVER lane AS moved_before
            FROM known_positions
            WINDOW lane AS (PARTITION BY ops_topic_id, topic, queue_id, "group" ORDER BY kafka_offset, ordinal)
        ) AS c
        JOIN operations_seen AS seen ON seen.state_epoch = c.state_epoch AND c.apply_seq <= seen.apply_seq
        WHERE c.is_new AND c.from_offset <> c.to_offset_before
          AND {unless_ended(LANE_DELETING_KINDS, "c.moved_before")}
    """  # noqa: S608 - constants of the code


class ExpectEveryMessageToBeAccountedFor(ExpectNoRows):
    """Conservation: no message is lost or invented between the start of the lane and its next new message."""

    description: str = "next_offset - start_offset = holes + acked + leased + available, in every row of a lane."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, topic, queue_id, "group",
               start_offset, next_offset, holes, acked, leased, available
        FROM {batch}
        WHERE "group" IS NOT NULL AND next_offset - start_offset <> holes + acked + leased + available
    """


class ExpectCountsToBePossible(ExpectNoRows):
    """Negative counts can balance each other, so each is checked."""

    description: str = "No count is negative, and a lane's position lies between its start and its next offset."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, topic, queue_id, "group", start_offset, to_offset, next_offset, holes,
               acked, leased, available, parked, dead_lettered, expired_from_log, passed_over, skipped_by_reset
        FROM {batch}
        WHERE least(from_offset, to_offset, start_offset, holes, acked, leased, available, parked,
                    dead_lettered, expired_from_log, passed_over, skipped_by_reset) < 0
           OR "group" IS NOT NULL AND (to_offset < start_offset OR to_offset > next_offset)
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
        SELECT c.partition, c.kafka_offset, c.ordinal, c.topic, c.queue_id, c."group", c.acked,
               c.dead_lettered, c.expired_from_log, c.passed_over, c.skipped_by_reset
        FROM {{batch}} AS c
        JOIN deliveries_seen AS seen ON seen.state_epoch = c.state_epoch AND c.apply_seq <= seen.apply_seq
        WHERE c."group" IS NOT NULL AND (SELECT first_day IS NULL FROM history_cut)
          AND c.dead_lettered + c.expired_from_log + c.passed_over + c.skipped_by_reset > c.acked
          AND NOT EXISTS (
              SELECT 1 FROM deliveries AS d
              WHERE d.step = 'leased' AND d.cause = 'pop_in_order' AND d.ops_topic_id = c.ops_topic_id
                AND d.topic = c.topic AND d.queue_id = c.queue_id AND d."group" = c."group"
          )
          AND {unless_ended(LANE_RESETTING_KINDS, "-1")}
    """  # noqa: S608 - constants of the code


class ExpectLeasedToAgreeWithDeliveries(ExpectNoRows):
    """The counter in the state and the history of leases are stored separately, and must agree.

    Where the lane has earlier rows, what `leased` said in its first judged row is taken as given.
    """

    description: str = "`leased` in a lane's last row equals the number of live leases in its deliveries."
    unexpected_rows_query: str = f"""
        WITH judged AS (
            SELECT {LANE} AS lane, p.*, coalesce(r.era, 0) AS era
            FROM {{batch}} AS p
            JOIN deliveries_seen AS seen ON seen.state_epoch = p.state_epoch AND p.apply_seq <= seen.apply_seq
            ASOF LEFT JOIN lease_resets AS r
                ON r.lane = hash(p.ops_topic_id, p.topic, p.queue_id, p."group") AND p.kafka_offset >= r.kafka_offset
            WHERE p."group" IS NOT NULL
        ), last AS (
            FROM judged QUALIFY row_number() OVER (PARTITION BY lane ORDER BY kafka_offset DESC, ordinal DESC) = 1
        ), given AS (
            FROM judged
            WHERE lane IN (
                SELECT {LANE} FROM earlier_deliveries
                UNION ALL SELECT {LANE} FROM known_positions WHERE NOT is_new AND "group" IS NOT NULL
            )
            QUALIFY row_number() OVER (PARTITION BY lane ORDER BY kafka_offset, ordinal) = 1
        ), compared AS (
            SELECT last.*, coalesce(given.kafka_offset, -1) AS given_at,
                   CASE WHEN given.era = last.era THEN given.leased ELSE 0 END AS leased_given
            FROM last LEFT JOIN given USING (lane)
        )
        SELECT * FROM (
            SELECT c.partition, c.kafka_offset, c.topic, c.queue_id, c."group", c.leased,
                   c.leased_given + coalesce(sum(s.leased_delta), 0) AS in_deliveries
            FROM compared AS c
            LEFT JOIN lease_steps AS s
                ON s.lane = c.lane AND s.era = c.era
                AND s.kafka_offset > c.given_at AND s.kafka_offset <= c.kafka_offset
            GROUP BY c.partition, c.kafka_offset, c.topic, c.queue_id, c."group", c.leased, c.leased_given
        )
        WHERE leased < in_deliveries OR leased > in_deliveries AND (SELECT first_day IS NULL FROM history_cut)
    """  # noqa: S608 - constants of the code


class ExpectCountedMessagesToHaveUnits(ExpectNoRows):
    """A message that is counted and that no record of the topic has was invented, or its unit was deleted."""

    description: str = "A lane's acked, leased and available messages are at most the units in its range."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT p.partition, p.kafka_offset, p.topic, p.queue_id, p."group", p.start_offset, p.next_offset,
                   p.acked + p.leased + p.available AS messages,
                   coalesce(upto.number, 0) - coalesce(below.number, 0) AS units
            FROM (
                FROM {batch} WHERE "group" IS NOT NULL
                QUALIFY row_number() OVER (
                    PARTITION BY topic, queue_id, "group" ORDER BY now_ms DESC, kafka_offset DESC, ordinal DESC
                ) = 1
            ) AS p
            JOIN unit_spans AS spans
                ON spans.topic = p.topic AND spans.queue_id = p.queue_id
                AND p.start_offset >= spans.first_unit AND p.next_offset - 1 <= spans.last_unit
            ASOF LEFT JOIN unit_index AS upto
                ON upto.topic = p.topic AND upto.queue_id = p.queue_id AND p.next_offset > upto.queue_offset
            ASOF LEFT JOIN unit_index AS below
                ON below.topic = p.topic AND below.queue_id = p.queue_id AND p.start_offset > below.queue_offset
        )
        WHERE messages > units
    """


class ExpectPositionsOfTheJob(ExpectNoRows):
    """Compares with the running job, if it is asked: between before and after the tables were opened, they agree."""

    description: str = "The last position of a lane, or queue, is that of the job."
    unexpected_rows_query: str = """
        SELECT p.partition, p.kafka_offset, p.topic, p.queue_id, p."group", p.to_offset, j.least, j.greatest
        FROM (
            FROM known_positions  /* {batch}, and where a lane has none, its last row before */
            QUALIFY row_number() OVER (
                PARTITION BY topic, queue_id, "group" ORDER BY now_ms DESC, kafka_offset DESC, ordinal DESC
            ) = 1
        ) AS p
        JOIN job_positions AS j
            ON j.topic = p.topic AND j.queue_id = p.queue_id AND j."group" IS NOT DISTINCT FROM p."group"
        WHERE p.to_offset NOT BETWEEN j.least AND j.greatest
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
            ExpectCountedMessagesToHaveUnits(),
            ExpectPositionsOfTheJob(),
        ],
    )
