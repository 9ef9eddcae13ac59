"""SQL names of the tables, and views with one row per message instead of one per range.

To follow one message, filter a view on `queue_offset`, or faster, because Delta skips files, on
`first_offset <= n AND last_offset >= n`, which the views have too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable

from broker_state.audit import ERA_ENDING_KINDS
from connectors.delta.tables import TABLES, table_path
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["ENDS_ERA", "register_tables", "register_views", "sql_list"]


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


def register_tables(spark: SparkSession, root: Path) -> Sequence[str]:
    """Register the existing tables below `root` and their views by message in the session; return all names.

    The tables are registered by location and not as views, so that `operations VERSION AS OF 3` and
    `DESCRIBE HISTORY operations` work.

    Raises:
        Invalid: There are no tables.
    """
    found = [name for name in TABLES if DeltaTable.isDeltaTable(spark, str(table_path(root, name)))]
    if not found:
        message = f"there are no tables in {root}: has the job run here?"
        raise Invalid(message, subject=str(root))
    for name in found:
        location = str(table_path(root, name).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
    return [*found, *_register_by_message(spark, found)]


def register_views(spark: SparkSession, paths: Mapping[str, Path]) -> None:
    """Register each table of `paths` (folder by table name) as a temporary view, and the views by message."""
    for table, path in paths.items():
        spark.read.format("delta").load(str(path)).createOrReplaceTempView(table)
    _register_by_message(spark, paths)


def _register_by_message(spark: SparkSession, tables: Iterable[str]) -> list[str]:
    """Register `<table>_by_message`: the columns of the table and `queue_offset`, null for rows without a message."""
    names = []
    for table in tables:
        if table in _NAMES_MESSAGES:
            query = _VIEW.format(table=table, block=_BLOCK, names_messages=_NAMES_MESSAGES[table])
            names.append(f"{table}_by_message")
            spark.sql(query).createOrReplaceTempView(names[-1])
    return names
