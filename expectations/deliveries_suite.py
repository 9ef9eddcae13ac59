"""The suite of `deliveries`: no message has two live leases, and no message is leased when it is done."""

from __future__ import annotations

from great_expectations import ExpectationSuite

from broker_state.audit import LANE_DELETING_KINDS, DeliveryStep
from connectors.delta.views import ENDS_ERA, sql_list
from expectations.common_expectations import common_expectations, unless_ended
from expectations.expect_no_rows import ExpectNoRows

__all__ = ["deliveries_suite"]


def _broken(rule: str) -> str:
    """Return a query for the rows of `deliveries` whose step violates `rule`, with the messages concerned."""
    return f"""
        SELECT d.partition, d.kafka_offset, d.ordinal, d.topic, d.queue_id, d."group", d.step, d.cause, d.epoch,
               d.revision, d.attempt, s.first_offset, s.last_offset
        FROM (SELECT * FROM lease_steps WHERE rule = '{rule}') AS s
        JOIN {{batch}} AS d
            ON d.kafka_offset = s.kafka_offset AND d.ordinal = s.ordinal
            AND hash(d.ops_topic_id, d.topic, d.queue_id, d."group") = s.lane
    """  # noqa: S608 - constants of this module


class ExpectKnownSteps(ExpectNoRows):
    """The other rules would not notice an unknown step."""

    description: str = "`step` is one of the transitions of a lease."
    unexpected_rows_query: str = (
        f"SELECT partition, kafka_offset, ordinal, step FROM {{batch}} WHERE step NOT IN ({sql_list(DeliveryStep)})"  # noqa: S608
    )


class ExpectRangesAndCountersInRange(ExpectNoRows):
    """The other rules would not notice rows with an empty range."""

    description: str = "0 <= first_offset <= last_offset, epoch and attempt from 1, revision from 0."
    unexpected_rows_query: str = f"""
        SELECT partition, kafka_offset, ordinal, step, first_offset, last_offset, epoch, revision, attempt
        FROM {{batch}}
        WHERE (first_offset < 0 OR first_offset > last_offset OR epoch < 1 OR attempt < 1 OR revision < 0)
          AND NOT ({ENDS_ERA})
    """  # noqa: S608 - constants of the code


class ExpectStepsAtTheirTime(ExpectNoRows):
    """An expiry takes effect at its deadline, although a later record causes its row; all else happens now."""

    description: str = "A step happens at `now_ms`, or before it if a deadline caused it; an expiry at its deadline."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, step, cause, now_ms, at_ms, deadline_ms
        FROM {batch}
        WHERE at_ms > now_ms
           OR at_ms <> now_ms AND step NOT IN ('expired', 'dead_lettered')
           OR at_ms <> deadline_ms AND step = 'expired'
    """


class ExpectLeasesToEndAfterNow(ExpectNoRows):
    """A lease that has ended when it begins is useless."""

    description: str = "The deadline of a new or changed lease is after `now_ms`."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, step, now_ms, deadline_ms
        FROM {batch}
        WHERE step IN ('leased', 'changed') AND (deadline_ms IS NULL OR deadline_ms <= now_ms)
    """


class ExpectOneLiveLeaseOfAMessage(ExpectNoRows):
    """The guarantee of a lease: no two consumers have the same message at the same time."""

    description: str = (
        "A message is leased only after its previous lease was acked, changed to 0, expired or ended otherwise."
    )
    unexpected_rows_query: str = _broken("two_live_leases")


class ExpectDoneMessagesToStayDone(ExpectNoRows):
    """Concurrent lanes only: an orderly lane redelivers an acked message with its unacked predecessor."""

    description: str = "A message that was acked, dead-lettered or expired from the log is not leased again."
    unexpected_rows_query: str = _broken("done_leased_again")


class ExpectStepsOfALeaseThatExists(ExpectNoRows):
    """An ack without a lease that takes effect is how RocketMQ's commitAndNext skips messages."""

    description: str = "Every step but `leased` continues the message's last lease, which has not ended."
    unexpected_rows_query: str = _broken("step_without_lease")


class ExpectAttemptsToCountDeliveries(ExpectNoRows):
    """A delivery adds one, unless the delivery before was suspended by a change, cancelled or released."""

    description: str = "The attempt is 1 at first, then one more than before (or equal, after a suspended delivery)."
    unexpected_rows_query: str = _broken("attempt")


class ExpectRevisionsToCountChanges(ExpectNoRows):
    """The revision makes stale changes detectable: it must neither stay nor jump."""

    description: str = "The revision is 0 in a new lease and one more after each change."
    unexpected_rows_query: str = _broken("revision")


class ExpectNothingLeasedBelowTheCommitOffset(ExpectNoRows):
    """All messages below the commit offset of a lane are done, unless a reset went back."""

    description: str = "A leased range begins at or above the lane's commit offset at that record."
    unexpected_rows_query: str = f"""
        SELECT c.* EXCLUDE (state_epoch, apply_seq, ops_topic_id)
        FROM (
            SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, "group",
                   first_offset, last_offset, last_value(moved_to IGNORE NULLS) OVER in_order AS moved_to,
                   last_value(moved_at IGNORE NULLS) OVER in_order AS moved_at
            FROM (
                SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, "group",
                       first_offset, last_offset, 1 AS phase, NULL::BIGINT AS moved_to, NULL::BIGINT AS moved_at
                FROM {{batch}} WHERE step = 'leased'
                UNION ALL
                SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, "group",
                       NULL, NULL, 0, to_offset, kafka_offset
                FROM known_positions WHERE "group" IS NOT NULL
            )
            WINDOW in_order AS (
                PARTITION BY ops_topic_id, topic, queue_id, "group" ORDER BY kafka_offset, phase, ordinal
            )
        ) AS c
        JOIN operations_seen AS seen ON seen.state_epoch = c.state_epoch AND c.apply_seq <= seen.apply_seq
        WHERE c.first_offset < c.moved_to AND {unless_ended(LANE_DELETING_KINDS, "c.moved_at")}
    """  # noqa: S608 - constants of the code


class ExpectDeliveredMessagesToHaveUnits(ExpectNoRows):
    """A message that no record of the topic has was invented, or its unit was deleted.

    Offsets before the first unit of the queue are left out, and those after the last, which are still to be flushed.
    Queues that the job does not build have no units.
    """

    description: str = "Every offset that was leased is that of a unit in `consume_queue`."
    unexpected_rows_query: str = """
        SELECT * FROM (
            SELECT d.partition, d.kafka_offset, d.ordinal, d.topic, d.queue_id, d."group", d.first_offset,
                   d.last_offset, coalesce(upto.number, 0) - coalesce(below.number, 0) AS units
            FROM {batch} AS d
            JOIN unit_spans AS spans
                ON spans.topic = d.topic AND spans.queue_id = d.queue_id
                AND d.first_offset >= spans.first_unit AND d.last_offset <= spans.last_unit
            ASOF LEFT JOIN unit_index AS upto
                ON upto.topic = d.topic AND upto.queue_id = d.queue_id AND d.last_offset >= upto.queue_offset
            ASOF LEFT JOIN unit_index AS below
                ON below.topic = d.topic AND below.queue_id = d.queue_id AND d.first_offset > below.queue_offset
            WHERE d.step = 'leased' AND d.first_offset <= d.last_offset
        )
        WHERE units <> last_offset - first_offset + 1
    """


def deliveries_suite() -> ExpectationSuite:
    """Return the rules about leases."""
    return ExpectationSuite(
        "deliveries",
        expectations=[
            *common_expectations("deliveries"),
            ExpectKnownSteps(),
            ExpectRangesAndCountersInRange(),
            ExpectStepsAtTheirTime(),
            ExpectLeasesToEndAfterNow(),
            ExpectOneLiveLeaseOfAMessage(),
            ExpectDoneMessagesToStayDone(),
            ExpectStepsOfALeaseThatExists(),
            ExpectAttemptsToCountDeliveries(),
            ExpectRevisionsToCountChanges(),
            ExpectNothingLeasedBelowTheCommitOffset(),
            ExpectDeliveredMessagesToHaveUnits(),
        ],
    )
