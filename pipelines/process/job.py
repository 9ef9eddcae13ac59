"""The running job: everything wired together, started in the order that recovery needs, stopped in reverse."""

import contextlib
import gc
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker_state.store.keys import queue_prefix
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, decode_noted
from checkpoints.attempts import Attempts
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from checkpoints.reconcile import TableFound, reconcile
from checkpoints.replay import replay_of
from checkpoints.snapshots import SnapshotStore
from checkpoints.spark_progress import SparkPlans, fresh_checkpoint
from connectors.delta.flusher import AuditFlusher
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from pipelines.apply_ops.dead_letter_copy import REQUEST_BYTES_MAX, KafkaLetterReader
from pipelines.apply_ops.decode import Decoder
from pipelines.apply_ops.delta_flush import Flush
from pipelines.apply_ops.handoff import Handoff
from pipelines.apply_ops.micro_batch import PIPELINE, MicroBatchApplier, MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.publish import Publisher
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import MicroBatch, OpsSource
from pipelines.apply_ops.ticker import Ticker
from pipelines.build_consume_queue.running import RunningBuilder
from pipelines.control.metrics import Metrics
from pipelines.control.state_view import queues_in
from pipelines.failpoints import failpoint
from pipelines.loops.periodic import Periodic
from pipelines.loops.retry_loop import RetryLoop
from pipelines.process.log_watch import LogWatch
from pipelines.process.maintenance import maintain
from pipelines.recovery.ops_log import found_log
from pipelines.recovery.snapshot_loop import SnapshotLoop, take_snapshot
from pipelines.settings import JobSettings
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.exchange.resilient_producer import close_producer
from popstream.wire.failures import Unavailable
from popstream.wire.handle import Signer

__all__ = ["Job", "signer_of"]

_log = structlog.get_logger(__name__)

ROOM_S = 0.5
AUDIT_BEHIND = "Delta does not take audit rows"


class Job:
    """apply_ops on one ops topic, and build_consume_queue on the message topics, until `stop` or a failure.

    Args:
        settings: All of them.
        bootstrap_servers: The Kafka to work with.
        spark: A session with Delta and the Kafka source.
        ownership: Of the folder; it stays the caller's, who may start another job with it.
        metrics: Where to count; a process may have several jobs, one after the other.

    Raises:
        Fenced: another process runs this job.
        Invalid: a topic has settings that the job cannot work with.
        Corrupt: the log has lost records, or the state contradicts it.
        Unavailable: Kafka does not answer.
    """

    def __init__(
        self,
        settings: JobSettings,
        bootstrap_servers: str,
        spark: SparkSession,
        ownership: Ownership,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings
        self.folder = JobFolder(settings.folder)
        self.bootstrap_servers = bootstrap_servers
        self.metrics = metrics or Metrics()
        self._spark = spark
        self._ownership = ownership
        self._failure: BaseException | None = None
        self._is_stopping = False
        """Spark's query is being stopped: that what it was reading is cancelled is no failure."""
        self._ended = threading.Event()
        self._stack = contextlib.ExitStack()
        with self._stack:  # what was opened is closed again when a later step fails
            self._start()
            self._stack = self._stack.pop_all()

    def _start(self) -> None:
        settings, spark, bootstrap_servers = self.settings, self._spark, self.bootstrap_servers
        self._stack.callback(self._ended.set)
        self.topics = Topics.of(settings.topic_prefix)
        facts = ensure_topics(
            bootstrap_servers,
            self.topics,
            TopicSettings(ops_partitions=settings.ops_partitions, results_partitions=settings.results_partitions),
            oldest_snapshot_age_ms=int(settings.snapshots_keep * settings.snapshot_interval_s * 1000),
        )
        self.ops = facts[self.topics.ops]
        self.results = facts[self.topics.results]
        self.store = RocksStore(self.folder.state)
        self._stack.callback(self.store.close)
        applied, self._flusher = self._reconciled()
        _log.info("reconciled", apply_seq=applied.apply_seq)
        self.outbox = Outbox(self.store)
        self.quarantine = Quarantine(self.store, self._ownership.require)
        self._tick_producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            # A tick more changes nothing, and an idempotent producer may not outlive an outage (`resilient_producer`).
            enable_idempotence=False,
            linger_ms=0,
        )
        self._stack.callback(close_producer, self._tick_producer, 5)
        producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_request_size=REQUEST_BYTES_MAX,
        )
        letters = KafkaLetterReader({"bootstrap_servers": bootstrap_servers})
        self.publisher = Publisher(self.topics, self.outbox, producer, letters, self._fail_unless_stopping)
        self._stack.callback(self.publisher.close)
        self.ticker = Ticker(self._send_tick, self.fail)
        checkpoint = fresh_checkpoint(self.folder.spark)
        self._source = OpsSource(spark, self._source_options(), self.topics.ops, settings.records_per_batch_max)
        signer = signer_of(settings)
        self.apply_ops = MicroBatchApplier(
            store=self.store,
            require_ownership=self._ownership.require,
            outbox=self.outbox,
            attempts=Attempts(self.folder.attempts),
            quarantine=self.quarantine,
            applied=applied,
            decoder=Decoder(self.ops.partition_count, signer),
            source=self._source,
            plans=SparkPlans(checkpoint, self.topics.ops),
            results_partitions=self.results.partition_count,
            signer=signer,
            delivered=self._flusher.committed,
            publish=self.publisher.publish,
            after_batch=self._after_batch,
        )
        self.flush = Flush(self.outbox, self._flusher, applied_seq=lambda: self.apply_ops.applied.apply_seq)
        self.flush_loop = RetryLoop(
            "flush", settings.flush_interval_s, self.flush.flush, self.fail, problem_prefix=AUDIT_BEHIND
        )
        self.log_watch = LogWatch(bootstrap_servers, self.ops, lambda: self.apply_ops.applied.next_offset, self.fail)
        self.log_watch.start()
        self._stack.callback(self.log_watch.stop)
        self.metrics.ask(
            ops_lag=lambda: self.log_watch.lag,
            ops_overdue=lambda: self.log_watch.overdue,
            outbox_bytes=lambda: self.outbox.undelivered_bytes,
            delta_lag=lambda: self.apply_ops.applied.apply_seq - self.flush.delivered_seq,
            quarantined=lambda: len(self.quarantine),
        )
        self._learn_stored_deadlines()
        self.flush_loop.start()
        self._stack.callback(self.flush_loop.stop)
        self._handoff = Handoff(self._apply, self._join_pool)
        self._stack.callback(self._handoff.close)
        self.query = self._start_query(checkpoint, applied)
        self._stack.callback(self.query.stop)
        if settings.ticks:
            self.ticker.start()
        self._stack.callback(self.ticker.stop)
        self.builder: RunningBuilder | None = None
        if settings.message_globs:
            self.builder = RunningBuilder(
                settings, self.folder, bootstrap_servers, spark, self._source_options(), self.fail
            )
            self._stack.callback(self.builder.stop)
        self.snapshot_loop = self._snapshot_loop()
        self.snapshot_loop.start()
        self._stack.callback(self.snapshot_loop.stop)
        self._maintenance = Periodic("maintenance", settings.maintain_interval_s, self._maintain, self.folder.last_done)
        self._maintenance.start()
        self._stack.callback(self._maintenance.stop)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended or failed; False when it still runs after `timeout_s`."""
        return self._ended.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        """Something ended that the job cannot do without."""
        if self._failure is None:
            self._failure = error
            _log.error("job_failed", error=str(error), kind=type(error).__name__)
        self._ended.set()

    def _fail_unless_stopping(self, error: BaseException) -> None:
        if not self._is_stopping:
            self.fail(error)

    @property
    def verified_rows(self) -> int:
        """Audit rows that were recomputed after a restore, and were as the tables have them."""
        return self._flusher.verified_rows

    @property
    def failure(self) -> BaseException | None:
        """What ended the job, if anything did."""
        return self._failure

    def stop(self) -> None:
        """Stop deciding, deliver what is decided, release the state; each step is tried, even if another raises."""
        self._is_stopping = True
        self._stack.close()

    def _reconciled(self) -> tuple[Applied, AuditFlusher]:
        """The state as it is to be continued, and the tables, once they agree with each other and with the log."""
        stored = self.store.get(META, APPLIED_KEY)
        known = None if stored is None else Applied.decode(stored)
        applied = known or Applied(
            state_epoch=uuid.uuid4().hex, ops_topic=self.topics.ops, ops_topic_id=self.ops.topic_id
        )
        replay = replay_of(self.store)
        flusher = AuditFlusher(
            self._spark,
            self.folder.delta,
            PIPELINE,
            applied.state_epoch,
            ops_topic_id=self.ops.topic_id,
            covered=replay.covered,
            compared_from=replay.compared_from,
            restores_known=replay.table_version,
        )
        reconcile(
            known,
            decode_noted(self.store.get(META, NOTED_KEY)),
            found_log(self.bootstrap_servers, self.ops),
            [
                TableFound(name=name, delivered=table.versions, was_restored=table.was_restored)
                for name, table in flusher.tables.items()
            ],
            replay,
        )
        return applied, flusher

    def _snapshot_loop(self) -> SnapshotLoop:
        snapshots = SnapshotStore(self.settings.snapshots or str(self.folder.snapshots))
        queues = None if self.builder is None else self.builder.store
        return SnapshotLoop(
            lambda: take_snapshot(self.store, queues, self.folder.scratch, snapshots),
            snapshots,
            interval_s=self.settings.snapshot_interval_s,
            keep=self.settings.snapshots_keep,
            decided=lambda: self.apply_ops.applied.apply_seq,
            last_done=self.folder.last_done,
        )

    def _maintain(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", "maintenance")
        for done in maintain(self._spark, self.folder.delta, lambda: self._maintenance.is_stopping):
            _log.info("maintained", **msgspec.structs.asdict(done))

    def _source_options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            # A fetch that finds nothing new must not hold a micro-batch up for Kafka's half second.
            "kafka.fetch.max.wait.ms": "50",
            # Spark asks for offsets four times before it fails, and a stop waits for the question that is under way.
            "kafka.request.timeout.ms": "15000",
            "kafka.default.api.timeout.ms": "20000",
            "failOnDataLoss": "true",
        }

    def _start_query(self, checkpoint: Path, applied: Applied) -> StreamingQuery:
        next_offset = {p: applied.next_offset.get(p, 0) for p in range(self.ops.partition_count)}
        self._join_pool()
        failpoint("start")
        query = (
            self._source.stream(next_offset)
            .writeStream.queryName(PIPELINE)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._take)
            .start()
        )
        threading.Thread(target=self._watch, args=(query,), name="watch", daemon=True).start()
        _log.info("query_started", decided=next_offset)
        return query

    def _join_pool(self) -> None:
        """What this thread asks of Spark is scheduled fairly with the other pools."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", PIPELINE)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        """Spark calls this; whatever goes wrong in it is kept as it was, and not as Spark retells it."""
        try:
            failpoint("fetch")
            self.publisher.check()
            self._wait_for_room()
            self._handoff.hand_over(self._source.fetch(frame, batch_id))
        except BaseException as error:
            self._fail_unless_stopping(error)
            if isinstance(error, Exception):
                raise
            # py4j hands on nothing else, and Spark would wait for its answer for ever.
            message = f"the job has ended: {error!r}"
            raise Unavailable(message) from error

    def _apply(self, micro_batch: MicroBatch) -> None:
        gc.disable()  # a micro-batch makes many objects and no cycles; they are gone before the collector looks again
        try:
            self.apply_ops(micro_batch)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            gc.enable()

    @property
    def obstacles(self) -> list[str]:
        """What keeps the job from deciding or delivering now; without any it is ready."""
        units = None if self.builder is None else self.builder.unit_flush.loop.problem
        found = [problem for problem in (self.log_watch.problem, self.flush_loop.problem, units) if problem]
        if self._is_full:
            limit = self.settings.outbox_bytes_max
            found.append(
                f"the outbox holds more than {limit:,} bytes: nothing is decided until Delta or Kafka takes some"
            )
        if self._failure is not None:
            found.append(f"the job has ended: {self._failure}")
        return found

    @property
    def _is_full(self) -> bool:
        return self.outbox.undelivered_bytes > self.settings.outbox_bytes_max

    def _wait_for_room(self) -> None:
        if self._is_full:
            _log.warning("deciding_stands_still", outbox_bytes=self.outbox.undelivered_bytes)
        while self._is_full:
            if self._is_stopping or self._ended.wait(ROOM_S):
                message = "the job was stopped while it waited for room in the outbox"
                raise Unavailable(message)
            self.publisher.check()

    def _after_batch(self, report: MicroBatchReport, deadlines: Mapping[tuple[str, int], int], newest_ms: int) -> None:
        behind = report.records >= self.settings.records_per_batch_max
        self.metrics.record(report, self.outbox, self.flush.delivered_seq)
        self.ticker.learn(deadlines, newest_ms, behind=behind)
        failpoint("commit")

    def _learn_stored_deadlines(self) -> None:
        deadlines = {}
        queues = list(queues_in(self.store))
        for queue in queues:
            prefix = queue_prefix(queue.topic, queue.queue_id)
            first = self.store.deadlines(prefix, None, (1 << 63) - 1, 1)
            if first:
                deadlines[queue.topic, queue.queue_id] = first[0].deadline_ms
        self.ticker.learn(deadlines, max((queue.now_ms for queue in queues), default=0), behind=False)

    def _send_tick(self, queue: tuple[str, int], value: bytes, answered: Callable[[int | None], None]) -> None:
        self.metrics.count_tick()
        key = ops_key(*queue)
        future = self._tick_producer.send(
            self.topics.ops, value=value, key=key, partition=partition_of(key, self.ops.partition_count)
        )
        future.add_callback(lambda metadata: answered(metadata.timestamp))
        future.add_errback(lambda _: answered(None))

    def _watch(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes; the job has ended either way
            self._fail_unless_stopping(error)
        self._ended.set()


def signer_of(settings: JobSettings) -> Signer | None:
    """Who signs and checks handles; None: they are not signed."""
    if not settings.handle_keys:
        return None
    keys = {key_id: secret.get_secret_value().encode() for key_id, secret in settings.handle_keys.items()}
    return Signer(keys, settings.handle_key_active)
