"""Where the Delta tables of a job on a cluster are: below one path or URL that every executor can write to."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from connectors.delta.spark_schemas import spark_schema
from connectors.delta.store import column_differences, create_table, types_of
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, OWNERS, Table
from pipelines.cluster.hadoop_file import HadoopFile
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

    def folder(self, spark: SparkSession) -> Path | None:
        """Return the root as a folder that every node has; None: it is in another file system.

        Hadoop says so, to which a path without a scheme may be one of a cluster's own file system.

        Raises:
            Unavailable: The place cannot be reached.
        """
        scheme, path = HadoopFile(spark, self.root).qualified
        return Path(path) if scheme == "file" else None

    def ensure(self, spark: SparkSession) -> None:
        """Create the tables that the job writes where they are missing.

        Raises:
            Invalid: A table has other columns.
        """

        def ensure(table: Table) -> None:
            create_table(spark, self.of(table.name), table)
            self._require_columns(spark, table)

        tables = (*AUDIT_TABLES.values(), CONSUME_QUEUE, OWNERS)
        with ThreadPoolExecutor(len(tables), "tables") as pool:
            list(pool.map(ensure, tables))

    def require_no_rows_from(
        self, spark: SparkSession, ops_topic_id: str, first_offset: Mapping[int, int], state_epoch: str
    ) -> None:
        """Refuse tables with rows of what a state that begins will decide: they would be there twice.

        Args:
            spark: A session.
            ops_topic_id: Kafka's id of the ops topic.
            first_offset: By partition, the first offset that the state decides; of others all.
            state_epoch: Identity of the state, whose own rows are no reason.

        Raises:
            Invalid: There are such rows.
        """
        rows = spark.read.format("delta").load(self.of("operations"))
        others = rows.where((f.col("ops_topic_id") == ops_topic_id) & (f.col("state_epoch") != state_epoch))
        for partition, last in others.groupBy("partition").agg(f.max("kafka_offset")).collect():
            if last >= first_offset.get(partition, 0):
                message = (
                    f"the tables in {self.root} have rows of another state for what this one will decide (partition"
                    f" {partition}, up to offset {last}), and would have them twice: name other --tables"
                )
                raise Invalid(message, subject=self.root)

    def _require_columns(self, spark: SparkSession, table: Table) -> None:
        found = types_of(DeltaTable.forPath(spark, self.of(table.name)).toDF().schema)
        wanted = types_of(spark_schema(table))
        if found != wanted:
            message = f"the Delta table at {self.of(table.name)} has other columns than this version writes"
            raise Invalid(message, subject=table.name, details=column_differences(found, wanted))
