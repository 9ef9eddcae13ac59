"""build_consume_queue on a cluster: what reads message topics, and the query that builds their queues."""

import contextlib
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import TopicFacts
from pipelines.build_consume_queue.builder_query import BuilderQuery
from pipelines.build_units.accepted_ids import DedupRule
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.committed import last_committed
from pipelines.cluster.queues.log_queue_writer import LogQueueWriter
from pipelines.cluster.queues.queue_log import require_same_queue_log
from pipelines.cluster.queues.queue_processor import UnitSettings
from pipelines.cluster.queues.units_query import start_units_query
from pipelines.job_settings import JobSettings
from pipelines.recovery.ops_log import read_log_bounds
from popstream.kafka_connection import KafkaConnection
from popstream.topics.queue_types import QueueTypesPublisher

__all__ = ["MessageQueues"]


class MessageQueues:
    """Makes the messages of the chosen topics poppable, from `start` to `stop` or a failure, and so again.

    Args:
        spark: The session.
        connection: The Kafka.
        settings: Settings of the job.
        identity: Of the checkpoint.
        internal: The facts of the topics of a job on a cluster, by name.
        checkpoint: Path or URL of the checkpoint of the query that builds.
        tasks: Tasks that read a micro-batch at most.
        on_failure: Called with the error that ended the reader.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: KafkaConnection,
        settings: JobSettings,
        identity: CheckpointIdentity,
        internal: dict[str, TopicFacts],
        *,
        checkpoint: str,
        tasks: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._settings = settings
        self._identity = identity
        self._internal = internal
        self._checkpoint = checkpoint
        self._tasks = tasks
        self._on_failure = on_failure
        self._topics = ClusterTopics.of(settings.topic_prefix)
        self._stack = contextlib.ExitStack()

    def start(self) -> StreamingQuery:
        """Start to read, and return the query that builds, which the caller watches.

        Raises:
            Corrupt: The log of queues was deleted since, and made anew.
            Unavailable: Kafka does not answer.
        """
        self._require_same_log()
        with self._stack:
            prefix = self._settings.topic_prefix
            query = start_units_query(
                self._spark,
                self._connection,
                self._unit_settings(),
                prefix=prefix,
                begins=self._identity.queue_log_from,
                checkpoint=self._checkpoint,
            )
            self._stack.callback(query.stop)
            writer = LogQueueWriter(
                self._connection,
                self._topics,
                self._identity.queue_log_partitions or self._internal[self._topics.queue_log].partition_count,
                self._tasks,
                self._identity.state_epoch,
                signs=self._settings.admin_key is not None,
            )
            self._stack.callback(writer.close)
            # Of each query of the reader only the plan of a micro-batch is used, and the driver alone writes it.
            folder = self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="popstream-", ignore_cleanup_errors=True)
            )
            reader = BuilderQuery(
                spark=self._spark,
                connection=self._connection,
                checkpoints=Path(folder) / "checkpoints",
                settings=self._settings,
                writer=writer,
                publisher=QueueTypesPublisher(self._connection, Topics.of(prefix).queue_types),
                records_per_task_max=None,
                on_failure=self._on_failure,
            )
            reader.start()
            self._stack.callback(reader.stop)
            self._stack = self._stack.pop_all()
        return query

    def stop(self) -> None:
        """Stop both; a micro-batch that runs is abandoned, and read again by the next start."""
        self._stack.close()

    def _require_same_log(self) -> None:
        log = read_log_bounds(self._connection, self._internal[self._topics.queue_log])
        committed = last_committed(self._spark, self._checkpoint, log.topic)
        require_same_queue_log(self._identity.queue_log_from if committed is None else committed.ends, log)

    def _unit_settings(self) -> UnitSettings:
        settings = self._settings
        return UnitSettings(
            run_id=uuid.uuid4().hex,
            state_epoch=self._identity.state_epoch,
            ops_partitions=self._identity.ops_partitions,
            audit_partitions=self._identity.audit_partitions or self._internal[self._topics.audit].partition_count,
            rule=DedupRule(round(settings.dedup_window_s * 1000), settings.dedup_ids_max),
            admin_key=settings.admin_key,
        )
