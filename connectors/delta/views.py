"""SQL on the tables that Spark and DuckDB both understand: views with one row per message instead of one per range.

To follow one message, filter a view on `queue_offset`, or faster, because files are skipped, on
`first_offset <= n AND last_offset >= n`, which the views have too. DuckDB knows Spark's `explode` and `sequence` by
macros (`connectors.delta.duckdb_tables`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker_state.audit import ERA_ENDING_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ENDS_ERA", "by_message_views", "sql_list"]


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


def by_message_views(tables: Iterable[str]) -> dict[str, str]:
    """Return the query of `<table>_by_message` for those of the tables whose rows are about ranges of messages.

    A view has the columns of its table and `queue_offset`, which is null for rows without a message.

    >>> list(by_message_views(["deliveries", "rejected"]))
    ['deliveries_by_message']
    """
    return {
        f"{table}_by_message": _VIEW.format(table=table, block=_BLOCK, names_messages=_NAMES_MESSAGES[table])
        for table in tables
        if table in _NAMES_MESSAGES
    }
