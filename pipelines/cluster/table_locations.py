"""Where the Delta tables of a job on a cluster are: below one path or URL that every executor can write to."""

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from connectors.delta.spark_schemas import spark_schema
from connectors.delta.store import column_differences, create_table, types_of
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, Table
from popstream.wire.base_errors import Invalid

__all__ = ["TableLocations"]


class TableLocations:
    """The tables below a root.

    >>> TableLocations("s3a://bucket/job/").of("operations")
    's3a://bucket/job/operations'
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def of(self, table: str) -> str:
        """Return the path or URL of a table."""
        return f"{self.root}/{table}"

    def ensure(self, spark: SparkSession) -> None:
        """Create the audit tables and `consume_queue` where they are missing.

        Raises:
            Invalid: A table has other columns.
        """
        for table in (*AUDIT_TABLES.values(), CONSUME_QUEUE):
            create_table(spark, self.of(table.name), table)
            self._require_columns(spark, table)

    def _require_columns(self, spark: SparkSession, table: Table) -> None:
        found = types_of(DeltaTable.forPath(spark, self.of(table.name)).toDF().schema)
        wanted = types_of(spark_schema(table))
        if found != wanted:
            message = f"the Delta table at {self.of(table.name)} has other columns than this version writes"
            raise Invalid(message, subject=table.name, details=column_differences(found, wanted))
