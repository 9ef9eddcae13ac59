"""SQL on the tables that Spark and DuckDB both understand: the views, which queries may name like tables.

The views by message have one row per message instead of one per range. To follow one message, filter such a view on
`queue_offset`, or faster, because files are skipped, on `first_offset <= n AND last_offset >= n`, which it has too.
DuckDB knows Spark's `explode` and `sequence` by macros (`connectors.delta.duckdb_tables`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from broker_state.audit import ERA_ENDING_KINDS, HANDLER_CAUSE, DeliveryStep, StepCause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["ENDS_ERA", "VIEWS", "View", "sql_list", "views_on"]


class View(NamedTuple):
    """A view.

    Attributes:
        tables: The tables that it reads.
        query: Its query.
        columns: Of the columns that it reads, those that tables of older versions lack.
    """

    tables: tuple[str, ...]
    query: str
    columns: frozenset[str] = frozenset()


def sql_list(names: Iterable[str]) -> str:
    """Return names for an SQL `IN (...)`.

    >>> sql_list(("ack", "reject"))
    "'ack', 'reject'"
    """
    return ", ".join(f"'{name}'" for name in names)


ENDS_ERA: Final = f"step = 'released' AND cause IN ({sql_list(ERA_ENDING_KINDS)})"
"""SQL condition: a row of `deliveries` that ends every lease of its lane and is about no single message."""

_BLOCK: Final = 4_096
_EXPLODED_MAX: Final = 1_000_000

# A refused range may name any offsets up to 2^63 - 1, and the release of a whole lane names offsets without a lease:
# such a row stays one row, without a message.
_NAMES_MESSAGES: Final = {
    "operations": f"first_offset >= 0 AND last_offset - first_offset BETWEEN 0 AND {_EXPLODED_MAX - 1}",
    "deliveries": f"NOT ({ENDS_ERA})",
}

# In two steps, so that no array is longer than a block, however long the range.
_VIEW: Final = """
    SELECT * EXCEPT (block), explode(sequence(block, least(block + {block} - 1, last_offset))) AS queue_offset
    FROM (SELECT *, explode(sequence(first_offset, last_offset, CAST({block} AS BIGINT))) AS block
          FROM {table} WHERE {names_messages})
    UNION ALL
    SELECT *, CAST(NULL AS BIGINT) AS queue_offset FROM {table} WHERE NOT coalesce({names_messages}, false)
"""


_ENDINGS: Final = sql_list(step for step in DeliveryStep if step not in {DeliveryStep.LEASED, DeliveryStep.CHANGED})
_GIVE_BACKS: Final = f"'{StepCause.CHANGE_INVISIBLE}', '{StepCause.HANDLER}'"
_BY_NO_CLIENT: Final = sql_list(
    (
        *(StepCause.DEADLINE, StepCause.LOG_START, StepCause.CANCEL, StepCause.RETURN_CLIENT),
        *(StepCause.ATTEMPT_ID, StepCause.PASSED_OVER),
    )
)
"""Causes of steps that an entry did not ask for: their rows name the client that held the lease."""
_RAISED: Final = f"{HANDLER_CAUSE}: "

# A message that is dead-lettered at the attempt limit has a row for how its last delivery ended, in the same record.
# A column after a dot may be named like a keyword, in both dialects.
_LEASE_ENDS: Final = f"""
    SELECT e.*, held.client_id AS holder, held.now_ms AS leased_ms,
           coalesce(o.client_id, CASE WHEN e.why NOT IN ({_BY_NO_CLIENT}) THEN e.client_id END) AS ended_by,
           CASE WHEN e.why LIKE '{_RAISED}%' THEN substr(e.why, {len(_RAISED) + 1}) END AS raised
    FROM (
        SELECT ended.*, coalesce(last_end.cause, ended.cause) AS why
        FROM deliveries AS ended
        LEFT JOIN deliveries AS last_end
            ON ended.cause = '{StepCause.ATTEMPT_LIMIT}' AND last_end.step = 'released'
            AND last_end.ops_topic_id = ended.ops_topic_id AND last_end.partition = ended.partition
            AND last_end.kafka_offset = ended.kafka_offset AND last_end.epoch = ended.epoch
            AND last_end.first_offset <= ended.first_offset AND last_end.last_offset >= ended.first_offset
        WHERE ended.step IN ({_ENDINGS}) AND NOT (ended.{ENDS_ERA.replace(" cause", " ended.cause")})
    ) AS e
    LEFT JOIN deliveries AS held
        ON held.step = 'leased' AND held.ops_topic_id = e.ops_topic_id AND held.topic = e.topic
        AND held.queue_id = e.queue_id AND held.group = e.group AND held.epoch = e.epoch
        AND held.first_offset <= e.first_offset AND held.last_offset >= e.first_offset
    LEFT JOIN (
        SELECT ops_topic_id, partition, kafka_offset, kind, max(client_id) AS client_id
        FROM operations WHERE kind IN ('change_invisible', 'return_client', 'pop') AND applied
        GROUP BY ops_topic_id, partition, kafka_offset, kind
    ) AS o
        ON o.ops_topic_id = e.ops_topic_id AND o.partition = e.partition AND o.kafka_offset = e.kafka_offset
        AND o.kind = CASE
            WHEN e.why IN ({_GIVE_BACKS}) OR e.why LIKE '{_RAISED}%' THEN 'change_invisible'
            WHEN e.why = '{StepCause.RETURN_CLIENT}' THEN 'return_client'
            WHEN e.why IN ('{StepCause.ATTEMPT_ID}', '{StepCause.PASSED_OVER}') THEN 'pop'
        END
"""  # noqa: S608 - constants of the code

VIEWS: Final = {
    **{
        f"{table}_by_message": View((table,), _VIEW.format(table=table, block=_BLOCK, names_messages=condition))
        for table, condition in _NAMES_MESSAGES.items()
    },
    "lease_ends": View(("deliveries", "operations"), _LEASE_ENDS, frozenset({"client_id"})),
}
"""By name. The views by message have the columns of their table and `queue_offset`, which is null for rows without a
message. `lease_ends` has a row for each row of `deliveries` that ends a lease, with who held it and who ended it."""


def views_on(tables: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the queries of the views that read no other tables than these, whose columns are given.

    >>> list(views_on({"deliveries": ["cause"], "operations": ["client_id"], "rejected": []}))
    ['operations_by_message', 'deliveries_by_message']
    """
    return {
        name: view.query
        for name, view in VIEWS.items()
        if all(table in tables and view.columns.issubset(tables[table]) for table in view.tables)
    }
