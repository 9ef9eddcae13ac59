"""The rows of `lease_steps`: every step of every lease with the rule that it violates, for the rules about leases.

The same message occurs in rows with different ranges: leased in 0..99, acked in 0..9, expired in 10..99. To follow it,
ranges are cut at each other's ends: between two neighbouring ends (a *segment*) all messages have the same history.
The ends of a lane are numbered, which gives each row the numbers of its segments. So no range join is needed, and the
cost depends on the rows, not on the messages (1,000,000 rows over 10,000,000 messages are at most 3,000,000 pieces if
each row is cut twice).

```
leased    0 ├────────────────────┤ 99        segments  1: 0..9   leased, acked
acked     0 ├───┤ 9                                    2: 10..99 leased, expired
expired        10 ├──────────────┤ 99
```

Where retention has deleted what came before (`history_cut`), the first row of a segment may be any step.

An *era* of a lane ends with an operation of `ERA_ENDING_KINDS` that took effect: earlier leases, attempts and acks no
longer count. Within one era and one segment the rows, in log order, must be steps of the diagram in
docs/semantics.md.

Where only the rows from a date on are judged, they continue earlier ones: those whose range ends at or above the first
judged offset of their lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker_state.audit import HANDLER_CAUSE
from broker_state.kernel.lanes.orderly_lane import IDLE_MS
from connectors.delta.views import ENDS_ERA

if TYPE_CHECKING:
    from connectors.delta.duckdb_tables import DuckDbTables

__all__ = ["LANE", "keep_lease_steps"]

LANE: Final = 'hash(ops_topic_id, topic, queue_id, "group")'
"""SQL: a number for the lane of a row."""

# Steps as small numbers: sorting strings would cost more.
_LEASED, _CHANGED, _ACKED, _EXPIRED, _RELEASED, _DEAD_LETTERED, _EXPIRED_FROM_LOG = range(1, 8)
_DONE: Final = f"{_ACKED}, {_DEAD_LETTERED}, {_EXPIRED_FROM_LOG}"

_ROW: Final = f"""
    {LANE} AS lane, kafka_offset, ordinal, now_ms, first_offset, last_offset + 1 AS end_offset,
    epoch, revision, attempt,
    CASE step WHEN 'leased' THEN {_LEASED} WHEN 'changed' THEN {_CHANGED} WHEN 'acked' THEN {_ACKED}
              WHEN 'expired' THEN {_EXPIRED} WHEN 'released' THEN {_RELEASED}
              WHEN 'dead_lettered' THEN {_DEAD_LETTERED} WHEN 'expired_from_log' THEN {_EXPIRED_FROM_LOG}
    END::TINYINT AS step,
    step = 'released' AND (cause IN ('change_invisible', '{HANDLER_CAUSE}')
                           OR starts_with(cause, '{HANDLER_CAUSE}: ')) AS is_change,
    CASE WHEN step = 'leased' THEN cause = 'pop' END AS is_concurrent
"""

_ROWS: Final = f"""
    SELECT {_ROW}, true AS is_new
    FROM new_deliveries JOIN operations_seen AS seen USING (state_epoch)
    WHERE first_offset <= last_offset AND new_deliveries.apply_seq <= seen.apply_seq AND NOT ({ENDS_ERA})
    UNION ALL
    SELECT d.*, false
    FROM (
        SELECT {_ROW}
        FROM earlier_deliveries
        WHERE first_offset <= last_offset AND NOT ({ENDS_ERA})
          AND last_offset >= (SELECT min(first_offset) FROM new_deliveries WHERE first_offset >= 0)
    ) AS d
    JOIN (
        SELECT {LANE} AS lane, min(first_offset) AS first_judged
        FROM new_deliveries WHERE first_offset >= 0 GROUP BY 1
    ) AS judged ON judged.lane = d.lane AND d.end_offset > judged.first_judged
"""  # noqa: S608 - constants of this module

# An operation on a whole queue counts for each of its lanes.
_RESETS: Final = f"""
    SELECT lane, kafka_offset, row_number() OVER (PARTITION BY lane ORDER BY kafka_offset) AS era
    FROM (
        SELECT {LANE} AS lane, kafka_offset FROM deliveries WHERE {ENDS_ERA}
        UNION
        SELECT lanes.lane, o.kafka_offset
        FROM era_endings AS o
        JOIN (SELECT DISTINCT {LANE} AS lane, ops_topic_id, topic, queue_id, "group" FROM deliveries) AS lanes
            ON lanes.ops_topic_id = o.ops_topic_id AND lanes.topic = o.topic AND lanes.queue_id = o.queue_id
            AND (o."group" IS NULL OR o."group" = lanes."group")
    )
"""  # noqa: S608

# Within a record, deadlines come first, then the command, then the grants: of the rows of the record that ends an era
# those of its leases are of the next one.
_ERAS: Final = f"""
    SELECT r.*, coalesce(resets.era, 0) AS era
    FROM lease_rows AS r ASOF LEFT JOIN lease_resets AS resets
        ON resets.lane = r.lane AND r.kafka_offset * 2 + CASE WHEN r.step = {_LEASED} THEN 2 ELSE 0 END
                                    > resets.kafka_offset * 2 + 1
"""  # noqa: S608

_SEGMENTS: Final = """
    SELECT lane, edge, row_number() OVER in_order AS segment, lead(edge) OVER in_order - edge AS messages
    FROM (
        SELECT lane, first_offset AS edge FROM lease_rows
        UNION
        SELECT lane, end_offset FROM lease_rows
    )
    WINDOW in_order AS (PARTITION BY lane ORDER BY edge)
"""

_PIECES: Final = """
    SELECT * EXCLUDE (low, high), unnest(range(low, high)) AS segment
    FROM (
        SELECT r.* EXCLUDE (first_offset, end_offset), low.segment AS low, high.segment AS high
        FROM lease_eras AS r
        JOIN lease_segments AS low ON low.lane = r.lane AND low.edge = r.first_offset
        JOIN lease_segments AS high ON high.lane = r.lane AND high.edge = r.end_offset
    )
"""

_HISTORIES: Final = f"""
    SELECT * EXCLUDE (is_concurrent), last_value(is_concurrent IGNORE NULLS) OVER history AS is_concurrent,
           lag(era) OVER history AS era_before, lag(step) OVER history AS step_before,
           lag(epoch) OVER history AS epoch_before, lag(revision) OVER history AS revision_before,
           lag(attempt) OVER history AS attempt_before,
           max(now_ms) FILTER (WHERE step <> {_EXPIRED}) OVER records_before AS operated_ms_before,
           lag(kafka_offset) OVER history = kafka_offset AND lag(ordinal) OVER history = ordinal AS is_repeated
    FROM lease_pieces
    WINDOW history AS (PARTITION BY lane, segment ORDER BY kafka_offset, ordinal),
           records_before AS (PARTITION BY lane, segment ORDER BY kafka_offset
                              RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""  # noqa: S608

_COUNTS_ANEW: Final = f"(is_concurrent IS NOT TRUE AND attempt = 1 AND now_ms - operated_ms_before > {IDLE_MS})"
"""An orderly lane that was idle for so long has forgotten its counts; that a lease expires is no operation."""

_STEPS: Final = f"""
    SELECT lane, era, kafka_offset, ordinal, edge AS first_offset, edge + messages - 1 AS last_offset, rule,
           ((step IN ({_LEASED}, {_CHANGED}))::INT - was_live::INT) * messages AS leased_delta
    FROM (
        SELECT *, CASE
            WHEN is_begun_before THEN NULL
            WHEN step = {_LEASED} AND was_live THEN 'two_live_leases'
            WHEN step = {_LEASED} AND is_concurrent AND was IN ({_DONE}) THEN 'done_leased_again'
            WHEN step = {_EXPIRED} AND NOT was_live THEN 'step_without_lease'
            WHEN step = {_RELEASED} AND NOT is_change AND NOT was_live THEN 'step_without_lease'
            WHEN step > {_LEASED} AND (was = 0 OR was IN ({_DONE}) OR epoch_before <> epoch) THEN 'step_without_lease'
            WHEN step = {_LEASED} AND was = 0 AND attempt <> 1 THEN 'attempt'
            WHEN step = {_LEASED} AND is_concurrent AND was IN ({_EXPIRED}, {_RELEASED})
                AND attempt - attempt_before NOT BETWEEN (was = {_EXPIRED} AND revision_before = 0)::INT AND 1
                THEN 'attempt'
            WHEN step > {_LEASED} AND attempt <> attempt_before AND NOT {_COUNTS_ANEW} THEN 'attempt'
            WHEN step = {_LEASED} AND revision <> 0 THEN 'revision'
            WHEN step > {_LEASED}
                AND revision - revision_before <> (is_concurrent AND (step = {_CHANGED} OR is_change))::INT
                THEN 'revision'
        END AS rule
        FROM (
            SELECT *, coalesce(was IN ({_LEASED}, {_CHANGED}), false) AS was_live,
                   step_before IS NULL AND era = 0 AND (SELECT first_day IS NOT NULL FROM history_cut)
                       AS is_begun_before
            FROM (
                SELECT h.*, s.edge, s.messages, CASE WHEN era_before = era THEN step_before ELSE 0 END AS was
                FROM lease_histories AS h JOIN lease_segments AS s ON s.lane = h.lane AND s.segment = h.segment
                WHERE is_new AND is_repeated IS NOT TRUE
            )
        )
    )
"""  # noqa: S608


def keep_lease_steps(tables: DuckDbTables) -> None:
    """Keep `lease_steps` and `lease_resets`.

    A row of `lease_steps` is one judged step of one segment. `rule` is null for a legal step, otherwise the first rule
    that it violates. `lease_resets` has, for each lane, the records that end an era, and the era that begins there.
    """
    tables.keep("lease_rows", _ROWS)
    tables.keep("lease_resets", _RESETS)
    tables.keep("lease_segments", _SEGMENTS)
    tables.define("lease_eras", _ERAS)
    tables.define("lease_pieces", _PIECES)
    tables.define("lease_histories", _HISTORIES)
    tables.keep("lease_steps", _STEPS)
