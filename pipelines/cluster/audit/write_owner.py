"""Writes the row of the owner of the prefix to the table `owners`."""

import structlog
from pyspark.sql import SparkSession

from checkpoints.prefix_owner import Owner
from connectors.delta.log.transactions import app_id
from connectors.delta.spark_append import SparkAppend
from connectors.delta.spark_errors import spark_text
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import OWNERS
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.written_tables import PIPELINE
from pipelines.process.owner_table import owner_row

__all__ = ["write_owner"]

_log = structlog.get_logger(__name__)


def write_owner(spark: SparkSession, tables: TableLocations, prefix: str, owner: Owner, state_epoch: str) -> None:
    """Write the row. No other row depends on it, so that what goes wrong is only logged.

    Args:
        spark: Session with Delta.
        tables: Where the tables are; they exist.
        prefix: The prefix that this job has taken.
        owner: Its record as the owner.
        state_epoch: Identity of the state by which it decides.
    """
    app = app_id(PIPELINE, OWNERS.name, owner.session)
    try:
        commit = SparkAppend(spark, tables.of(OWNERS.name), app_id=app, version=owner.term)
        if not commit.is_done:
            row = owner_row(prefix, owner, state_epoch)
            commit.commit_rows(spark.createDataFrame(row, spark_schema(OWNERS)), lambda _: {})
    except Exception as error:  # noqa: BLE001 - py4j raises errors of many types
        _log.warning("owner_not_written", table=OWNERS.name, error=spark_text(error))
