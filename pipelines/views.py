"""The Delta tables under their names in a Spark session, and views with a row for each message.

`operations_by_message` and `deliveries_by_message` have a row and a `queue_offset` for each message of a range. A table
is registered where it lies and not as a view, so that `operations VERSION AS OF 3` and `DESCRIBE HISTORY operations`
work.
"""

from collections.abc import Sequence
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from broker_state.errors import Invalid
from connectors.delta.tables import TABLES, table_path

__all__ = ["register_tables"]

BY_MESSAGE = ("operations", "deliveries")
# A longer range is a refused one: nothing of it took effect.
RANGE_MAX = 4_194_304


def register_tables(spark: SparkSession, root: Path) -> Sequence[str]:
    """Register the tables below the Delta root that exist, and their views; gives all names.

    Raises:
        Invalid: There is none.
    """
    found = [name for name in TABLES if DeltaTable.isDeltaTable(spark, str(table_path(root, name)))]
    if not found:
        message = f"there are no tables in {root}: has the job run here?"
        raise Invalid(message, subject=str(root))
    for name in found:
        location = str(table_path(root, name).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{location}'")
    views = []
    for name in BY_MESSAGE:
        if name in found:
            view = f"{name}_by_message"
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {_by_message(name)}")
            views.append(view)
    return [*found, *views]


def _by_message(table: str) -> str:
    """One row for each offset of a row's range.

    >>> print(_by_message("deliveries"))
    SELECT *, explode(sequence(first_offset, last_offset)) AS queue_offset FROM deliveries
    WHERE first_offset BETWEEN 0 AND last_offset AND try_subtract(last_offset, first_offset) < 4194304
    """
    return (
        f"SELECT *, explode(sequence(first_offset, last_offset)) AS queue_offset FROM {table}\n"  # noqa: S608 - ours
        f"WHERE first_offset BETWEEN 0 AND last_offset AND try_subtract(last_offset, first_offset) < {RANGE_MAX}"
    )
