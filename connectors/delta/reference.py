"""docs/tables.md, from the descriptions in `tables`: `python -m connectors.delta.reference > docs/tables.md`."""

from __future__ import annotations

import sys

from connectors.delta.tables import TABLES, Table

__all__ = ["tables_markdown"]

_HEAD = """\
# Tables

Generated from connectors/delta/tables.py by `python -m connectors.delta.reference`; a test keeps it current.
Times are in milliseconds since 1970, UTC. Offsets are queue offsets, ranges are inclusive.

A row of an audit table is identified by (`ops_topic_id`, `partition`, `kafka_offset`, `ordinal`). That key and all
columns but `apply_seq` and `state_epoch` are the same in every replay. No column is NOT NULL in Delta; those marked
*always* are never null, which the suites check.

The views `operations_by_message` and `deliveries_by_message` (connectors/delta/views.py) have one row for each
message of a range, with the column `queue_offset`.
"""


def tables_markdown() -> str:
    """The whole document."""
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
