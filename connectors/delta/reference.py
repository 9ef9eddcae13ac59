"""Generates docs/tables.md: `python -m connectors.delta.reference > docs/tables.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from connectors.delta.column_values import CAUSES, STEPS
from connectors.delta.tables import DELIVERIES, TABLES, Table

__all__ = ["tables_markdown"]

_MEANINGS: Mapping[str, Mapping[str, Mapping[str, str]]] = {DELIVERIES.name: {"step": STEPS, "cause": CAUSES}}

_HEAD = """\
# Tables

Generated from connectors/delta/tables.py by `python -m connectors.delta.reference`; a test keeps it current.
Times are in milliseconds since 1970, UTC, and beside them as timestamps (`now_ms`, `now_utc`). Offsets are queue
offsets, ranges are inclusive.

The key of a row of an audit table is (`ops_topic_id`, `partition`, `kafka_offset`, `ordinal`). The key and all columns
except `apply_seq` and `state_epoch` are equal in every replay. Rows of a job on a cluster have their `kafka_offset` as
`apply_seq`, too. No column is NOT NULL in Delta. Columns marked *always* are never null; the suites check it.

The log of each table of the job also says how many rows of each date there have to be, and what is in them: `popstream
check` finds a date of which others deleted, changed or added rows ([how](adr/0014-tables-know-what-they-hold.md)).

Views (connectors/delta/views.py) are there in `popstream query`, with either engine. `operations_by_message` and
`deliveries_by_message` have one row per message of a range, with the column `queue_offset`. `lease_ends` has a row for
each row of `deliveries` that ends a lease, with who held it (`holder`) since when (`leased_ms`), who ended it
(`ended_by`; null: a deadline, or a client that does not name itself), and what a failed handler `raised`, also of dead
letters. `history_begins` has the first date (`first_day`) that retention has left of a table (`table_name`), or null.

The tables are plain Delta, of reader version 1: Spark, delta-rs, polars and DuckDB read them, and a test compares what
they read. Their change data feed is on: a reader follows a table by its changes, of which compaction makes none.
[Reading them](#reading-them) has examples.

From version to version columns are added, and none is taken away, renamed, or given another type or meaning. A new
column is null in rows of older versions; their files are not written again. The first start of a newer version adds
columns and comments to the tables that it finds, each in one commit. An older version refuses a table with columns that
it does not know.

## Reading them

Each table is a folder: `var/job/delta/operations` of a job with the default folder, or below the setting `tables`.
Readers may read while the job runs. They need no popstream: the views are in `popstream query` alone.

With Python, by Polars or by DuckDB on delta-rs (`pip install polars duckdb deltalake pyarrow`):

```python
import duckdb
import polars
from deltalake import DeltaTable

deliveries = polars.scan_delta("var/job/delta/deliveries")
redelivered = deliveries.filter((polars.col("step") == "leased") & (polars.col("attempt") > 1))
print(redelivered.group_by("topic", "group").len().collect())

with duckdb.connect() as connection:
    connection.register("operations", DeltaTable("var/job/delta/operations").to_pyarrow_dataset())
    refused = "select kind, reason, count(*) from operations where not applied and code <> 0 group by all"
    print(connection.sql(refused).fetchall())
```

A Spark session with Delta, and DuckDB's own Delta extension (not tested here):

```text
spark.read.format("delta").load("var/job/delta/deliveries").where("step = 'expired'").groupBy("client_id").count()

SELECT step, count(*) FROM delta_scan('var/job/delta/deliveries') GROUP BY step;
```

How leases ended, by who held them, with what their handlers raised, by the view `lease_ends`:

```sh
popstream query "select holder, step, raised, count(*) as leases from lease_ends group by all order by leases desc"
```
"""


def tables_markdown() -> str:
    """Return the whole document."""
    return _HEAD + "".join(_section(table) for table in TABLES.values())


def _meanings(name: str, meanings: Mapping[str, str]) -> str:
    rows = "".join(f"| `{value}` | {meaning} |\n" for value, meaning in meanings.items())
    return f"\n| `{name}` | meaning |\n|---|---|\n{rows}"


def _section(table: Table) -> str:
    partitioned = f" Partitioned by `{table.partitioned_by}`." if table.partitioned_by else ""
    rows = "".join(
        f"| `{column.name}` | {column.kind} | {'always' if column.required else ''} | {column.comment} |\n"
        for column in table.columns
    )
    head = "| column | type | value | meaning |\n|---|---|---|---|\n"
    meanings = "".join(_meanings(name, found) for name, found in _MEANINGS.get(table.name, {}).items())
    return f"\n## {table.name}\n\n{table.comment}{partitioned}\n\n{head}{rows}{meanings}"


if __name__ == "__main__":
    sys.stdout.write(tables_markdown())
