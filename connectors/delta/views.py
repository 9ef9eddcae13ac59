"""Views for people: one row for each message instead of one for each range.

To follow one message, filter on `queue_offset` here, or faster (Delta then skips files) on
`first_offset <= n AND last_offset >= n`, which these views carry too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["register_views"]

_BLOCK: Final = 4_096
_EXPLODED_MAX: Final = 1_000_000

# A refused range may name any offsets up to 2^63 - 1, and the release of a whole lane names offsets that nobody held:
# such a row stays one row, without a message.
_NAMES_MESSAGES: Final = {
    "operations": f"first_offset >= 0 AND last_offset - first_offset BETWEEN 0 AND {_EXPLODED_MAX - 1}",
    "deliveries": "NOT (step = 'released' AND cause IN ('reset_offset', 'forget_lane', 'declare'))",
}

# In two steps, so that no array is longer than a block, however long the range.
_VIEW: Final = """
    SELECT * EXCEPT (block), explode(sequence(block, least(block + {block} - 1, last_offset))) AS queue_offset
    FROM (SELECT *, explode(sequence(first_offset, last_offset, CAST({block} AS BIGINT))) AS block
          FROM {table} WHERE {names_messages})
    UNION ALL
    SELECT *, CAST(NULL AS BIGINT) AS queue_offset FROM {table} WHERE NOT coalesce({names_messages}, false)
"""


def register_views(spark: SparkSession, paths: Mapping[str, Path]) -> None:
    """Register each table of `paths` (folder by table name) as a temporary view, and the views on messages.

    `operations_by_message` and `deliveries_by_message` have the columns of their table and `queue_offset`, which is
    null for a row that is about no message.
    """
    for table, path in paths.items():
        spark.read.format("delta").load(str(path)).createOrReplaceTempView(table)
        if table in _NAMES_MESSAGES:
            query = _VIEW.format(table=table, block=_BLOCK, names_messages=_NAMES_MESSAGES[table])
            spark.sql(query).createOrReplaceTempView(f"{table}_by_message")
