"""Spark's query on the ops topic: fetches micro-batches in log order and hands them to the thread that decides them.

```
callback of Spark's query   fetch n ── hand over ──> fetch n+1 ── hand over (waits until n is decided) ──> ...
thread `decide_0`                       decide n ───────────────> decide n+1
```
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.session import join_pool
from pipelines.apply_ops.handoff import Handoff
from pipelines.apply_ops.source import PIPELINE, MicroBatch, OpsSource
from pipelines.failpoints import failpoint
from popstream.wire.base_errors import Unavailable

__all__ = ["OpsQuery"]

_log = structlog.get_logger(__name__)


class OpsQuery:
    """Runs the query from `start` to `stop`.

    Args:
        spark: The session.
        source: Reads the ops topic.
        admit: Called before each fetch. Blocks while no more may be decided; raises when nothing may be decided.
        apply: Decides one micro-batch. Called in the thread `decide_0`.
        on_failure: Called with the error that ended the query.
        on_end: Called when the query has ended, for whatever reason.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: OpsSource,
        *,
        admit: Callable[[], None],
        apply: Callable[[MicroBatch], None],
        on_failure: Callable[[BaseException], None],
        on_end: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._source = source
        self._admit = admit
        self._on_failure = on_failure
        self._on_end = on_end
        self._handoff = Handoff(apply, lambda: join_pool(spark, PIPELINE))
        self._query: StreamingQuery | None = None

    def start(self, next_offset: Mapping[int, int], spark_checkpoint: Path) -> None:
        """Start the query.

        Args:
            next_offset: The first Kafka offset to decide, by partition.
            spark_checkpoint: Folder of Spark's checkpoint, which must be new.
        """
        join_pool(self._spark, PIPELINE)
        failpoint("start")
        self._query = (
            self._source.stream(next_offset)
            .writeStream.queryName(PIPELINE)
            .option("checkpointLocation", str(spark_checkpoint))
            .foreachBatch(self._take)
            .start()
        )
        threading.Thread(target=self._watch, args=(self._query,), name="ops-query-watch", daemon=True).start()
        _log.info("query_started", decided=next_offset)

    def stop(self) -> None:
        """Stop the query, then finish the micro-batch that was handed over."""
        try:
            if self._query is not None:
                self._query.stop()
        finally:
            self._handoff.close()

    def _take(self, frame: DataFrame, spark_batch_id: int) -> None:
        """Fetch one micro-batch. Called by Spark, which would report an error only as text: keep the error itself."""
        try:
            failpoint("fetch")
            self._admit()
            self._handoff.hand_over(self._source.fetch(frame, spark_batch_id))
        except BaseException as error:
            self._on_failure(error)
            if isinstance(error, Exception):
                raise
            # py4j passes on no other type, and Spark would wait for its answer forever.
            message = f"the job has ended: {error!r}"
            raise Unavailable(message) from error

    def _watch(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - py4j raises errors of many types; the job has ended either way
            self._on_failure(error)
        self._on_end()
