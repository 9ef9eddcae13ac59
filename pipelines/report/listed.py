"""What a report lists: lanes, messages, dead letters, refusals, and results of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipelines.report.report_data import (
    DeadLetters,
    Lane,
    LaneFacts,
    QualityResult,
    Redelivered,
    Refusals,
    SlowLease,
)
from pipelines.report.report_tables import IN_PERIOD, STEPS
from pipelines.report.time_series import POPS, RESET_POPS

if TYPE_CHECKING:
    from pipelines.report.report_tables import ReportTables

__all__ = [
    "read_dead_letters",
    "read_lanes",
    "read_quality",
    "read_redelivered",
    "read_refusals",
    "read_rejected",
    "read_slowest",
]

LISTED_MAX: Final = 20

_LANE: Final = 'topic, queue_id, "group"'
_LAST: Final = "arg_max(struct_pack({0}), (now_ms, kafka_offset, ordinal))"

# A lane whose position has not moved has no row of its own there: it is known by its pops, and by the first of them.
_LANES: Final = f"""
    WITH {STEPS},
    queues AS (
        SELECT topic, queue_id, {_LAST.format("to_offset").replace("to_offset", "e := to_offset")}.e AS commit_position
        FROM commit_positions WHERE "group" IS NULL AND now_ms < $until_ms AND {{topic_scope}} GROUP BY topic, queue_id
    ),
    moved AS (
        SELECT {_LANE}, {_LAST.format("o := to_offset, d := dead_lettered, t := now_ms")} AS last
        FROM commit_positions WHERE "group" IS NOT NULL AND now_ms < $until_ms AND {{scope}} GROUP BY {_LANE}
    ),
    named AS (SELECT {_LANE}, any_value(lane) AS lane, min(first_offset) AS first FROM steps GROUP BY {_LANE}),
    held AS (
        SELECT lane, sum(leased - ended) AS in_flight FROM {POPS} ANTI JOIN {RESET_POPS} USING (lane, epoch)
        WHERE leased > ended GROUP BY lane
    ),
    lanes AS (
        SELECT coalesce(moved.topic, named.topic) AS topic, coalesce(moved.queue_id, named.queue_id) AS queue_id,
               coalesce(moved."group", named."group") AS "group", last.o AS commit_offset,
               coalesce(last.o, named.first) AS position, last.d AS dead, last.t AS moved_ms,
               coalesce(in_flight, 0) AS in_flight
        FROM moved FULL JOIN named USING ({_LANE}) LEFT JOIN held ON held.lane = named.lane
    ),
    lagging AS (
        SELECT lanes.*, greatest(coalesce(commit_position, position) - position, 0) AS lag,
               count(*) OVER () AS lanes_no,
               sum(greatest(coalesce(commit_position, position) - position, 0)) OVER () AS lag_of_all
        FROM lanes LEFT JOIN queues USING (topic, queue_id)
        ORDER BY lag DESC, in_flight DESC, topic, queue_id, "group" LIMIT {LISTED_MAX}
    )
    SELECT l.*, (SELECT max(store_time_ms) FROM consume_queue AS u
                 WHERE u.topic = l.topic AND u.queue_id = l.queue_id AND u.queue_offset = l.position AND l.lag > 0)
    FROM lagging AS l ORDER BY lag DESC, in_flight DESC, topic, queue_id, "group"
"""  # noqa: S608 - constants

_SLOWEST: Final = f"""
    WITH {STEPS}
    SELECT "group", topic, queue_id, first_offset, last_offset, client_id, attempt, began_ms, at_ms
    FROM steps JOIN {POPS} USING (lane, epoch)
    WHERE step = 'acked' AND began_ms IS NOT NULL AND {IN_PERIOD}
    ORDER BY at_ms - began_ms DESC, at_ms, first_offset LIMIT {LISTED_MAX}
"""  # noqa: S608

_REDELIVERED: Final = f"""
    WITH {STEPS},
    again AS (
        SELECT {_LANE}, attempt, unnest(range(first_offset, last_offset + 1)) AS queue_offset
        FROM steps WHERE step = 'leased' AND attempt > 1 AND {IN_PERIOD}
    ),
    most AS (
        SELECT {_LANE}, queue_offset, max(attempt) AS attempts, count(*) OVER () AS messages_no
        FROM again GROUP BY {_LANE}, queue_offset
        ORDER BY attempts DESC, topic, queue_id, queue_offset, "group" LIMIT {LISTED_MAX}
    )
    SELECT m."group", m.topic, m.queue_id, m.queue_offset, any_value(attempts), any_value(messages_no),
           histogram(s.cause) FILTER (s.step IN ('expired', 'released')),
           arg_max(s.step, (s.at_ms, s.kafka_offset, s.ordinal))
    FROM most AS m JOIN steps AS s USING ({_LANE})
    WHERE m.queue_offset BETWEEN s.first_offset AND s.last_offset
    GROUP BY m."group", m.topic, m.queue_id, m.queue_offset
    ORDER BY any_value(attempts) DESC, m.topic, m.queue_id, m.queue_offset, m."group"
"""  # noqa: S608

# What ended the last lease of a message at its attempt limit is in a row of the same record and pop.
_DEAD_LETTERS: Final = f"""
    WITH {STEPS},
    dead AS (SELECT * FROM steps WHERE step = 'dead_lettered' AND {IN_PERIOD}),
    ends AS (
        SELECT lane, epoch, kafka_offset, max(cause) AS ended_by FROM steps
        WHERE step IN ('expired', 'released') AND {IN_PERIOD} GROUP BY lane, epoch, kafka_offset
    ),
    kinds AS (
        SELECT dead."group", dead.cause, CASE dead.cause WHEN 'attempt_limit' THEN ended_by END AS ended_by,
               sum(messages) AS messages, max(at_ms) AS last_ms,
               arg_max(concat(topic, '/', queue_id, '/', last_offset), at_ms) AS example
        FROM dead LEFT JOIN ends USING (lane, epoch, kafka_offset) GROUP BY ALL
    )
    SELECT *, count(*) OVER () FROM kinds ORDER BY messages DESC, cause, ended_by, "group" LIMIT {LISTED_MAX}
"""  # noqa: S608

_REFUSALS: Final = f"""
    SELECT kind, reason, count(*), count(*) OVER () FROM operations
    WHERE NOT applied AND code <> 0 AND reason NOT IN ('NO_MESSAGE', 'POLLING_TIMEOUT')
    AND now_ms >= $since_ms AND now_ms < $until_ms AND {{scope}}
    GROUP BY kind, reason ORDER BY count(*) DESC, kind, reason LIMIT {LISTED_MAX}
"""  # noqa: S608

_REJECTED: Final = f"""
    SELECT reason, count(*), count(*) OVER () FROM rejected WHERE now_ms >= $since_ms AND now_ms < $until_ms
    GROUP BY reason ORDER BY count(*) DESC, reason LIMIT {LISTED_MAX}
"""  # noqa: S608

_QUALITY: Final = """
    SELECT suite, expectation, last.s, last.n, last.o, epoch_ms(last.t)
    FROM (SELECT suite, expectation, arg_max(struct_pack(s := success, n := unexpected_count, o := left(observed, 500),
                                                         t := run_at), run_at) AS last
          FROM quality_results GROUP BY suite, expectation)
    ORDER BY last.s, suite, expectation
"""


def read_lanes(tables: ReportTables) -> tuple[list[LaneFacts], int, int]:
    """Return the lanes with the greatest lag, the number of all, and the lag of all."""
    rows = tables.rows(_LANES)
    lanes = [
        LaneFacts(
            lane=Lane(group, topic, queue_id),
            commit_offset=commit_offset,
            lag=int(lag),
            in_flight=int(in_flight),
            dead=dead or 0,
            moved_ms=moved_ms,
            waiting_since_ms=waiting_since_ms,
        )
        for topic, queue_id, group, commit_offset, _, dead, moved_ms, in_flight, lag, _, _, waiting_since_ms in rows
    ]
    return (lanes, rows[0][9], int(rows[0][10])) if rows else ([], 0, 0)


def read_slowest(tables: ReportTables) -> list[SlowLease]:
    """Return what took longest from a delivery to its ack."""
    return [
        SlowLease(
            lane=Lane(group, topic, queue_id),
            first_offset=first,
            last_offset=last,
            client_id=client_id,
            attempt=attempt,
            began_ms=began_ms,
            acked_ms=acked_ms,
        )
        for group, topic, queue_id, first, last, client_id, attempt, began_ms, acked_ms in tables.rows(_SLOWEST)
    ]


def read_redelivered(tables: ReportTables) -> tuple[list[Redelivered], int]:
    """Return the messages with the most deliveries, and the number of all that came again."""
    rows = tables.rows(_REDELIVERED)
    found = [
        Redelivered(
            lane=Lane(group, topic, queue_id),
            queue_offset=queue_offset,
            attempts=attempts,
            causes=causes or {},
            last_step=last_step,
        )
        for group, topic, queue_id, queue_offset, attempts, _, causes, last_step in rows
    ]
    return found, rows[0][5] if rows else 0


def read_dead_letters(tables: ReportTables) -> tuple[list[DeadLetters], int]:
    """Return the dead letters by group and reason, and how many of such there are."""
    rows = tables.rows(_DEAD_LETTERS)
    found = [
        DeadLetters(group=group, reason=reason, cause=cause, messages=int(messages), last_ms=last_ms, example=example)
        for group, reason, cause, messages, last_ms, example, _ in rows
    ]
    return found, rows[0][6] if rows else 0


def read_refusals(tables: ReportTables) -> tuple[list[Refusals], int]:
    """Return the operations that were refused, and how many kinds of such there are.

    A pop that found no message is none.
    """
    rows = tables.rows(_REFUSALS)
    return [Refusals(*row[:3]) for row in rows], rows[0][3] if rows else 0


def read_rejected(tables: ReportTables) -> tuple[dict[str, int] | None, int]:
    """Return the records that are no operation, which belong to no lane, and how many reasons of such there are."""
    if tables.scope.group is not None or tables.scope.topic is not None:
        return None, 0
    rows = tables.rows(_REJECTED)
    return {reason: count for reason, count, _ in rows}, rows[0][2] if rows else 0


def read_quality(tables: ReportTables) -> list[QualityResult]:
    """Return the last result of each expectation, failures first."""
    return [
        QualityResult(
            suite=suite,
            expectation=expectation,
            success=success,
            unexpected_count=count,
            observed=observed,
            run_ms=run_ms,
        )
        for suite, expectation, success, count, observed, run_ms in tables.rows(_QUALITY)
    ]
