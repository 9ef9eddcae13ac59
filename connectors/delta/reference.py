"""Generates docs/tables.md: `python -m connectors.delta.reference > docs/tables.md`."""

from __future__ import annotations

import sys

from connectors.delta.tables import TABLES, Table

__all__ = ["tables_markdown"]

_HEAD = """\
# Tables

Generated from connectors/delta/tables.py by `python -m connectors.delta.reference`; a test keeps it current.
Times are in milliseconds since 1970, UTC. Offsets are queue offsets, ranges are inclusive.

The key of a row of an audit table is (`ops_topic_id`, `partition`, `kafka_offset`, `ordinal`). The key and all columns
except `apply_seq` and `state_epoch` are equal in every replay. No column is NOT NULL in Delta. Columns marked *always*
are never null; the suites check it.

The log of each table of the job also says how many rows of each date there have to be, and what is in them: `popstream
check` finds a date of which others deleted, changed or added rows ([how](adr/0014-tables-know-what-they-hold.md)).

The views `operations_by_message` and `deliveries_by_message` (connectors/delta/views.py) have one row per message of a
range, with the column `queue_offset`, in `popstream query` and in Spark.
"""


def tables_markdown() -> str:
    """Return the whole document."""
    return _HEAD + "".join(_section(table) for table in TABLES.values())


def _section(table: Table) -> str:
    partitioned = f" Partitioned by `{table.partitioned_by}`." if table.partitioned_by else ""
    rows = "".join(
        f"| `{column.name}` | {column.kind} | {'always' if column.required else ''} | {column.comment} |\n"
        for column in table.columns
    )
    head = "| column | type | value | meaning |\n|---|---|---|---|\n"
    return f"\n## {table.name}\n\n{table.comment}{partitioned}\n\n{head}{rows}"


if __name__ == "__main__":
    sys.stdout.write(tables_markdown())
