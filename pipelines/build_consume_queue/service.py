"""build_consume_queue as a service of the job: builder, query, dispatch and flush, from start to stop."""

import contextlib
import uuid
from collections.abc import Callable
from functools import partial
from typing import Self

from pyspark.sql import SparkSession

from broker_state.consume_queue import ConsumeQueue
from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.layout import JobFolder
from connectors.delta.restore_queries import message_base_in_units
from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_query import BuilderQuery
from pipelines.build_consume_queue.dispatch_sender import DispatchSender
from pipelines.build_consume_queue.queue_view import BuilderStatus, ConsumeQueueView, QueueRequest, views_of
from pipelines.build_consume_queue.stored_queue_writer import StoredQueueWriter
from pipelines.build_consume_queue.unit_flush import UnitFlush
from pipelines.build_consume_queue.units_in_delta import units_in_delta
from pipelines.build_units.queue_change import declare_of
from pipelines.decide_ops.entry import EntryKind
from pipelines.job_settings import JobSettings
from pipelines.laps import OnLap, ignore_lap
from popstream.exchange.transport import Transport
from popstream.kafka_connection import KafkaConnection
from popstream.settings import ClientSettings
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.command import Declare
from popstream.wire.queue_name import QueueName

__all__ = ["BuilderService"]


class BuilderService:
    """build_consume_queue, from `start` to `stop` or a failure.

    Args:
        settings: Settings of the job.
        folder: Folder of the job.
        connection: The Kafka with the ops topic and the message topics.
        spark: The session.
        on_failure: Called with the error that ended it.
        on_lap: Is told of each flush of units.
        require_ownership: Raises if another job may write to the tables now. Called before each commit.
    """

    store: RocksStore
    outbox: Outbox
    builder: Builder
    transport: Transport
    sender: DispatchSender
    unit_flush: UnitFlush
    query: BuilderQuery

    def __init__(
        self,
        settings: JobSettings,
        folder: JobFolder,
        connection: KafkaConnection,
        spark: SparkSession,
        on_failure: Callable[[BaseException], None],
        *,
        on_lap: OnLap = ignore_lap,
        require_ownership: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_lap = on_lap
        self._require_ownership = require_ownership
        self._settings = settings
        self._folder = folder
        self._connection = connection
        self._spark = spark
        self._on_failure = on_failure
        self._stack = contextlib.ExitStack()

    def start(self) -> Self:
        """Start everything; what was opened is closed again when a later step fails.

        Raises:
            Invalid: The store cannot be opened, or the topics of the job do not exist.
            Corrupt: The store is older than the table.
            Unavailable: Kafka does not answer.
        """
        with self._stack:
            self._open_store()
            self._start_sender()
            self._start_flush()
            self._start_query()
            self._stack = self._stack.pop_all()
        return self

    def status(self) -> BuilderStatus:
        """Return the progress of the builder."""
        queues = dict(self.builder.queues)
        ends = {
            (name, queue_id): end for name, topic in self.query.topics.items() for queue_id, end in topic.ends.items()
        }
        return BuilderStatus(
            queues=len(ends),
            behind=sum(max(0, end - queues[queue].end_offset) for queue, end in ends.items() if queue in queues),
            open_dispatches=self.sender.open_count,
            units=self.query.units,
            delta_behind=max(0, self.builder.built.build_seq - self.unit_flush.delivered_seq),
        )

    def views(self, state: RocksStore, request: QueueRequest) -> list[ConsumeQueueView]:
        """Return the queues of a topic, with the ends of their logs.

        Raises:
            Invalid: The builder has no such queue.
        """
        return views_of(self.store, state, request, log_end=self.log_end, problem=self.sender.refused.get)

    def log_end(self, queue: QueueName) -> int | None:
        """Return the end of a queue's log when Kafka was last asked; None: it is not known."""
        topic = self.query.topics.get(queue[0])
        return None if topic is None else topic.ends.get(queue[1])

    def abandon(self) -> None:
        """Send nothing more, nor what is in flight: another job owns the prefix now."""
        self.transport.close(0)

    def stop(self) -> None:
        """Stop the query, flush, and close the store. Does nothing unless it was started."""
        self._stack.close()

    def _open_store(self) -> None:
        """Open the store, and check that it is not older than the table."""
        self.store = self._stack.enter_context(RocksStore(self._folder.queues, BUILDER_FAMILIES))
        self.outbox = Outbox(self.store)
        counted = partial(message_base_in_units, self._spark, self._folder.delta)
        self.builder = Builder(
            self.store,
            self.outbox,
            uuid.uuid4().hex,
            counted,
            dedup_window_ms=round(self._settings.dedup_window_s * 1000),
            dedup_ids_max=self._settings.dedup_ids_max,
        )
        if self.builder.is_new:  # perhaps because the old store was lost: the table may have units
            in_delta = units_in_delta(self._spark, self._folder.delta, self._connection)
            self.builder.begin_epoch(self.builder.built.state_epoch, in_delta)
        self.unit_flush = UnitFlush(
            self._spark,
            self._folder.delta,
            self.builder,
            self.outbox,
            interval_s=self._settings.flush_interval_s,
            on_failure=self._on_failure,
            on_lap=self._on_lap,
            require_ownership=self._require_ownership,
        )

    def _start_sender(self) -> None:
        """Connect to the job, and send what an earlier process left in the outbox."""
        client = ClientSettings(
            **self._connection.client_options,
            client_id="popstream-builder",
            prefix=self._settings.topic_prefix,
            admin_key=self._settings.admin_key,
        )
        self.transport = self._stack.enter_context(Transport(client))
        self.sender = DispatchSender(self.transport, self.outbox, self._declare_of)
        self._stack.callback(self.sender.stop)
        self.sender.start()
        self.sender.send(self.outbox.undelivered(EntryKind.DISPATCH))

    def _start_flush(self) -> None:
        self.unit_flush.loop.start()
        self._stack.callback(self.unit_flush.loop.stop)

    def _start_query(self) -> None:
        self.query = BuilderQuery(
            spark=self._spark,
            connection=self._connection,
            checkpoints=self._folder.builder_spark,
            settings=self._settings,
            writer=StoredQueueWriter(self.builder, self.sender, self.unit_flush),
            publisher=QueueTypesPublisher(self._connection, Topics.of(self._settings.topic_prefix).queue_types),
            records_per_task_max=self._settings.build_records_per_task_max,
            on_failure=self._on_failure,
        )
        self.query.start()
        self._stack.callback(self.query.stop)

    def _declare_of(self, queue: QueueName) -> Declare | None:
        record: ConsumeQueue | None = self.builder.queues.get(queue)
        return None if record is None else declare_of(queue, record)
