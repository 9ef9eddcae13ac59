"""Appends the rows of a DataFrame in one commit, with as many transaction identifiers as it needs."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

__all__ = ["append_by_spark"]


def append_by_spark(
    spark: SparkSession,
    location: str,
    rows: DataFrame,
    *,
    app_id: str,
    version: int,
    more: Callable[[Callable[[str], int | None]], Mapping[str, int]],
) -> bool:
    """Commit rows, unless the table has them.

    Executors write the files, and Delta partitions and commits them as it does for its writer, which takes a single
    identifier.

    Args:
        spark: Session with Delta.
        location: Path or URL of the table, which exists.
        rows: Rows with the columns of the table.
        app_id: The `txnAppId` of the writer.
        version: The `txnVersion`. The table has the rows if its last one is not lower.
        more: Returns what else the commit sets, by `txnAppId`. It gets a function that returns the last `txnVersion` of
            one, as this commit finds it; None: there is none.

    Returns:
        False: The table had the rows.

    Raises:
        Py4JJavaError: Spark or Delta failed; also if another writer has committed with `app_id` meanwhile.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no API for it
    delta = jvm.org.apache.spark.sql.delta
    transaction = delta.DeltaLog.forTable(spark._jsparkSession, location).startTransaction()  # noqa: SLF001
    if transaction.txnVersion(app_id) >= version:
        return False
    known = transaction.snapshot().transactions()
    versions = {app_id: version, **more(lambda app: int(known.apply(app)) if known.contains(app) else None)}
    actions = jvm.java.util.ArrayList(
        jvm.scala.jdk.javaapi.CollectionConverters.asJava(transaction.writeFiles(rows._jdf))  # noqa: SLF001
    )
    now = jvm.scala.Option.apply(int(time.time() * 1000))
    for app, last in versions.items():
        actions.add(delta.actions.SetTransaction(app, last, now))
    none = jvm.scala.Option.empty()
    append = getattr(delta, "DeltaOperations$Write")(jvm.org.apache.spark.sql.SaveMode.Append, *[none] * 8)
    transaction.commit(jvm.org.apache.spark.api.python.PythonUtils.toSeq(actions), append)
    return True
