"""The builder at work: watches the chosen topics, and runs one streaming query over exactly their partitions.

```
look ─> Builder.adopt ─> same partitions, same ids? ── yes ──> look again in LOOK_S
  ^                              │ no
  └────────────────── start a query from the ends of the queues
```

How far a partition is read is the end of its queue, and nothing else: each query starts there, with a Spark checkpoint
of its own that is only asked for the planned range of a micro-batch. So a lost checkpoint, a new partition and a topic
that was made again are one case.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker_state.consume_queue import Scan, Units
from checkpoints.spark_progress import planned_ends
from connectors.kafka.own_topics import Topics, chosen_topics
from pipelines.apply_ops.outbox import EntryKind
from pipelines.build_consume_queue.builder import Builder, Queue
from pipelines.build_consume_queue.dispatch_sender import DispatchSender
from pipelines.build_consume_queue.unit_columns import unit_columns, units_by_queue
from pipelines.build_consume_queue.unit_flush import PIPELINE, UnitFlush
from pipelines.failpoints import failpoint
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.command import QueueType
from popstream.wire.failures import Invalid, Unavailable

__all__ = ["BuilderQuery"]

_log = structlog.get_logger(__name__)

LOOK_S = 2.0
ROOM_S = 0.5
FAILURES_MAX = 5
# A query that ran so long has not failed at once.
LASTING_S = 60.0
KEPT_OFFSETS_MIN = 20_000


class _OutdatedError(Exception):
    """The micro-batch was read from another topic than the queue is of, or by a query that is over."""


class _Run(NamedTuple):
    """One query: its number, its checkpoint, and the topic id of each queue that it reads."""

    number: int
    checkpoint: Path
    reads: dict[Queue, str]


class BuilderQuery:
    """Keeps the queues of all chosen topics built, until `stop` or a failure.

    Args:
        spark: The session.
        source_options: Options of Spark's Kafka source.
        bootstrap_servers: The Kafka with the message topics.
        checkpoints: Folder for Spark's checkpoints.
        globs: Names of topics, or patterns with `*`, `?` and `[...]`.
        own: Topics of the job, which are never chosen.
        queue_types: Of topics that are neither simple nor compacted.
        records_per_batch_max: Bounds a micro-batch.
        records_per_task_max: More of a partition are read by several tasks at the same time.
        builder: Decides; this is its only user that appends.
        sender: Takes what is to be dispatched.
        publisher: Tells producers the types.
        unit_flush: Takes the frames.
        on_failure: Called once with what ended it.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        source_options: Mapping[str, str],
        bootstrap_servers: str,
        checkpoints: Path,
        globs: list[str],
        own: Topics,
        queue_types: Mapping[str, QueueType],
        records_per_batch_max: int,
        records_per_task_max: int,
        builder: Builder,
        sender: DispatchSender,
        publisher: QueueTypesPublisher,
        unit_flush: UnitFlush,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._spark = spark
        self._options = {
            **source_options,
            "includeHeaders": "true",
            # Retention is no failure: what it took is a hole.
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": str(records_per_batch_max),
            # Like minPartitions, but a small micro-batch is not cut into tasks of a record each.
            "maxRecordsPerPartition": str(records_per_task_max),
        }
        self._records_per_batch_max = records_per_batch_max
        self._checkpoints = checkpoints
        self._globs = globs
        self._own = own
        self._queue_types = queue_types
        self._builder = builder
        self._sender = sender
        self._publisher = publisher
        self._unit_flush = unit_flush
        self._on_failure = on_failure
        self._reader = TopicReader(bootstrap_servers, client_id="popstream-builder")
        self._checker = TopicReader(bootstrap_servers, client_id="popstream-builder-check")
        self._query: StreamingQuery | None = None
        self._run_no = 0
        self._reads: dict[Queue, str] | None = {}
        """What the present query reads; None: it is to be replaced."""
        self._steering = threading.RLock()
        """Held by whoever starts and ends queries."""
        self._batch_topics: frozenset[str] = frozenset()
        self._failures = 0
        self._started_s = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self.topics: dict[str, MessageTopic] = {}
        """The chosen topics as they were when Kafka was last asked."""
        self.units = 0
        shutil.rmtree(checkpoints, ignore_errors=True)
        self._thread = threading.Thread(target=self._watch, name="builder", daemon=True)

    def start(self) -> None:
        """Begin; what a predecessor left in the outbox goes out first."""
        self._thread.start()

    def stop(self) -> None:
        """End; a micro-batch under way is finished or forgotten."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()
        self._checker.close()
        self._publisher.close()

    def rebuild(self, queue: Queue, from_offset: int) -> int:
        """Forget a queue from an offset on and read it again; where it begins to be read.

        Raises:
            Invalid: There is no such queue.
        """
        with self._steering:
            return self._truncate(queue, from_offset)

    def _truncate(self, queue: Queue, from_offset: int, *, is_same_log: bool = True) -> int:
        """Forget a queue from an offset on; nothing is added meanwhile, and Delta has every unit that is forgotten."""
        self._abandon()
        self._unit_flush.flush()
        return self._builder.truncate(queue, from_offset, is_same_log=is_same_log)

    def _abandon(self) -> None:
        """What the present query reads from now on does not continue the queues: start another one."""
        with self._builder.lock:
            self._run_no += 1
            self._reads = None
        self._wake.set()

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._steering:
                    self._steer()
                self._wake.wait(LOOK_S)
                self._wake.clear()
        except BaseException as error:  # noqa: BLE001 - whatever it is ends the job, which says what it was
            _log.error("builder_failed", error=str(error), kind=type(error).__name__)
            self._on_failure(error)
        finally:
            self._end_query()

    def _steer(self) -> None:
        """Ask Kafka, take note, and see to it that the right query runs."""
        ends = {queue: record.end_offset for queue, record in list(self._builder.queues.items())}
        try:
            topics = self._reader.choose(partial(chosen_topics, globs=self._globs, own=self._own))
            types = self._types(topics)
        except (Unavailable, Invalid) as error:  # refused it may be for a topic that is no concern of the others
            _log.warning("topics_not_seen", error=str(error))
            return
        with self._builder.lock:  # so that what is said of a queue is said in this order
            self._sender.send(self._builder.adopt(topics, types))
        self._publish_types()
        self._cut_back(topics, ends)
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
        """As the settings say, else as the queues were made, else by whether Kafka compacts the topic."""
        known: dict[str, QueueType] = {
            name: self._builder.queues[name, 0].queue_type
            for name, topic in topics.items()
            if (name, 0) in self._builder.queues and self._builder.queues[name, 0].topic_id == topic.topic_id
        }
        compacted = self._reader.compacted([name for name in topics if name not in known])
        return {**dict.fromkeys(compacted, "sparse"), **known, **self._queue_types}

    def _publish_types(self) -> None:
        """Producers may learn late: until then they send plain records, which every type takes."""
        types = {(name, queue.topic_id, queue.queue_type) for (name, _), queue in list(self._builder.queues.items())}
        try:
            self._publisher.publish(types)
        except Unavailable as error:
            _log.warning("queue_types_not_published", error=str(error))

    def _cut_back(self, topics: Mapping[str, MessageTopic], ends: Mapping[Queue, int]) -> None:
        """A log that ends before where it was read has lost records: what comes there next is read as new."""
        for topic in topics.values():
            for queue_id, end in topic.ends.items():
                queue = (topic.name, queue_id)
                if end < ends.get(queue, 0) and self._builder.queues[queue].start_offset <= end:
                    _log.error("log_shortened", topic=topic.name, queue_id=queue_id, end=end, was_read_to=ends[queue])
                    self._truncate(queue, end, is_same_log=False)

    def _count_failure(self) -> None:
        """A query that ended although its topics are what they were: try again, but not for ever."""
        assert self._query is not None
        error = self._query.exception()
        self._failures = self._failures + 1 if time.monotonic() - self._started_s < LASTING_S else 1
        _log.warning("builder_query_ended", failures=self._failures, error=str(error)[:500])
        if self._failures >= FAILURES_MAX:
            raise error or Unavailable("the query of the builder ended by itself")

    def _end_query(self) -> None:
        query, self._query = self._query, None
        with self._builder.lock:
            self._run_no += 1
        if query is not None:
            query.stop()

    def _start_query(self, reads: dict[Queue, str]) -> None:
        self._reads = reads
        if not reads:
            return
        with self._builder.lock:
            number = self._run_no
            self._batch_topics = frozenset(
                topic for topic, queue_id in reads if self._builder.queues[topic, queue_id].queue_type == "batch"
            )
            starts: dict[str, dict[str, int]] = {}
            for topic, queue_id in reads:
                starts.setdefault(topic, {})[str(queue_id)] = self._builder.queues[topic, queue_id].end_offset
        checkpoint = self._checkpoints / str(number)
        assign = {topic: sorted(map(int, queue_ids)) for topic, queue_ids in starts.items()}
        frame = (
            self._spark.readStream.format("kafka")
            .options(**self._options)
            .option("assign", json.dumps(assign))
            .option("startingOffsets", json.dumps(starts))
            .load()
        )
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", PIPELINE)
        self._query = (
            unit_columns(frame, self._batch_topics)
            .writeStream.queryName(PIPELINE)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(partial(self._take, _Run(number, checkpoint, reads)))
            .start()
        )
        self._started_s = time.monotonic()
        for old in self._checkpoints.iterdir():
            if old != checkpoint:
                shutil.rmtree(old, ignore_errors=True)
        _log.info("builder_query_started", queues=len(reads), run=number)

    def _take(self, run: _Run, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch: Spark calls this, also once more for a micro-batch that was cut short."""
        try:
            self._build(run, frame, batch_id)
        except _OutdatedError:
            return
        except (PySparkException, Py4JError, Unavailable):
            raise  # Kafka or Spark: another query may have more luck
        except BaseException as error:
            # Of a query that is over, even its checkpoint may be gone.
            if run.number == self._run_no and not self._stopping.is_set():
                self._on_failure(error)
            raise

    def _build(self, run: _Run, frame: DataFrame, batch_id: int) -> None:
        while not self._sender.wait_for_room(ROOM_S):
            self._require_current(run)
        ends = {
            (topic, queue_id): end
            for topic, by_partition in planned_ends(run.checkpoint, batch_id).items()
            for queue_id, end in by_partition.items()
        }
        with self._builder.lock:
            self._require_current(run)
            planned = sum(max(0, end - self._builder.queues[queue].end_offset) for queue, end in ends.items())
        if planned >= self._records_per_batch_max // 2:
            self._unit_flush.postpone()
        # Frames cost Delta a plan each, whatever they hold: what is small is written from the store.
        kept = frame.persist() if planned >= KEPT_OFFSETS_MIN else None
        try:
            table = frame.toArrow()
            failpoint("build")
            units = dict(units_by_queue(table, batch_topics=self._batch_topics))
            self._require_same_logs(run, ends)
            with self._builder.lock:
                self._require_current(run)
                scans = {}
                for queue, end in ends.items():
                    at = self._builder.queues[queue].end_offset
                    if end > at:
                        scans[queue] = Scan(at, end, units.get(queue, _NO_UNITS).between(at, end))
                entries = self._builder.append(scans)
                failpoint("build_dispatch")
                self._sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
                if kept is not None and entries:
                    self._unit_flush.keep(self._builder.built.build_seq, kept, table.num_rows)
                    kept = None
        finally:
            if kept is not None:
                kept.unpersist()
        self._failures = 0
        self.units += table.num_rows

    def _require_current(self, run: _Run) -> None:
        """To be asked under the builder's lock: the queues are those that the query was started for."""
        queues = self._builder.queues
        is_current = run.number == self._run_no and not self._stopping.is_set()
        if not is_current or any(queues[queue].topic_id != topic_id for queue, topic_id in run.reads.items()):
            raise _OutdatedError

    def _require_same_logs(self, run: _Run, ends: Mapping[Queue, int]) -> None:
        """A topic that was made again, or lost records, may have given any records: then all of it is read anew."""
        topics = self._checker.read(sorted({topic for topic, _ in ends}))
        for (name, queue_id), end in ends.items():
            topic = topics.get(name)
            is_same = topic is not None and topic.topic_id == run.reads[name, queue_id]
            if is_same and topic is not None and topic.ends.get(queue_id, end) >= end:
                continue
            with self._builder.lock:
                self._require_current(run)
                self._abandon()
            raise _OutdatedError


_NO_UNITS = Units.of([])
