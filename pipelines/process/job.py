"""The running job: its parts wired together, started in the order that recovery needs, and stopped in reverse."""

import contextlib
import gc
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import structlog
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from broker_state import KERNEL_FORM
from broker_state.kernel.context.decision import Decision
from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.keys import NEVER_MS, queue_prefix
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, decode_noted
from checkpoints.micro_batch_attempts import Attempts
from checkpoints.ownership import Ownership
from checkpoints.prefix_owner import Owner
from checkpoints.reconcile import TableFound, reconcile
from checkpoints.replay import replay_of
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from checkpoints.spark_progress import SparkPlans, fresh_checkpoint
from connectors.delta.flusher import AuditFlusher
from connectors.delta.session import join_pool
from connectors.delta.store import write_table_checkpoint
from connectors.kafka.kafka_errors import kafka_errors
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.spark_source import source_options
from connectors.kafka.topic_admin import TopicFacts
from pipelines.apply_ops.dead_letters.dead_letter_reader import REQUEST_BYTES_MAX, KafkaDeadLetterReader
from pipelines.apply_ops.dead_letters.earlier_letters import EarlierLetters
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.micro_batch import MicroBatchApplier, MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.publish import Publisher
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import PIPELINE, MicroBatch, OpsSource
from pipelines.apply_ops.tick_producer import TickProducer
from pipelines.apply_ops.ticker import Ticker
from pipelines.build_consume_queue.service import BuilderService
from pipelines.control.lane_views import StoredQueue, scan_queues
from pipelines.control.lane_watch import LaneWatch
from pipelines.control.messages import JobReport, OwnerView
from pipelines.control.metric_definitions import Metric
from pipelines.control.metrics import Metrics
from pipelines.decide_ops.decode import Decoder
from pipelines.decide_ops.entry import EntryKind
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.failpoints import failpoint
from pipelines.job_settings import JobSettings
from pipelines.laps import Lap, OnLap, ignore_lap
from pipelines.loops.periodic import Periodic
from pipelines.loops.retry_loop import RetryLoop
from pipelines.printed_commands import completed_commands
from pipelines.process.job_end import JobEnd
from pipelines.process.job_topics import ensure_job_topics
from pipelines.process.log_watch import LogWatch
from pipelines.process.maintenance import maintain
from pipelines.process.ops_query import OpsQuery
from pipelines.process.owner_table import OwnerTable
from pipelines.process.prefix_ownership import PrefixOwnership
from pipelines.process.tables_replica import TablesReplica
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.scrub import Scrub
from pipelines.recovery.snapshot_loop import SnapshotLoop
from pipelines.recovery.take_snapshot import take_snapshot
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Unavailable
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.handle import Signer
from popstream.wire.queue_name import QueueName
from popstream.wire.signing import OperationVerifier

if TYPE_CHECKING:
    from pipelines.process.job_traces import JobTraces

__all__ = ["Job"]

_log = structlog.get_logger(__name__)

REPLICA_STOP_S = 2.0
"""How long a stop waits for the replica of the tables: a place that hangs must not keep it."""
OUTBOX_POLL_S = 0.5
"""How often a full outbox is looked at again."""


class Job:
    """apply_ops on one ops topic, and build_consume_queue on the message topics, from `start` to `stop` or a failure.

    Args:
        settings: All settings of the job.
        connection: The Kafka to work with.
        spark: A session with Delta and the Kafka source.
        ownership: Ownership of the folder. The caller keeps it, and may start another job with it.
        metrics: Where to count. A process may run several jobs, one after the other.
        take_over: Take the prefix from any owner.
        traces: Is told what the job has done; None: nobody is.
    """

    topics: Topics
    ops: TopicFacts
    results: TopicFacts
    store: RocksStore
    outbox: Outbox
    quarantine: Quarantine
    prefix_ownership: PrefixOwnership | None = None
    publisher: Publisher
    ticker: Ticker
    apply_ops: MicroBatchApplier
    flush: DeltaFlush
    flush_loop: RetryLoop
    replica_loop: RetryLoop | None = None
    log_watch: LogWatch
    scrub: Scrub
    snapshot_loop: SnapshotLoop
    builder: BuilderService | None = None
    lane_watch: LaneWatch | None = None
    _flusher: AuditFlusher
    _source: OpsSource
    _maintenance: Periodic
    _tick_producer: TickProducer

    def __init__(
        self,
        settings: JobSettings,
        connection: KafkaConnection,
        spark: SparkSession,
        ownership: Ownership,
        metrics: Metrics | None = None,
        *,
        take_over: bool = False,
        traces: "JobTraces | None" = None,
    ) -> None:
        self.settings = settings
        self.folder = settings.job_folder
        self.connection = connection
        self.metrics = metrics or Metrics()
        self._spark = spark
        self._ownership = ownership
        self._take_over = take_over
        self._traces = traces
        self._on_lap: OnLap = ignore_lap if traces is None else traces.work
        self._stored_epoch = ""
        """The state epoch, once something is stored in the state."""
        self._end = JobEnd()
        self._stack = contextlib.ExitStack()

    def start(self) -> Self:
        """Start everything; what was opened is closed again when a later step fails.

        Raises:
            Fenced: Another process runs this job, or another job with this prefix.
            Invalid: A topic has settings that the job cannot work with, or the prefix belongs to another state.
            Corrupt: The log has lost records, or the state contradicts it.
            Unavailable: Kafka does not answer.
        """
        with self._stack:
            self._stack.callback(self._end.set)
            self._check_topics()
            applied = self._open_state()
            self._open_producers(applied)
            spark_checkpoint = fresh_checkpoint(self.folder.spark)
            self._wire_apply_ops(applied, spark_checkpoint)
            self._start_replica()
            self._start_audit()
            self._start_query(applied, spark_checkpoint)
            self._start_ticker()
            self._start_builder()
            self._start_upkeep()
            self._stack = self._stack.pop_all()
        return self

    def stop(self) -> None:
        """Stop deciding, deliver what is decided, and close the state. Every step is tried, even if another raises."""
        self._end.is_stopping = True
        if self.prefix_ownership is not None:
            self.prefix_ownership.hurry()
            if self.prefix_ownership.is_fenced:
                self._abandon_first()
        self._stack.close()

    def _abandon_first(self) -> None:
        """Send nothing more before anything else is stopped: a snapshot or a compaction may take a while to end."""
        self._stack.callback(self.publisher.abandon)
        if self.builder is not None:
            self._stack.callback(self.builder.abandon)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended or failed. False: it still runs after `timeout_s`."""
        return self._end.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        """End the job because a part that it needs has ended."""
        self._end.fail(error)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the job, if any."""
        return self._end.failure

    @property
    def applied(self) -> Applied:
        """How far the log is decided."""
        return self.apply_ops.applied

    @property
    def verified_rows(self) -> int:
        """Audit rows that were recomputed after a restore and equal those in the tables."""
        return self._flusher.verified_rows

    @property
    def not_ready_reasons(self) -> list[str]:
        """What keeps the job from deciding or delivering. Empty: it is ready."""
        units = None if self.builder is None else self.builder.unit_flush.loop.problem
        found = [problem for problem in (self.log_watch.problem, self.flush_loop.problem, units) if problem]
        if self._is_outbox_full:
            limit = self.settings.outbox_bytes_max
            found.append(
                f"the outbox holds more than {limit:,} bytes: nothing is decided until Delta or Kafka takes some"
            )
        if self.failure is not None:
            found.append(f"the job has ended: {self.failure}")
        return [completed_commands(reason, elsewhere=True) for reason in found]

    def report(self) -> JobReport:
        """Return the progress of the job. Reads memory only, so it also works after the job has stopped."""
        snapshot, snapshot_failure = self.snapshot_loop.last, self.snapshot_loop.last_failure
        return JobReport(
            folder=str(self.folder.root),
            kernel_form=KERNEL_FORM,
            apply_seq=self.applied.apply_seq,
            bootstrap_servers=self.connection.bootstrap_servers,
            prefix=self.settings.topic_prefix,
            owner=OwnerView.of(self.settings.topic_prefix, self._prefix.owner),
            failure=None if self.failure is None else completed_commands(str(self.failure), elsewhere=True),
            delta_seq=self.flush.delivered_seq,
            outbox_bytes=self.outbox.undelivered_bytes,
            ops_lag=self.log_watch.lag,
            ops_overdue=self.log_watch.overdue,
            totals=self.metrics.totals(),
            not_ready_reasons=self.not_ready_reasons,
            snapshot=None if snapshot is None else snapshot.id,
            snapshot_failure=None if not snapshot_failure else completed_commands(snapshot_failure, elsewhere=True),
            replica_failure=None if self.replica_loop is None else self.replica_loop.problem,
            damage=[completed_commands(sentence, elsewhere=True) for sentence in self.scrub.damage],
            table_checkpoint_failures=self._table_checkpoint_failures(),
            quarantined=len(self.quarantine),
            builder=None if self.builder is None else self.builder.status(),
        )

    def _table_checkpoint_failures(self) -> list[str]:
        units = None if self.builder is None else self.builder.unit_flush.table_checkpoint_failure
        failures = [*self._flusher.table_checkpoint_failures, *([] if units is None else [units])]
        return [completed_commands(failure, elsewhere=True) for failure in failures]

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot and store it.

        Raises:
            Unavailable: It cannot be stored.
            Corrupt: A file of the stores is damaged.
        """
        return self.snapshot_loop.take_now()

    def _check_topics(self) -> None:
        """Create the topics that are missing, and refuse those with unsuitable settings."""
        self.topics = Topics.of(self.settings.topic_prefix)
        facts = ensure_job_topics(self.connection, self.settings)
        self.ops = facts[self.topics.ops]
        self.results = facts[self.topics.results]

    def _open_state(self) -> Applied:
        """Open the state, and return how far it has decided the log, once it agrees with the log and the tables."""
        self.store = self._stack.enter_context(RocksStore(self.folder.state))
        applied = self._reconcile()
        _log.info("reconciled", apply_seq=applied.apply_seq, kernel=KERNEL_FORM)
        self.outbox = Outbox(self.store)
        self.quarantine = Quarantine(self.store, self._require_ownership)
        return applied

    def _reconcile(self) -> Applied:
        stored = self.store.get(META, APPLIED_KEY)
        known = None if stored is None else Applied.decode(stored)
        # First, because a wrong folder must not be repaired. If a folder has lost its state only, `reconcile` says so.
        if known is not None or not self.folder.delta.is_dir():
            self._take_prefix(known)
        applied = known or Applied(
            state_epoch=uuid.uuid4().hex, ops_topic=self.topics.ops, ops_topic_id=self.ops.topic_id
        )
        replay = replay_of(self.store)
        self._flusher = AuditFlusher(
            self._spark,
            self.folder.delta,
            PIPELINE,
            applied.state_epoch,
            ops_topic_id=self.ops.topic_id,
            covered=replay.covered,
            compared_from=replay.compared_from,
            restores_known=replay.table_version,
            rejected_heads=self.settings.rejected_heads,
            require_ownership=self._require_tables,
        )
        reconcile(
            known,
            decode_noted(self.store.get(META, NOTED_KEY)),
            read_log_bounds(self.connection, self.ops),
            [
                TableFound(
                    name=name,
                    delivered=table.versions,
                    was_restored=table.was_restored,
                    written_since=table.written_since,
                )
                for name, table in self._flusher.tables.items()
            ],
            replay,
        )
        if self.prefix_ownership is None:
            self._take_prefix(known)
        return applied

    def _take_prefix(self, known: Applied | None) -> None:
        self._stored_epoch = "" if known is None else known.state_epoch
        self.prefix_ownership = PrefixOwnership(
            self.settings.topic_prefix,
            OwnerLog(self.connection, self.topics.owner, Owner),
            folder=str(self.folder.root),
            place=self._ownership.place,
            ops_topic_id=self.ops.topic_id,
            state_epoch=lambda: self._stored_epoch,
            on_failure=self._end.fail_unless_stopping,
            keys_of=self.settings.keys_of,
        )
        self._stack.callback(self.prefix_ownership.release)
        epochs = () if known is None else known.epochs
        self.prefix_ownership.take(epochs, take_over=self._take_over)
        self._show_owner()

    def _require_ownership(self) -> None:
        self._ownership.require()
        self._prefix.require()

    def _require_tables(self) -> None:
        """Check that no other job may write to the tables: those in a folder of their own may be shared.

        Tables in the folder of the job get their rows also while Kafka is away.
        """
        if self.folder.tables is None:
            self._prefix.check()
        else:
            self._prefix.require()

    @property
    def _prefix(self) -> PrefixOwnership:
        assert self.prefix_ownership is not None
        return self.prefix_ownership

    def _earlier_letters(self, applied: Applied) -> EarlierLetters:
        return EarlierLetters(
            self.topics.dead_letters,
            self.ops.name,
            {number: applied.next_offset.get(number, 0) for number in range(self.ops.partition_count)},
            (
                msgspec.msgpack.decode(entry.value, type=DeadLetter)
                for entry in self.outbox.undelivered(EntryKind.DEAD_LETTER)
            ),
        )

    def _open_producers(self, applied: Applied) -> None:
        """Open the producers of ticks and of answers, and publish what the outbox still holds."""
        with kafka_errors("Kafka does not respond", self.connection.bootstrap_servers):
            self._tick_producer = TickProducer(self.connection, self.topics.ops, self.ops.partition_count)
            self._stack.callback(self._tick_producer.close)
            producer = KafkaProducer(
                **self.connection.for_kafka_python(),
                acks="all",
                enable_idempotence=True,
                linger_ms=0,
                max_request_size=REQUEST_BYTES_MAX,
            )
        dead_letters = KafkaDeadLetterReader(self.connection, self._earlier_letters(applied))
        self.publisher = Publisher(
            self.topics, self.outbox, producer, dead_letters, self._prefix, self._end.fail_unless_stopping
        )
        self._stack.callback(self.publisher.stop)
        self.publisher.start()

    def _wire_apply_ops(self, applied: Applied, spark_checkpoint: Path) -> None:
        settings = self.settings
        self.ticker = Ticker(self._send_tick, self.fail)
        self._source = OpsSource(
            self._spark, source_options(self.connection), self.topics.ops, settings.records_per_micro_batch_max
        )
        signer = Signer.of(settings.handle_ring)
        verifier = OperationVerifier.of(settings.admin_ring, self.topics.ops)
        decoder = Decoder(self.ops.partition_count, signer, verifier)
        self.apply_ops = MicroBatchApplier(
            store=self.store,
            require_ownership=self._require_ownership,
            outbox=self.outbox,
            attempts=Attempts(self.folder.attempts),
            quarantine=self.quarantine,
            applied=applied,
            decider=OpsDecider(
                self.store,
                partial(self.quarantine.decode, decoder=decoder),
                results_partitions=self.results.partition_count,
                signer=signer,
            ),
            source=self._source,
            plans=SparkPlans(spark_checkpoint, self.topics.ops),
            delivered=self._flusher.committed,
            publish=self.publisher.publish,
            observe=self._observe,
            after_micro_batch=self._after_micro_batch,
            trace=self._trace,
        )

    def _start_replica(self) -> None:
        """Start to copy the tables to where others read them. What fails there is told, and keeps the job from nothing.

        First, and so stopped after what writes to the tables.
        """
        url = self.settings.tables_replica
        if url:
            write_checkpoint = partial(write_table_checkpoint, self._spark)
            replica = TablesReplica(self.folder.delta, url, write_checkpoint, self._prefix.require)
            loop = RetryLoop(
                "replica",
                self.settings.flush_interval_s,
                replica.catch_up,
                lambda _: None,
                problem_prefix="the replica of the tables is not up to date",
            )
            self.replica_loop = loop
            self.metrics.bind_gauges({Metric.REPLICA_LAG: lambda: replica.lag_s})
            loop.start()
            self._stack.callback(replica.give_up)  # a place that hangs must not be written to by two threads
            self._stack.callback(loop.stop, REPLICA_STOP_S)

    def _start_audit(self) -> None:
        """Start the watch of the log and the flush of audit rows to Delta."""
        self.flush = DeltaFlush(
            self.outbox,
            self._flusher,
            applied_seq=lambda: self.applied.apply_seq,
            on_lap=self._on_lap,
        )
        self._owner_table = OwnerTable(
            self._spark,
            self.folder.delta,
            PIPELINE,
            self.settings.topic_prefix,
            self._prefix.owner,
            self.applied.state_epoch,
            self._require_tables,
        )
        self.flush_loop = RetryLoop(
            "flush",
            self.settings.flush_interval_s,
            self._flush,
            self.fail,
            problem_prefix="Delta does not take audit rows",
        )
        self.log_watch = LogWatch(
            self.connection,
            self.ops,
            decided=lambda: self.applied.next_offset,
            stall_s=self.settings.stall_s,
            on_failure=self.fail,
        )
        self._stack.callback(self.log_watch.stop)
        self.log_watch.start()  # two threads, of which the second may fail to start
        self.metrics.bind_gauges(
            {
                Metric.OPS_LAG: lambda: self.log_watch.lag,
                Metric.OPS_OVERDUE: lambda: self.log_watch.overdue,
                Metric.OUTBOX_BYTES: lambda: self.outbox.undelivered_bytes,
                Metric.DELTA_LAG: lambda: self.applied.apply_seq - self.flush.delivered_seq,
                Metric.DELTA_LAG_SECONDS: lambda: self.metrics.delta_lag_s(self.flush.delivered_seq),
                Metric.QUARANTINED: lambda: len(self.quarantine),
            }
        )
        queues = list(scan_queues(self.store))
        self._learn_stored_deadlines(queues)
        self._watch_lanes(queues)
        self.flush_loop.start()
        self._stack.callback(self.flush_loop.stop)

    def _flush(self) -> None:
        """Write what Delta does not have yet."""
        self.flush.flush()
        self._owner_table.write()

    def _start_query(self, applied: Applied, spark_checkpoint: Path) -> None:
        query = OpsQuery(
            self._spark,
            self._source,
            admit=self._admit,
            apply=self._apply,
            on_failure=self._end.fail_unless_stopping,
            on_end=self._end.set,
        )
        self._stack.callback(query.stop)
        query.start({p: applied.next_offset.get(p, 0) for p in range(self.ops.partition_count)}, spark_checkpoint)

    def _start_ticker(self) -> None:
        if self.settings.ticks:
            self.ticker.start()
        self._stack.callback(self.ticker.stop)

    def _start_builder(self) -> None:
        if self.settings.message_globs:
            self.builder = BuilderService(
                self.settings,
                self.folder,
                self.connection,
                self._spark,
                self.fail,
                on_lap=self._on_lap,
                require_ownership=self._require_tables,
            ).start()
            self._stack.callback(self.builder.stop)
            builder = self.builder.builder
            self.metrics.bind_gauges({Metric.FORGOTTEN_DEDUP_IDS: lambda: builder.forgotten_ids})

    def _start_upkeep(self) -> None:
        """Start the periodic work that the job could do without: scrub, snapshots and maintenance of the tables."""
        settings = self.settings
        queues = None if self.builder is None else self.builder.store
        stores = [self.store] if queues is None else [self.store, queues]
        self.scrub = Scrub(stores, settings.scrub_interval_s, self.folder)
        self.metrics.bind_gauges({Metric.DAMAGED_FILES: lambda: len(self.scrub.damage)})
        self.scrub.start()
        self._stack.callback(self.scrub.stop)
        snapshots = SnapshotStore(settings.snapshots or str(self.folder.snapshots))
        self.snapshot_loop = SnapshotLoop(
            lambda reads_all: self._take_snapshot(queues, snapshots, reads_all=reads_all),
            snapshots,
            interval_s=settings.snapshot_interval_s,
            retention=settings.snapshot_retention,
            decided=lambda: self.applied.apply_seq,
            last_done=self.folder.last_done,
            on_lap=self._on_lap,
        )
        self.snapshot_loop.start()
        self._stack.callback(self.snapshot_loop.stop)
        self._maintenance = Periodic("maintenance", settings.maintain_interval_s, self._maintain, self.folder.last_done)
        self._maintenance.start()
        self._stack.callback(self._maintenance.stop)

    def _take_snapshot(self, queues: RocksStore | None, snapshots: SnapshotStore, *, reads_all: bool) -> Snapshot:
        try:
            return take_snapshot(self.store, queues, self.folder.scratch, snapshots, reads_all=reads_all)
        except Corrupt as error:
            self.scrub.report(error)
            raise

    def _maintain(self) -> None:
        join_pool(self._spark, "maintenance")
        days = self.settings.audit_retention_days
        counts = Counter[str]()
        with Lap("maintenance", self._on_lap) as lap:
            try:
                for done in maintain(self._spark, self.folder.delta, lambda: self._maintenance.is_stopping, days):
                    found = msgspec.structs.asdict(done)
                    _log.info("maintained", **found)
                    counts.update(tables=1, **{name: count for name, count in found.items() if name != "table"})
            except Corrupt as error:
                self.scrub.report(error)
                raise
            finally:
                lap.facts.update(counts)

    def _admit(self) -> None:
        """Block while the outbox exerts back-pressure; raise when nothing can be published."""
        self.publisher.check()
        if self._is_outbox_full:
            _log.warning("outbox_back_pressure", outbox_bytes=self.outbox.undelivered_bytes)
        while self._is_outbox_full:
            if self._end.is_stopping or self._end.wait(OUTBOX_POLL_S):
                message = "the job was stopped while it waited for room in the outbox"
                raise Unavailable(message)
            self.publisher.check()

    @property
    def _is_outbox_full(self) -> bool:
        return self.outbox.undelivered_bytes > self.settings.outbox_bytes_max

    def _apply(self, micro_batch: MicroBatch) -> None:
        gc.disable()  # a micro-batch creates many objects and no cycles: a collection now would only cost time
        try:
            self.apply_ops(micro_batch)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            gc.enable()

    def _observe(self, decision: Decision, touched: Collection[QueueState]) -> None:
        if self.lane_watch is not None:
            self.lane_watch.observe(decision, touched)

    def _trace(self, report: MicroBatchReport) -> None:
        if self._traces is not None:
            self._traces.micro_batch(report)

    def _show_owner(self) -> None:
        self.metrics.show_owner(OwnerView.of(self.settings.topic_prefix, self._prefix.owner))

    def _after_micro_batch(self, report: MicroBatchReport) -> None:
        behind = report.records >= self.settings.records_per_micro_batch_max
        if self.applied.apply_seq and not self._stored_epoch:
            self._stored_epoch = self.applied.state_epoch
            self._show_owner()
        self.metrics.record(report, self.outbox, self.flush.delivered_seq)
        self.ticker.learn(report.deadlines(), report.newest_ms, behind=behind)
        failpoint("commit")

    def _watch_lanes(self, queues: Collection[StoredQueue]) -> None:
        if self.settings.metrics_port or self.settings.api_port:
            watch = LaneWatch(self.store, self.metrics.lanes, self.settings.metrics_groups_max)
            self._stack.callback(watch.stop)
            watch.start(queues)
            self.lane_watch = watch

    def _learn_stored_deadlines(self, queues: Collection[StoredQueue]) -> None:
        deadlines = {}
        for queue in queues:
            prefix = queue_prefix(queue.topic, queue.queue_id)
            first = self.store.deadlines(prefix, None, NEVER_MS, 1)
            if first:
                deadlines[queue.topic, queue.queue_id] = first[0].deadline_ms
        self.ticker.learn(deadlines, max((queue.record.now_ms for queue in queues), default=0), behind=False)

    def _send_tick(self, queue: QueueName, value: bytes, answered: Callable[[int | None], None]) -> None:
        self.metrics.count_tick()
        self._tick_producer.send(queue, value, answered)
