"""A job whose state, checkpoint and table are on S3: it counts numbers by their rest, in two micro-batches a run.

    counting_job SETTINGS URL

Prints how many micro-batches the checkpoint has, and the rows of the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

from connectors.spark_cluster.storage import checkpoint_conf, tables_conf
from pipelines.cli.options import load_settings
from pipelines.cluster.session import cluster_session

BATCHES = 2
ROWS_PER_BATCH = 100
RESTS = 4


def main() -> None:
    """Run the job."""
    settings_file, url = sys.argv[1:]
    settings = load_settings(Path(settings_file))
    spark = cluster_session("counting", 1, {**checkpoint_conf(url), **tables_conf(url), **settings.session_conf})
    written: list[int] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        options = {"txnAppId": "counting", "txnVersion": str(batch_id)}
        frame.write.format("delta").mode("append").options(**options).save(f"{url}/table")
        written.append(batch_id)

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    counts = source.option("numPartitions", 1).load().selectExpr(f"value % {RESTS} AS rest").groupBy("rest").count()
    query = (
        counts.writeStream.outputMode("update").option("checkpointLocation", f"{url}/checkpoint").foreachBatch(write)
    ).start()
    while len(written) < BATCHES and query.isActive:
        query.awaitTermination(1)
    query.stop()
    (row,) = (
        spark.read.format("delta")
        .load(f"{url}/table")
        .selectExpr("max(`count`) AS greatest", "count(*) AS rows")
        .collect()
    )
    print("batches", max(written) + 1)
    print("greatest", row.greatest, "rows", row.rows)
    spark.stop()


if __name__ == "__main__":
    main()
