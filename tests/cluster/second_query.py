"""A second process that decides over a checkpoint: says when it has caught up, and ends by the error of its query."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.errors import StreamingQueryException

from popstream.kafka_connection import KafkaConnection
from tests.cluster.local_spark import local_session
from tests.support.cluster_log import start_deciding

CAUGHT_UP = "caught up"


def main() -> None:
    """Decide until the query ends."""
    parser = argparse.ArgumentParser()
    for name in ("servers", "prefix", "checkpoint", "crash"):
        parser.add_argument(name)
    given = parser.parse_args()
    spark = local_session("second-query", Path(given.crash))
    query = start_deciding(spark, KafkaConnection(given.servers), given.prefix, "second", given.checkpoint, 100)
    query.processAllAvailable()
    print(CAUGHT_UP, flush=True)
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        print(" ".join(str(error).split()), flush=True)


if __name__ == "__main__":
    main()
