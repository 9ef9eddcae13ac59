"""Watches the chosen topics, and runs one streaming query over exactly their partitions.

```
describe topics ─> QueueWriter.update_topics ─> same partitions and topic ids? ── yes ──> again after POLL_S
       ^                                              │ no
       └─────────────────────────── start a query at the ends of the queues
```

The end of a queue alone says up to where its partition is read. Each query starts at the ends, with a new Spark
checkpoint, of which only the planned range of a micro-batch is used. So a lost checkpoint, a new partition and a
recreated topic are handled alike: by a new query.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from checkpoints.spark_progress import planned_ends
from connectors.delta.session import join_pool
from connectors.kafka.chosen_topics import chosen_topics
from connectors.kafka.spark_source import source_options
from pipelines.build_consume_queue import PIPELINE
from pipelines.build_consume_queue.queue_writer import QueueWriter
from pipelines.build_consume_queue.unit_columns import unit_columns
from pipelines.failpoints import failpoint
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName

__all__ = ["BuilderQuery"]

_log = structlog.get_logger(__name__)

POLL_S = 2.0
"""Pause between two descriptions of the topics."""

WAIT_FOR_ROOM_S = 0.5
FAILURES_MAX = 5
"""Consecutive failures of queries that end the job."""

HEALTHY_AFTER_S = 60.0
"""A query that fails later than this counts as the first failure again."""


class _OutdatedError(Exception):
    """The micro-batch is of a query that has ended, or was read from another topic than that of the queue."""


class _Run(NamedTuple):
    """One query.

    Attributes:
        number: Counts the queries.
        checkpoint: Spark's checkpoint folder.
        reads: The queues that it reads, with their topic ids.
    """

    number: int
    checkpoint: Path
    reads: dict[QueueName, str]


class BuilderQuery:
    """Keeps the queues of all chosen topics built, until `stop` or a failure.

    Args:
        spark: The session.
        connection: The Kafka with the message topics.
        checkpoints: Folder for Spark's checkpoints.
        settings: Settings of the job. The job's own topics are never chosen.
        writer: Takes what is read; nothing else may write to its queues.
        publisher: Publishes the queue types for producers.
        records_per_task_max: At more records several tasks read one partition; None: one task reads it, in order.
        on_failure: Called once with the error that ended it.

    Attributes:
        topics: The chosen topics, as Kafka described them last.
        units: Units built since the start.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        connection: KafkaConnection,
        checkpoints: Path,
        settings: JobSettings,
        writer: QueueWriter[Any],
        publisher: QueueTypesPublisher,
        records_per_task_max: int | None,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._spark = spark
        self._options = {
            **source_options(connection),
            "includeHeaders": "true",
            # Records that retention removed are holes, not a failure.
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": str(settings.build_records_per_micro_batch_max),
        }
        if records_per_task_max is not None:
            # Parallel tasks for large micro-batches only; minPartitions would split small ones, too.
            self._options["maxRecordsPerPartition"] = str(records_per_task_max)
        self._settings = settings
        self._checkpoints = checkpoints
        self._writer = writer
        self._publisher = publisher
        self._on_failure = on_failure
        self._reader = TopicReader(connection, client_id="popstream-builder")
        self._checker = TopicReader(connection, client_id="popstream-builder-check")
        self._query: StreamingQuery | None = None
        self._run_number = 0
        self._reads: dict[QueueName, str] | None = {}
        """The queues that the present query reads, with their topic ids; None: the query must be replaced."""
        self._query_lock = threading.RLock()
        """Held to start and stop queries, and to truncate queues."""
        self._batch_topics: frozenset[str] = frozenset()
        self._failures = 0
        self._started_s = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self.topics: dict[str, MessageTopic] = {}
        self.units = 0
        self._thread = threading.Thread(target=self._watch, name="builder", daemon=True)

    def start(self) -> None:
        """Delete the checkpoints of earlier queries, and start the thread that describes topics and runs queries."""
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the query and the thread; a micro-batch in flight is finished, or read again by the next start."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()
        self._checker.close()
        self._publisher.close()

    def rebuild(self, queue: QueueName, from_offset: int) -> int:
        """Remove a queue's units from an offset on, and read them again; return the offset at which reading begins.

        Raises:
            Invalid: There is no such queue.
        """
        with self._query_lock:
            return self._truncate(queue, from_offset)

    def _truncate(self, queue: QueueName, from_offset: int, *, is_same_log: bool = True) -> int:
        """Remove a queue's units from an offset on, while nothing is added."""
        self._replace_query()
        return self._writer.truncate(queue, from_offset, is_same_log=is_same_log)

    def _replace_query(self) -> None:
        """Ignore whatever the present query reads from now on, and let a new one start."""
        with self._writer.lock:
            self._run_number += 1
            self._reads = None
        self._wake.set()

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._query_lock:
                    self._update()
                self._wake.wait(POLL_S)
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001 - any error ends the job, which reports it
            _log.error("builder_failed", error=str(error), kind=type(error).__name__)
            self._on_failure(error)
        finally:
            try:
                self._end_query()
            except Exception as error:  # noqa: BLE001 - py4j raises errors of many types where the JVM has ended
                _log.warning("builder_query_not_stopped", error=str(error))

    def _update(self) -> None:
        """Describe the topics, update the queues, and make sure that a query reads exactly their partitions."""
        ends = {queue: record.end_offset for queue, record in list(self._writer.queues.items())}
        try:
            globs, own_prefix = self._settings.message_globs, self._settings.topic_prefix
            topics = self._reader.choose(partial(chosen_topics, globs=globs, own_prefix=own_prefix))
            types = self._types(topics)
        except (Unavailable, Invalid) as error:  # Kafka may refuse one topic; the others are read on
            _log.warning("topics_not_described", error=str(error))
            return
        if self._writer.update_topics(topics, types):
            self._replace_query()
        self._publish_types()
        self._truncate_shortened(topics, ends)
        self.topics = topics
        reads = {
            (name, queue_id): topic.topic_id for name, topic in topics.items() for queue_id in sorted(topic.starts)
        }
        ended = self._query is not None and not self._query.isActive
        if ended and reads == self._reads:
            self._count_failure()
        if ended or reads != self._reads:
            self._end_query()
            self._start_query(reads)

    def _types(self, topics: Mapping[str, MessageTopic]) -> dict[str, QueueType]:
        """Return the types from the settings, else of the existing queues, else `sparse` for compacted topics."""
        known: dict[str, QueueType] = {
            name: self._writer.queues[name, 0].queue_type
            for name, topic in topics.items()
            if (name, 0) in self._writer.queues and self._writer.queues[name, 0].topic_id == topic.topic_id
        }
        compacted = self._reader.compacted([name for name in topics if name not in known])
        return {**dict.fromkeys(compacted, "sparse"), **known, **self._settings.queue_types}

    def _publish_types(self) -> None:
        """Publish the types of all queues; a producer that has not read them sends plain records, which suit all."""
        types = {(name, queue.topic_id, queue.queue_type) for (name, _), queue in list(self._writer.queues.items())}
        try:
            self._publisher.publish(types)
        except Unavailable as error:
            _log.warning("queue_types_not_published", error=str(error))

    def _truncate_shortened(self, topics: Mapping[str, MessageTopic], ends: Mapping[QueueName, int]) -> None:
        """Truncate queues whose log ends before the end of the queue: it has lost records, and new ones follow."""
        for topic in topics.values():
            for queue_id, end in topic.ends.items():
                queue = (topic.name, queue_id)
                if end < ends.get(queue, 0) and self._writer.queues[queue].start_offset <= end:
                    _log.error("log_truncated", topic=topic.name, queue_id=queue_id, end=end, was_read_to=ends[queue])
                    self._truncate(queue, end, is_same_log=False)

    def _count_failure(self) -> None:
        """Count a query that ended by itself; raise its error after too many of them."""
        assert self._query is not None
        error = self._query.exception()
        self._failures = self._failures + 1 if time.monotonic() - self._started_s < HEALTHY_AFTER_S else 1
        _log.warning("builder_query_ended", failures=self._failures, error=str(error)[:500])
        if self._failures >= FAILURES_MAX:
            raise error or Unavailable("the query of the builder ended by itself")

    def _end_query(self) -> None:
        query, self._query = self._query, None
        with self._writer.lock:
            self._run_number += 1
        if query is not None:
            query.stop()

    def _start_query(self, reads: dict[QueueName, str]) -> None:
        self._reads = reads
        if not reads:
            return
        with self._writer.lock:
            number = self._run_number
            self._batch_topics = frozenset(
                topic for topic, queue_id in reads if self._writer.queues[topic, queue_id].queue_type == "batch"
            )
            starts: dict[str, dict[str, int]] = {}
            for topic, queue_id in reads:
                starts.setdefault(topic, {})[str(queue_id)] = self._writer.queues[topic, queue_id].end_offset
        checkpoint = self._checkpoints / str(number)
        assign = {topic: sorted(map(int, queue_ids)) for topic, queue_ids in starts.items()}
        frame = (
            self._spark.readStream.format("kafka")
            .options(**self._options)
            .option("assign", json.dumps(assign))
            .option("startingOffsets", json.dumps(starts))
            .load()
        )
        join_pool(self._spark, PIPELINE)
        self._query = (
            unit_columns(frame, self._batch_topics)
            .writeStream.queryName(PIPELINE)
            .option("checkpointLocation", f"file://{checkpoint.absolute()}")
            .foreachBatch(partial(self._take, _Run(number, checkpoint, reads)))
            .start()
        )
        self._started_s = time.monotonic()
        for other in self._checkpoints.iterdir():
            if other != checkpoint:
                shutil.rmtree(other, ignore_errors=True)
        _log.info("builder_query_started", queues=len(reads), run=number)

    def _take(self, run: _Run, frame: DataFrame, spark_batch_id: int) -> None:
        """Build one micro-batch. Called by Spark, also for one that was interrupted before."""
        try:
            self._build(run, frame, spark_batch_id)
        except _OutdatedError:
            return
        except (PySparkException, Py4JError, Unavailable):
            raise  # an error of Kafka or Spark ends the query, and another one is started
        except BaseException as error:
            # After its end a query may fail for any reason, for example because its checkpoint was removed.
            if run.number == self._run_number and not self._stopping.is_set():
                self._on_failure(error)
            raise

    def _build(self, run: _Run, frame: DataFrame, spark_batch_id: int) -> None:
        while not self._writer.wait_for_room(WAIT_FOR_ROOM_S):
            self._require_current(run)
        ends = {
            (topic, queue_id): end
            for topic, by_partition in planned_ends(run.checkpoint, spark_batch_id).items()
            for queue_id, end in by_partition.items()
        }
        read = self._writer.read(frame, ends, self._batch_topics)
        failpoint("build")
        self._require_same_logs(run, ends)
        with self._writer.lock:
            self._require_current(run)
            records = self._writer.write(read, ends)
        self._failures = 0
        self.units += records

    def _require_current(self, run: _Run) -> None:
        """Raise if the queues are not those that the query was started for. The caller holds the builder's lock."""
        queues = self._writer.queues
        is_current = run.number == self._run_number and not self._stopping.is_set()
        if not is_current or any(queues[queue].topic_id != topic_id for queue, topic_id in run.reads.items()):
            raise _OutdatedError

    def _require_same_logs(self, run: _Run, ends: Mapping[QueueName, int]) -> None:
        """Replace the query and raise if a topic was recreated or lost records while the micro-batch was read."""
        topics = self._checker.read(sorted({topic for topic, _ in ends}))
        for (name, queue_id), end in ends.items():
            topic = topics.get(name)
            is_same = topic is not None and topic.topic_id == run.reads[name, queue_id]
            if is_same and topic is not None and topic.ends.get(queue_id, end) >= end:
                continue
            with self._writer.lock:
                self._require_current(run)
                self._replace_query()
            raise _OutdatedError
