"""The suite of `deliveries`: no message has two owners, and none is handed out when it is done."""

from __future__ import annotations

from typing import Final

from great_expectations import ExpectationSuite

from broker_state.audit import DeliveryStep
from connectors.delta.views import ENDS_ERA
from expectations.common import MADE_ANEW, common_expectations
from expectations.rows import ExpectNoRows

__all__ = ["deliveries_suite"]

_KNOWN_STEPS: Final = ", ".join(f"'{step}'" for step in DeliveryStep)


def _broken(rule: str) -> str:
    """The rows of `deliveries` whose step broke `rule`, with the messages it broke it for."""
    return f"""
        SELECT d.partition, d.kafka_offset, d.ordinal, d.topic, d.queue_id, d.`group`, d.step, d.cause, d.epoch,
               d.revision, d.attempt, s.first_offset, s.last_offset
        FROM (SELECT * FROM lease_steps WHERE rule = '{rule}') AS s
        JOIN {{batch}} AS d
            ON d.kafka_offset = s.kafka_offset AND d.ordinal = s.ordinal
            AND xxhash64(d.ops_topic_id, d.topic, d.queue_id, d.`group`) = s.lane
    """  # noqa: S608 - constants of this module


class ExpectKnownSteps(ExpectNoRows):
    """A step without rules would pass all of them."""

    description: str = "`step` is one of the transitions of a lease."
    unexpected_rows_query: str = (
        f"SELECT partition, kafka_offset, ordinal, step FROM {{batch}} WHERE step NOT IN ({_KNOWN_STEPS})"  # noqa: S608
    )


class ExpectRangesAndCountersInRange(ExpectNoRows):
    """Rows with an empty range would take part in no other rule."""

    description: str = "0 <= first_offset <= last_offset, epoch and attempt from 1, revision from 0."
    unexpected_rows_query: str = f"""
        SELECT partition, kafka_offset, ordinal, step, first_offset, last_offset, epoch, revision, attempt
        FROM {{batch}}
        WHERE (first_offset < 0 OR first_offset > last_offset OR epoch < 1 OR attempt < 1 OR revision < 0)
          AND NOT ({ENDS_ERA})
    """  # noqa: S608 - constants of the code


class ExpectStepsAtTheirTime(ExpectNoRows):
    """An expiry is told by the record that brings it, and has its deadline's time; everything else happens now."""

    description: str = "A step happens at `now_ms`, or before it when a deadline brought it; an expiry at its deadline."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, step, cause, now_ms, at_ms, deadline_ms
        FROM {batch}
        WHERE at_ms > now_ms
           OR at_ms <> now_ms AND step NOT IN ('expired', 'dead_lettered')
           OR at_ms <> deadline_ms AND step = 'expired'
    """


class ExpectLeasesToEndAfterNow(ExpectNoRows):
    """A lease that has ended when it begins is handed out for nothing."""

    description: str = "The deadline of a lease that is given or changed lies after `now_ms`."
    unexpected_rows_query: str = """
        SELECT partition, kafka_offset, ordinal, step, now_ms, deadline_ms
        FROM {batch}
        WHERE step IN ('leased', 'changed') AND (deadline_ms IS NULL OR deadline_ms <= now_ms)
    """


class ExpectOneLiveLeaseOfAMessage(ExpectNoRows):
    """Two consumers with the same message at the same time: the promise that a lease makes."""

    description: str = (
        "A message is leased only when its lease before was acked, changed to 0, expired or ended otherwise."
    )
    unexpected_rows_query: str = _broken("two_live_leases")


class ExpectDoneMessagesToStayDone(ExpectNoRows):
    """Concurrent lanes only: an orderly lane delivers an acked message again with its unacked predecessor."""

    description: str = "A message that was acked, dead-lettered or expired from the log is not leased again."
    unexpected_rows_query: str = _broken("done_leased_again")


class ExpectStepsOfALeaseThatExists(ExpectNoRows):
    """An ack that counted without a lease is how RocketMQ's commitAndNext skips messages."""

    description: str = "Every step but `leased` continues the message's last lease, which is not over."
    unexpected_rows_query: str = _broken("step_without_lease")


class ExpectAttemptsToCountDeliveries(ExpectNoRows):
    """One more by delivery; the same again only if a change suspended the lease or it was cancelled or released."""

    description: str = "The attempt is 1 at first, then one more than before (or the same, after a suspended delivery)."
    unexpected_rows_query: str = _broken("attempt")


class ExpectRevisionsToCountChanges(ExpectNoRows):
    """The revision is what refuses a stale change: it must never stand still or jump."""

    description: str = "The revision is 0 in a new lease and one more after each change."
    unexpected_rows_query: str = _broken("revision")


class ExpectNothingLeasedBelowTheCommitOffset(ExpectNoRows):
    """Below its commit offset a lane is done; only a reset_offset goes back, and its row says so."""

    description: str = "A leased range begins at or above the lane's commit offset at that record."
    unexpected_rows_query: str = f"""
        SELECT c.* EXCEPT (state_epoch, apply_seq, ops_topic_id)
        FROM (
            SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, `group`,
                   first_offset, last_offset, last_value(moved, true) OVER (
                       PARTITION BY ops_topic_id, topic, queue_id, `group` ORDER BY kafka_offset, phase, ordinal
                   ) AS moved
            FROM (
                SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, `group`,
                       first_offset, last_offset, 1 AS phase,
                       CAST(NULL AS STRUCT<to_offset: BIGINT, kafka_offset: BIGINT>) AS moved
                FROM {{batch}} WHERE step = 'leased'
                UNION ALL
                SELECT ops_topic_id, state_epoch, apply_seq, partition, kafka_offset, ordinal, topic, queue_id, `group`,
                       NULL, NULL, 0, struct(to_offset, kafka_offset)
                FROM commit_positions WHERE `group` IS NOT NULL
            )
        ) AS c
        JOIN operations_seen AS seen ON seen.state_epoch = c.state_epoch AND c.apply_seq <= seen.apply_seq
        LEFT ANTI JOIN operations AS o
            ON o.ops_topic_id = c.ops_topic_id AND o.topic = c.topic AND o.queue_id = c.queue_id
            AND o.kafka_offset > c.moved.kafka_offset AND o.kafka_offset <= c.kafka_offset AND o.applied
            AND {MADE_ANEW}
        WHERE c.first_offset < c.moved.to_offset
    """  # noqa: S608 - constants of the code


def deliveries_suite() -> ExpectationSuite:
    """Rules of the leases."""
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
        ],
    )
