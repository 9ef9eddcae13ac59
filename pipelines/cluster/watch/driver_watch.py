"""Follows a running job in its driver, for those who ask about it: its queries, the end of its log, and its owner."""

from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker_state import KERNEL_FORM
from checkpoints.prefix_owner import Owner
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.checkpoint_layout import AUDIT, BUILD_UNITS, DECIDE_OPS
from pipelines.cluster.committed import Committed
from pipelines.cluster.kept_query import KeptQuery
from pipelines.cluster.watch.audit_retention import AuditRetention
from pipelines.cluster.watch.query_progress import ProgressWatch, skew_of
from pipelines.control.cluster_report import ClusterReport, ShardReport
from pipelines.control.messages import JobReport, OwnerView
from pipelines.job_settings import JobSettings
from pipelines.loops.periodic import Periodic
from pipelines.printed_commands import completed_commands
from pipelines.process.log_watch import LogWatch
from popstream.kafka_connection import KafkaConnection

__all__ = ["DriverWatch"]

SAMPLE_INTERVAL_S = 2.0


class DriverWatch:
    """What the driver knows of its job, from `start` to `stop`.

    Args:
        spark: The session.
        connection: The Kafka.
        settings: Settings of the job.
        checkpoint: Path or URL of its state.
        tables: Path or URL of its tables.
        ops: The ops topic.
        committed: What the deciding query had committed before it was started.
        owner: Returns the job as the owner of the prefix.
        audit: The query that writes rows.
        retention: Looks whether what it has not written is about to be deleted.
        failure: Returns the error that ended the job, or None.
        on_failure: Called with the error when the job cannot go on with the ops topic.

    Attributes:
        progress: The progress of the queries.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: KafkaConnection,
        settings: JobSettings,
        *,
        checkpoint: str,
        tables: str,
        ops: TopicFacts,
        committed: Committed,
        owner: Callable[[], Owner],
        audit: KeptQuery,
        retention: AuditRetention,
        failure: Callable[[], BaseException | None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._prefix = settings.topic_prefix
        self._ops_partitions = ops.partition_count
        self._checkpoint = checkpoint
        self._tables = tables
        self._owner = owner
        self._audit = audit
        self._retention = retention
        self._failure = failure
        self.progress = ProgressWatch(self.queries, committed.ends, DECIDE_OPS, spark_batch_id=committed.spark_batch_id)
        self._sampling = Periodic("progress", SAMPLE_INTERVAL_S, self.progress.sample)
        self._log = LogWatch(connection, ops, self.progress.decided, settings.stall_s, on_failure)

    def start(self) -> None:
        """Start the threads."""
        self._sampling.start()
        self._retention.start()
        self._log.start()

    def stop(self) -> None:
        """End the threads."""
        self._log.stop()
        self._retention.stop()
        self._sampling.stop()

    def queries(self) -> list[StreamingQuery]:
        """Return the queries of the job that run; the one that reads message topics has no name, and is left out."""
        return [query for query in self._spark.streams.active if query.name in {DECIDE_OPS, AUDIT, BUILD_UNITS}]

    def shards_behind(self) -> set[int]:
        """Return the shards of which the last micro-batch of the deciding query has left records unread.

        All of them while nothing is decided: their ticks would wait as well.
        """
        if self._retention.holds_back:
            return set(range(self._ops_partitions))
        deciding = self.progress.last.get(DECIDE_OPS)
        return set() if deciding is None else {partition for partition, lag in deciding.lags.items() if lag}

    def not_ready_reasons(self) -> list[str]:
        """Return what keeps the job from deciding or delivering. Empty: it is ready."""
        failure = self._failure()
        ended = None if failure is None else f"the job has ended: {failure}"
        problem = self._audit.problem
        no_rows = None if problem is None else f"decided rows wait, and are not written to the tables: {problem}"
        reasons = [reason for reason in (self._log.problem, ended, no_rows, self._retention.problem) if reason]
        return [completed_commands(reason, elsewhere=True) for reason in reasons]

    def report(self) -> JobReport:
        """Return what the job reports about itself. Reads memory only."""
        last, lags = self.progress.last, self._log.lags
        deciding, failure = last.get(DECIDE_OPS), self._failure()
        return JobReport(
            folder=self._checkpoint,
            apply_seq=0 if deciding is None else deciding.spark_batch_id + 1,
            kernel_form=KERNEL_FORM,
            bootstrap_servers=self._connection.bootstrap_servers,
            prefix=self._prefix,
            owner=OwnerView.of(self._prefix, self._owner()),
            failure=None if failure is None else completed_commands(str(failure), elsewhere=True),
            ops_lag=self._log.lag if lags else None,
            ops_overdue=self._log.overdue,
            not_ready_reasons=self.not_ready_reasons(),
            cluster=self._cluster(lags),
        )

    def _cluster(self, lags: dict[int, int]) -> ClusterReport:
        recent = self.progress.recent()
        return ClusterReport(
            master=self._spark.sparkContext.master or "",
            tables=self._tables,
            shards=[
                ShardReport(partition=number, next_offset=offset, lag=lags.get(number), recent=recent.get(number, 0))
                for number, offset in sorted(self.progress.decided().items())
            ],
            skew=skew_of(recent),
            queries=[found.report(name) for name, found in sorted(self.progress.last.items())],
            audit_failures=self._audit.failures,
            audit_overdue=self._retention.overdue,
        )
