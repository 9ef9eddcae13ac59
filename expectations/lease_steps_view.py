"""The view `lease_steps`: every step of every lease with the rule that it violates, for the rules about leases.

The same message occurs in rows with different ranges: leased in 0..99, acked in 0..9, expired in 10..99. To follow it,
ranges are cut at each other's ends: between two neighbouring ends (a *segment*) all messages have the same history.
dense_rank numbers the ends of a lane, which gives each row the numbers of its segments. So no range join is needed, and
the cost depends on the rows, not on the messages (1,000,000 rows over 10,000,000 messages are at most 3,000,000 pieces
if each row is cut twice).

```
leased    0 ├────────────────────┤ 99        segments  1: 0..9   leased, acked
acked     0 ├───┤ 9                                    2: 10..99 leased, expired
expired        10 ├──────────────┤ 99
```

Where retention has deleted what came before (view `history_cut`), the first row of a segment may be any step.

An *era* of a lane ends with an operation of `ERA_ENDING_KINDS` that took effect: earlier leases, attempts and acks no
longer count. Within one era and one segment the rows, in log order, must be steps of the diagram in
docs/semantics.md.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel

from broker_state.audit import ERA_ENDING_KINDS, HANDLER_CAUSE
from connectors.delta.views import ENDS_ERA, sql_list
from expectations.common_expectations import concerns_lane_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["registered_lease_steps"]

_LANE: Final = "xxhash64(ops_topic_id, topic, queue_id, `group`)"

# Steps as small numbers: sorting strings would cost more.
_LEASED, _CHANGED, _ACKED, _EXPIRED, _RELEASED, _DEAD_LETTERED, _EXPIRED_FROM_LOG = range(1, 8)

_ROWS: Final = f"""
    SELECT {_LANE} AS lane, kafka_offset, ordinal, first_offset, last_offset + 1 AS end_offset, epoch, revision,
           attempt,
           CASE step WHEN 'leased' THEN {_LEASED} WHEN 'changed' THEN {_CHANGED} WHEN 'acked' THEN {_ACKED}
                     WHEN 'expired' THEN {_EXPIRED} WHEN 'released' THEN {_RELEASED}
                     WHEN 'dead_lettered' THEN {_DEAD_LETTERED} WHEN 'expired_from_log' THEN {_EXPIRED_FROM_LOG}
           END AS step,
           step = 'released' AND (cause IN ('change_invisible', '{HANDLER_CAUSE}')
                                  OR startswith(cause, '{HANDLER_CAUSE}: ')) AS is_change,
           CASE WHEN step = 'leased' THEN cause = 'pop' END AS is_concurrent
    FROM deliveries JOIN operations_seen AS seen USING (state_epoch)
    WHERE first_offset <= last_offset AND deliveries.apply_seq <= seen.apply_seq AND NOT ({ENDS_ERA})
"""  # noqa: S608 - constants of this module

# There are few, so the lists are broadcast. An operation on a whole queue counts for each of its lanes.
_RESETS: Final = f"""
    SELECT lane, sort_array(collect_set(kafka_offset)) AS records
    FROM (
        SELECT {_LANE} AS lane, kafka_offset FROM deliveries WHERE {ENDS_ERA}
        UNION ALL
        SELECT lanes.lane, o.kafka_offset
        FROM operations AS o
        JOIN (SELECT DISTINCT {_LANE} AS lane, ops_topic_id, topic, queue_id, `group` FROM deliveries) AS lanes
            ON lanes.ops_topic_id = o.ops_topic_id AND lanes.topic = o.topic AND lanes.queue_id = o.queue_id
            AND {concerns_lane_of("lanes")}
        WHERE o.applied AND o.kind IN ({sql_list(ERA_ENDING_KINDS)})
    )
    GROUP BY lane
"""  # noqa: S608

# Within a record, deadlines come first, then the command, then the grants.
_ERAS: Final = f"""
    SELECT /*+ BROADCAST(lease_resets) */ r.*, coalesce(size(filter(
               records, record -> record < r.kafka_offset OR record = r.kafka_offset AND r.step = {_LEASED}
           )), 0) AS era
    FROM lease_rows AS r LEFT JOIN lease_resets USING (lane)
"""  # noqa: S608

_ENDS: Final = """
    SELECT *, dense_rank() OVER (PARTITION BY lane ORDER BY at) AS segment
    FROM (
        SELECT lease_eras.* EXCEPT (first_offset, end_offset), explode(array(first_offset, end_offset)) AS at
        FROM lease_eras
    )
"""

_PIECES: Final = """
    SELECT * EXCEPT (low, high), explode(sequence(low, high - 1)) AS segment
    FROM (
        SELECT lane, kafka_offset, ordinal, any_value(era) AS era, any_value(step) AS step, any_value(epoch) AS epoch,
               any_value(revision) AS revision, any_value(attempt) AS attempt, any_value(is_change) AS is_change,
               any_value(is_concurrent) AS is_concurrent, min(segment) AS low, max(segment) AS high
        FROM lease_ends
        GROUP BY lane, kafka_offset, ordinal
    )
"""

_SEGMENTS: Final = """
    SELECT lane, segment, at, lead(at) OVER (PARTITION BY lane ORDER BY segment) - at AS messages
    FROM (SELECT lane, segment, any_value(at) AS at FROM lease_ends GROUP BY lane, segment)
"""

# The row of the segment itself comes first in its history, so that its length needs no join.
_HISTORIES: Final = """
    SELECT lane, segment, kafka_offset, ordinal, era, step, epoch, revision, attempt, is_change,
           last_value(is_concurrent, true) OVER history AS is_concurrent,
           first_value(at) OVER history AS first_offset, first_value(messages) OVER history AS messages,
           lag(struct(era, step, epoch, revision, attempt)) OVER history AS before
    FROM (
        SELECT lane, segment, kafka_offset, ordinal, era, step, epoch, revision, attempt, is_change, is_concurrent,
               CAST(NULL AS BIGINT) AS at, CAST(NULL AS BIGINT) AS messages
        FROM lease_pieces
        UNION ALL
        SELECT lane, segment, -1, -1, -1, NULL, NULL, NULL, NULL, NULL, NULL, at, messages FROM lease_segments
    )
    WINDOW history AS (PARTITION BY lane, segment ORDER BY kafka_offset, ordinal)
"""

_STEPS_WITH_RULES: Final = f"""
    SELECT lane, era, kafka_offset, ordinal, first_offset, first_offset + messages - 1 AS last_offset, rule,
           (CAST(step IN ({_LEASED}, {_CHANGED}) AS INT) - CAST(was_live AS INT)) * messages AS leased_delta
    FROM (
        SELECT *, CASE
            WHEN is_begun_before THEN NULL
            WHEN step = {_LEASED} AND was_live THEN 'two_live_leases'
            WHEN step = {_LEASED} AND is_concurrent AND was IN ({_ACKED}, {_DEAD_LETTERED}, {_EXPIRED_FROM_LOG})
                THEN 'done_leased_again'
            WHEN step = {_EXPIRED} AND NOT was_live THEN 'step_without_lease'
            WHEN step = {_RELEASED} AND NOT is_change AND NOT was_live THEN 'step_without_lease'
            WHEN step > {_LEASED} AND (was = 0 OR was IN ({_ACKED}, {_DEAD_LETTERED}, {_EXPIRED_FROM_LOG})
                                       OR before.epoch <> epoch) THEN 'step_without_lease'
            WHEN step = {_LEASED} AND was = 0 AND attempt <> 1 THEN 'attempt'
            WHEN step = {_LEASED} AND is_concurrent AND was IN ({_EXPIRED}, {_RELEASED})
                AND attempt - before.attempt NOT BETWEEN CAST(was = {_EXPIRED} AND before.revision = 0 AS INT) AND 1
                THEN 'attempt'
            WHEN step > {_LEASED} AND attempt <> before.attempt THEN 'attempt'
            WHEN step = {_LEASED} AND revision <> 0 THEN 'revision'
            WHEN step > {_LEASED}
                AND revision - before.revision <> CAST(is_concurrent AND (step = {_CHANGED} OR is_change) AS INT)
                THEN 'revision'
        END AS rule
        FROM (
            SELECT *, coalesce(was IN ({_LEASED}, {_CHANGED}), false) AS was_live,
                   before.step IS NULL AND era = 0
                       AND (SELECT first_day IS NOT NULL FROM history_cut) AS is_begun_before
            FROM (
                SELECT *, CASE WHEN before.era = era THEN before.step ELSE 0 END AS was
                FROM lease_histories WHERE step IS NOT NULL
            )
        )
    )
    UNION ALL
    SELECT lane, position + 1, record, -1, NULL, NULL, NULL, 0
    FROM lease_resets LATERAL VIEW posexplode(records) AS position, record
"""  # noqa: S608

_STAGES: Final = {
    "lease_rows": _ROWS,
    "lease_resets": _RESETS,
    "lease_eras": _ERAS,
    "lease_ends": _ENDS,
    "lease_pieces": _PIECES,
    "lease_segments": _SEGMENTS,
    "lease_histories": _HISTORIES,
}


@contextmanager
def registered_lease_steps(spark: SparkSession) -> Iterator[None]:
    """Register the view in a session that has the tables as views, and cache it until the exit.

    A row is one step of one segment. `rule` is null for a legal step, otherwise the first rule that it violates.
    """
    # Views instead of WITH: Spark numbers the parts of a WITH anew in each query, and would not find the cached copy.
    for name, query in _STAGES.items():
        spark.sql(query).createOrReplaceTempView(name)
    steps = spark.sql(_STEPS_WITH_RULES).persist(StorageLevel.DISK_ONLY)
    steps.createOrReplaceTempView("lease_steps")
    try:
        yield
    finally:
        steps.unpersist()
