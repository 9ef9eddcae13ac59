"""The job on a cluster: its queries and the ticker, in the driver, from `start` to `stop` or a failure."""

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Self

import msgspec
import structlog
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from checkpoints.prefix_owner import Owner
from checkpoints.reconcile import lost_end
from connectors.delta.spark_errors import SPARK_ERRORS, spark_text
from connectors.kafka.cluster_topics import ClusterTopics, ensure_cluster_topics
from connectors.kafka.own_topics import Topics
from connectors.kafka.owner_log import OwnerLog
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.audit.audit_query import AuditQuery, begins_now
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.write_owner import write_owner
from pipelines.cluster.audit.written_tables import require_tables
from pipelines.cluster.checkpoint_identity import CheckpointIdentity, owned_identity
from pipelines.cluster.checkpoint_layout import (
    AUDIT,
    BUILD_UNITS,
    DECIDE_OPS,
    audit_checkpoint,
    decide_checkpoint,
    units_checkpoint,
)
from pipelines.cluster.committed import Committed, last_committed, micro_batches_in
from pipelines.cluster.deadline_ticker import DeadlineTicker, publish_deadlines
from pipelines.cluster.decide.decide_query import start_decide_query
from pipelines.cluster.decide.repeated_starts import noted_micro_batch
from pipelines.cluster.decide.shard import ShardSettings
from pipelines.cluster.decide.shard_attempts import dead_records
from pipelines.cluster.decide.shard_rows import DEADLINES_MAP, deadlines_of
from pipelines.cluster.held_back_query import HeldBackQuery
from pipelines.cluster.kept_query import KeptQuery, RunningQueries
from pipelines.cluster.migration.stored_state import rows_of_checkpoint
from pipelines.cluster.migration.to_cluster import beginning_deadlines, beginning_of
from pipelines.cluster.ownership_guard import OwnershipGuard
from pipelines.cluster.queues.message_queues import MessageQueues
from pipelines.cluster.state_partitions import require_rescaled, state_partitions
from pipelines.cluster.warm_up import warm_up
from pipelines.cluster.watch.audit_retention import AuditRetention
from pipelines.cluster.watch.cluster_answers import ClusterAnswers
from pipelines.cluster.watch.cluster_metrics import ClusterMetrics
from pipelines.cluster.watch.driver_watch import DriverWatch
from pipelines.http_api.http_server import HttpServer
from pipelines.http_api.listeners import listeners_of
from pipelines.job_settings import JobSettings
from pipelines.process.job_end import JobEnd
from pipelines.process.job_topics import ensure_job_topics
from pipelines.process.prefix_ownership import EarlyLook, PrefixOwnership
from pipelines.process.preflight import require_safe
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt
from popstream.wire.handle import Signer
from popstream.wire.signing import OperationVerifier

__all__ = ["CORES_COUNTED_MAX", "ClusterJob", "ClusterSettings", "look_early"]

_log = structlog.get_logger(__name__)

CORES_COUNTED_MAX = 4
"""A micro-batch has a share of records for each core, as it costs the driver a quarter of a second whatever it has; but
all of them may be of one shard, whose worker has them in memory as packed."""

FIRST_MICRO_BATCH_S = 30.0
"""How long rows wait for it at most."""
OWNER_ROW_S = 20.0
"""How long a stop waits for the row of the owner."""
POLL_S = 0.1


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job on a cluster needs besides `JobSettings`.

    Attributes:
        checkpoint: Path or URL of the state, which driver and executors reach.
        tables: Path or URL of the Delta tables.
        tasks: Tasks of a micro-batch: as many as executors have cores.
        audit_partitions: Partitions of a new audit topic.
        cache_bytes: Bytes of decoded state, as stored, that one executor keeps for all its shards.
    """

    checkpoint: str
    tables: str
    tasks: int = 2
    audit_partitions: int = 4
    cache_bytes: int = 64 * 1024 * 1024


def look_early(connection: KafkaConnection, topic_prefix: str) -> EarlyLook:
    """Begin to look at the owner of a prefix."""
    return EarlyLook(OwnerLog(connection, Topics.of(topic_prefix).owner, Owner))


class ClusterJob:
    """Decides one ops topic on the cluster of a session.

    Args:
        settings: The settings of every job.
        cluster: Those of a job on a cluster.
        connection: The Kafka.
        spark: A session made by `cluster_session`.
        take_over: Take the prefix from any owner.
        early_look: At the owner of the prefix, from before the session was made, which takes as long as its silence.

    Attributes:
        answers: What answers about the job, once it has started.
    """

    answers: ClusterAnswers

    def __init__(
        self,
        settings: JobSettings,
        cluster: ClusterSettings,
        connection: KafkaConnection,
        spark: SparkSession,
        *,
        take_over: bool = False,
        early_look: EarlyLook | None = None,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.connection = connection
        self._spark = spark
        self._take_over = take_over
        self._early_look = early_look
        self._state_epoch = ""
        self._queries = RunningQueries()
        self._end = JobEnd()
        self._stack = contextlib.ExitStack()
        self.topics = Topics.of(settings.topic_prefix)
        self.internal = ClusterTopics.of(settings.topic_prefix)

    def start(self) -> Self:
        """Start the queries and the ticker.

        Raises:
            Fenced: Another job runs with this prefix.
            Invalid: A topic, a table or the checkpoint does not fit.
            Corrupt: The log is not the one that the state was decided from.
            Unavailable: Kafka or the place of the checkpoint cannot be reached.
        """
        require_safe(self.settings)
        with self._stack:
            self._stack.callback(self._end.set)
            warm_up(self._spark, self.cluster.tasks)
            facts = ensure_job_topics(self.connection, self.settings)
            internal = ensure_cluster_topics(self.connection, self.internal, self.cluster.audit_partitions)
            ops, results = facts[self.topics.ops], facts[self.topics.results]
            ownership = self._ownership(ops)
            identity = self._owned_identity(ops, ownership)
            tables = TableLocations(self.cluster.tables)
            tables.ensure(self._spark)
            committed = self._committed(identity, tables)
            committed.require_log(read_log_bounds(self.connection, ops))
            self._require_written(identity, tables, internal)
            self._publish_deadlines(identity, committed, internal)
            # Made before what sends it rows, and so stopped after it: what has been sent then is written.
            audit = self._audit(identity, tables)
            retention = self._audit_retention(identity, internal[self.internal.audit])
            retention.look()
            deciding = self._start_deciding(identity, results, internal, retention)
            self._start_message_queues(identity, internal, retention)
            watch = self._watch_of_driver(ops, committed, ownership, audit, retention)
            self._start_ticker(ops.partition_count, watch)
            self._serve(watch)
            self._start_rows(audit, deciding, tables, ownership.owner, identity.state_epoch)
            _log.info("cluster_job_started", checkpoint=self.cluster.checkpoint, state_epoch=identity.state_epoch)
            self._stack = self._stack.pop_all()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def stop(self) -> None:
        """Stop the ticker and the queries, the one that writes rows last: it writes what has been decided.

        What a micro-batch has begun and not committed, the next start repeats.
        """
        self._end.is_stopping = True
        try:
            self._stack.close()
        except SPARK_ERRORS as error:  # the queries have ended with their JVM
            _log.warning("queries_not_stopped", error=spark_text(error))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended. False: it still runs after `timeout_s`."""
        return self._end.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the job, if any."""
        return self._end.failure

    def _owned_identity(self, ops: TopicFacts, ownership: PrefixOwnership) -> CheckpointIdentity:
        """Return the identity of the checkpoint, once the prefix is this job's; from then on its loss ends the job."""
        prefix = self.settings.topic_prefix
        identity = owned_identity(
            self._spark,
            self.cluster.checkpoint,
            prefix,
            ops,
            take=functools.partial(self._take_prefix, ownership),
            begins=lambda: begins_now(self.connection, prefix),
        )
        # Once it is stored: a checkpoint that cannot be written would leave the prefix to a state that nobody has.
        self._state_epoch = identity.state_epoch
        guard = OwnershipGuard(lambda: ownership.valid_for_s, self._lose, prefix)
        guard.start()
        self._stack.callback(guard.stop)
        return identity

    def _committed(self, identity: CheckpointIdentity, tables: TableLocations) -> Committed:
        """Return how far the log is decided; a job that begins must find no rows after its first record."""
        found = last_committed(self._spark, decide_checkpoint(self.cluster.checkpoint), self.topics.ops)
        if found is not None:
            return found
        tables.require_no_rows_from(self._spark, identity.ops_topic_id, identity.first_offset, identity.state_epoch)
        return Committed(-1, identity.first_offset)

    def _require_written(
        self, identity: CheckpointIdentity, tables: TableLocations, internal: dict[str, TopicFacts]
    ) -> None:
        """Refuse tables, and an audit topic, that are not those which the checkpoint has written and read.

        Raises:
            Corrupt: Rows are missing, or would be left out.
        """
        checkpoint, topic = audit_checkpoint(self.cluster.checkpoint), self.internal.audit
        require_tables(self._spark, tables, identity.state_epoch, checkpoint)
        taken = last_committed(self._spark, checkpoint, topic)
        if taken is not None and (lost := lost_end(taken.ends, read_log_bounds(self.connection, internal[topic]))):
            message = (
                f"{topic} ends below what the tables have of it: it was made anew, and what it had for them is lost."
                " Begin a new checkpoint with tables of its own"
            )
            raise Corrupt(message, subject=topic, details=lost)

    def _publish_deadlines(
        self, identity: CheckpointIdentity, committed: Committed, internal: Mapping[str, TopicFacts]
    ) -> None:
        """Tell the ticker of the deadlines of a state whose shards have not done so yet, or whose topic was deleted.

        A shard does so only when it decides a record, and one without work would never get its tick.
        """
        if committed.spark_batch_id < 0:
            if not identity.first_offset:
                return
            deadlines = beginning_deadlines(self._spark, self.cluster.checkpoint)
        elif any(read_log_bounds(self.connection, internal[self.internal.deadlines]).end_offset.values()):
            return
        else:
            deciding = decide_checkpoint(self.cluster.checkpoint)
            found = rows_of_checkpoint(self._spark, deciding, identity.ops_partitions, [DEADLINES_MAP])
            deadlines = deadlines_of(found)
        publish_deadlines(self.connection, self.internal, deadlines, int(time.time() * 1000))

    def _start_deciding(
        self,
        identity: CheckpointIdentity,
        results: TopicFacts,
        internal: Mapping[str, TopicFacts],
        retention: AuditRetention,
    ) -> HeldBackQuery:
        deciding = decide_checkpoint(self.cluster.checkpoint)
        partitions = self._state_partitions(deciding)
        cores = min(self.cluster.tasks, CORES_COUNTED_MAX)

        def start() -> StreamingQuery:
            committed = max(micro_batches_in(self._spark, f"{deciding}/commits"), default=-1)
            noted = noted_micro_batch(self._spark, deciding, committed)
            settings = self._shard_settings(identity, results.partition_count, partitions, noted)
            dead = dead_records(self.connection, self.internal.attempts, identity.state_epoch)
            return start_decide_query(
                self._spark,
                self.connection,
                settings._replace(dead=dead),
                prefix=self.settings.topic_prefix,
                audit_partitions=identity.audit_partitions or internal[self.internal.audit].partition_count,
                state_epoch=identity.state_epoch,
                records_per_micro_batch_max=self.settings.records_per_micro_batch_max * cores,
                tasks=self.cluster.tasks,
                checkpoint=deciding,
                beginning=beginning_of(self._spark, self.cluster.checkpoint, identity),
            )

        return self._keep(DECIDE_OPS, start, retention)

    def _audit(self, identity: CheckpointIdentity, tables: TableLocations) -> KeptQuery:
        """Return the query that writes rows; while Delta or its place is away, they wait in the audit topic."""
        query = AuditQuery(
            self._spark,
            self.connection,
            prefix=self.settings.topic_prefix,
            tables=tables,
            state_epoch=identity.state_epoch,
            ops_topic_id=identity.ops_topic_id,
            begins=identity.audit_from,
            checkpoint=audit_checkpoint(self.cluster.checkpoint),
            interval_s=self.settings.flush_interval_s,
            rejected_heads=self.settings.rejected_heads,
        )
        audit = KeptQuery(query.start, query.start_drain, AUDIT, self._queries)
        self._stack.callback(lambda: audit.stop(drains=self._end.is_stopping and self.failure is None))
        return audit

    def _audit_retention(self, identity: CheckpointIdentity, audit: TopicFacts) -> AuditRetention:
        def written() -> Mapping[int, int]:
            found = last_committed(self._spark, audit_checkpoint(self.cluster.checkpoint), audit.name)
            return identity.audit_from if found is None else found.ends

        return AuditRetention(self.connection, audit, written)

    def _watch_of_driver(
        self,
        ops: TopicFacts,
        committed: Committed,
        ownership: PrefixOwnership,
        audit: KeptQuery,
        retention: AuditRetention,
    ) -> DriverWatch:
        return DriverWatch(
            self._spark,
            self.connection,
            self.settings,
            checkpoint=self.cluster.checkpoint,
            tables=self.cluster.tables,
            ops=ops,
            committed=committed,
            owner=lambda: ownership.owner,
            audit=audit,
            retention=retention,
            failure=lambda: self.failure,
            on_failure=self._end.fail_unless_stopping,
        )

    def _lose(self, error: BaseException) -> None:
        """End because the job may decide no more: at once, and not when a micro-batch has ended."""
        self._end.fail_unless_stopping(error)
        self._queries.stop_at_once()

    def _state_partitions(self, deciding: str) -> int:
        """Return into how many partitions the state is divided; a new one as the session says.

        Raises:
            Invalid: A rescale was interrupted.
        """
        found = state_partitions(self._spark, deciding)
        if found is None:
            return int(self._spark.conf.get("spark.sql.shuffle.partitions") or self.cluster.tasks)
        require_rescaled(found, self.cluster.checkpoint)
        if found.partitions < self.cluster.tasks:
            how = f"stop the job, and run `popstream rescale --partitions {self.cluster.tasks}`"
            _log.warning("cores_without_state", partitions=found.partitions, cores=self.cluster.tasks, to_use_all=how)
        return found.partitions

    def _shard_settings(
        self, identity: CheckpointIdentity, results_partitions: int, partitions: int, noted: int | None
    ) -> ShardSettings:
        shards_per_task = -(-identity.ops_partitions // min(self.cluster.tasks, partitions))
        return ShardSettings(
            run_id=uuid.uuid4().hex,
            ops_partitions=identity.ops_partitions,
            results_partitions=results_partitions,
            signer=Signer.of(self.settings.handle_ring),
            verifier=OperationVerifier.of(self.settings.admin_ring, self.topics.ops),
            seed=identity.seed,
            cache_bytes=self.cluster.cache_bytes // shards_per_task,
            shards_per_task=shards_per_task,
            noted_micro_batch=noted,
        )

    def _ownership(self, ops: TopicFacts) -> PrefixOwnership:
        return PrefixOwnership(
            self.settings.topic_prefix,
            OwnerLog(self.connection, self.topics.owner, Owner),
            folder=self.cluster.checkpoint,
            # Of this driver alone: a second one on the same checkpoint waits whether this one is silent.
            place=f"{self.cluster.checkpoint} {uuid.uuid4().hex}",
            ops_topic_id=ops.topic_id,
            state_epoch=lambda: self._state_epoch,
            on_failure=self._lose,
            keys_of=self.settings.keys_of,
            early_look=self._early_look,
        )

    def _start_rows(
        self, audit: KeptQuery, deciding: HeldBackQuery, tables: TableLocations, owner: Owner, state_epoch: str
    ) -> None:
        """Start to write rows, the owner's first, once the first micro-batch is decided: senders wait for that."""

        def start() -> None:
            deadline_s = time.monotonic() + FIRST_MICRO_BATCH_S
            try:
                while deciding.is_starting and not self._end.is_stopping and time.monotonic() < deadline_s:
                    if self._end.wait(POLL_S):
                        break
                if self.failure is None:
                    write_owner(self._spark, tables, self.settings.topic_prefix, owner, state_epoch)
                    if not self._end.is_stopping:
                        audit.start()
            except Exception as error:  # noqa: BLE001 - without rows the job would decide until their topic forgets
                self._end.fail_unless_stopping(error)

        starting = threading.Thread(target=start, name="start-rows", daemon=True)
        starting.start()
        self._stack.callback(starting.join, OWNER_ROW_S)

    def _take_prefix(self, ownership: PrefixOwnership, identity: CheckpointIdentity) -> None:
        self._stack.callback(ownership.release)
        ownership.take(identity.epochs, take_over=self._take_over)

    def _start_message_queues(
        self, identity: CheckpointIdentity, internal: dict[str, TopicFacts], retention: AuditRetention
    ) -> None:
        if not self.settings.message_globs:
            return
        queues = MessageQueues(
            self._spark,
            self.connection,
            self.settings,
            identity,
            internal,
            checkpoint=units_checkpoint(self.cluster.checkpoint),
            tasks=self.cluster.tasks,
            on_failure=self._end.fail_unless_stopping,
        )
        self._keep(BUILD_UNITS, queues.start, retention, queues.stop)

    def _start_ticker(self, ops_partitions: int, watch: DriverWatch) -> None:
        if self.settings.ticks:
            ticker = DeadlineTicker(
                self.connection,
                self.internal.deadlines,
                self.topics.ops,
                ops_partitions,
                watch.shards_behind,
                self._end.fail_unless_stopping,
            )
            ticker.start()
            self._stack.callback(ticker.stop)

    def _serve(self, watch: DriverWatch) -> None:
        watch.start()
        self._stack.callback(watch.stop)
        self.answers = ClusterAnswers(self._spark, self.cluster.checkpoint, self.connection, watch)
        registry = CollectorRegistry()
        registry.register(ClusterMetrics(watch.queries, watch.report))
        if listeners := listeners_of(self.settings, self.answers, registry, watch.not_ready_reasons):
            self._stack.enter_context(HttpServer(listeners))

    def _keep(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        retention: AuditRetention,
        after_stop: Callable[[], None] = lambda: None,
    ) -> HeldBackQuery:
        """Start a query that the job needs, and that waits while what it sends could be lost before it is written."""
        query = HeldBackQuery(name, start, lambda: retention.holds_back, self._queries, self._end_with, after_stop)
        query.start()
        self._stack.callback(query.stop)
        return query

    def _end_with(self, error: BaseException | None) -> None:
        if error is not None:
            self._end.fail_unless_stopping(error)
        self._end.set()
