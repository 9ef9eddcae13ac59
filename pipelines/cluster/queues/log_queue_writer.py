"""Writes what is read of message topics to the log of queues: the `QueueWriter` of a job on a cluster, in its driver.

The driver decides what is read, and never sees a unit: tasks read rows, pack them, and write them to the log. How far
each queue is built it learns at the start from `<prefix>.cluster_queues`. It may be less than what is in the log by
then: what is read twice is scanned twice, and changes nothing.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import structlog
from kafka import KafkaProducer
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from broker_state.consume_queue import ConsumeQueue
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.kafka_errors import kafka_errors
from connectors.kafka.spark_source import sink_options
from pipelines.build_units.queue_change import LogFacts, updated
from pipelines.cluster.keyed_log import KeyedLog
from pipelines.cluster.queues.queue_log import Began, LogRecord, Scanned, Truncated, encode_log_record
from pipelines.cluster.queues.queue_shard import BuiltQueue, QueueMeta
from pipelines.cluster.queues.scan_records import SCANS_SCHEMA, ScanSpan, scan_packer
from popstream.exchange.partitioner import ops_key, partition_of, queue_of_ops_key
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Invalid
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName
from popstream.wire.signing import SIGNED_AFTER_MS_MAX, SIGNED_BEFORE_MS_MAX

__all__ = ["LogQueueWriter"]

_log = structlog.get_logger(__name__)

_TIMEOUT_S = 60.0


class ReadScans(NamedTuple):
    """What tasks have packed: by queue the offset after its last record, and the number of records of all."""

    ends: dict[QueueName, int]
    records: int


class LogQueueWriter:
    """The only writer of the log of queues.

    Args:
        connection: The Kafka.
        internal: The topics of a job on a cluster.
        partitions: Partitions of the log of queues.
        tasks: Tasks that read a micro-batch at most.
        state_epoch: Identity of the state that has the queues.
        signs: Operations on the queues are signed, by the clock of this machine.

    Raises:
        Unavailable: Kafka does not answer; also each method.
        Invalid: Methods that write: the clock differs from the broker's, so that signatures would be refused.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        internal: ClusterTopics,
        partitions: int,
        tasks: int,
        state_epoch: str,
        *,
        signs: bool = False,
    ) -> None:
        self.lock = threading.RLock()
        self.queues: dict[QueueName, ConsumeQueue] = {}
        """By their ends, what is written to the log; counts are unknown."""
        self._connection = connection
        self._log_topic = internal.queue_log
        self._partitions = partitions
        self._tasks = tasks
        self._state_epoch = state_epoch
        self._signs = signs
        self._packed: DataFrame | None = None
        with contextlib.ExitStack() as clients:
            with kafka_errors(f"{self._log_topic} cannot be written", self._log_topic):
                self._producer = KafkaProducer(**connection.for_kafka_python(), acks="all", enable_idempotence=True)
            clients.callback(close_producer, self._producer, _TIMEOUT_S)
            self._built = clients.enter_context(KeyedLog(connection, internal.queues))
            for queue, meta in self._news():
                if meta.record is not None:
                    self.queues[queue] = meta.record
            self._clients = clients.pop_all()

    def close(self) -> None:
        """Disconnect."""
        self._clients.close()

    def update_topics(self, topics: Mapping[str, MessageTopic], queue_types: Mapping[str, QueueType]) -> bool:
        """See `QueueWriter.update_topics`."""
        with self.lock:
            is_behind = self._go_back()
            found: dict[QueueName, ConsumeQueue] = {}
            news: list[tuple[QueueName, LogRecord]] = []
            for topic in topics.values():
                queue_type = queue_types.get(topic.name, "simple")
                for queue_id, start in sorted(topic.starts.items()):
                    queue = (topic.name, queue_id)
                    facts = LogFacts(topic.topic_id, queue_type, start)
                    change = updated(queue, self.queues.get(queue), lambda _: None, facts)
                    if change is not None:
                        found[queue] = change.record
                        news.append((queue, Began(topic.topic_id, queue_type, start)))
            self._write(news)
            self.queues.update(found)
            return is_behind

    def wait_for_room(self, timeout_s: float) -> bool:  # noqa: ARG002 - a port
        """Return True: Kafka has room, and the queries behind it have limits of their own."""
        return True

    def read(self, frame: DataFrame, ends: Mapping[QueueName, int], batch_topics: frozenset[str]) -> ReadScans:  # noqa: ARG002 - a port
        """See `QueueWriter.read`: executors keep the packed rows until they are written."""
        self._forget()
        spans = self._spans(ends)
        packed = frame.coalesce(self._tasks).mapInArrow(
            scan_packer(spans, self._log_topic, self._partitions), SCANS_SCHEMA
        )
        self._packed = packed.persist(StorageLevel.MEMORY_AND_DISK)
        rows = packed.groupBy("key").agg(f.max("end_offset"), f.sum("records")).collect()
        return ReadScans({queue_of_ops_key(bytes(key)): end for key, end, _ in rows}, sum(row[2] for row in rows))

    def write(self, read: ReadScans, ends: Mapping[QueueName, int]) -> int:
        """See `QueueWriter.write`."""
        with self.lock:
            spans = self._spans(ends)
            assert self._packed is not None, "it was read"
            if read.records:
                rows = self._packed.drop("end_offset", "records")
                rows.write.format("kafka").options(**sink_options(self._connection)).save()
            # After the last record of a queue there may be offsets without one.
            self._write(
                (queue, Scanned(span.topic_id, end, span.end_offset))
                for queue, span in spans.items()
                if (end := read.ends.get(queue, span.first_offset)) < span.end_offset
            )
            for queue, span in spans.items():
                self.queues[queue] = msgspec.structs.replace(self.queues[queue], end_offset=span.end_offset)
            self._forget()
        return read.records

    def truncate(self, queue: QueueName, end_offset: int, *, is_same_log: bool = True) -> int:
        """See `QueueWriter.truncate`.

        Raises:
            Invalid: There is no such queue, or it is to be built again from the same log.
        """
        if is_same_log:
            message = "a job on a cluster does not build a queue again: its state is that of its checkpoint"
            raise Invalid(message, subject=queue[0])
        with self.lock:
            known = self.queues.get(queue)
            if known is None:
                message = f"there is no queue {queue[0]}/{queue[1]}"
                raise Invalid(message, subject=f"{queue[0]}/{queue[1]}")
            end = min(known.end_offset, max(end_offset, known.start_offset))
            self._write([(queue, Truncated(known.topic_id, end))])
            self.queues[queue] = msgspec.structs.replace(known, end_offset=end)
            return end

    def _spans(self, ends: Mapping[QueueName, int]) -> dict[QueueName, ScanSpan]:
        return {
            queue: ScanSpan(self.queues[queue].topic_id, self.queues[queue].end_offset, end)
            for queue, end in ends.items()
            if end > self.queues[queue].end_offset
        }

    def _go_back(self) -> bool:
        """Move the ends of queues back whose log has lost records; return whether there are any."""
        is_behind = False
        for queue, meta in self._news():
            known, built = self.queues.get(queue), meta.record
            if not meta.is_behind or known is None:
                continue
            if built is None:
                _log.error("queue_log_lost", topic=queue[0], queue_id=queue[1], again_from=known.start_offset)
                del self.queues[queue]  # so it begins anew
                is_behind = True
                continue
            if built.topic_id != known.topic_id:
                continue
            if built.end_offset < known.end_offset:
                _log.error("queue_log_lost", topic=queue[0], queue_id=queue[1], again_from=built.end_offset)
                self.queues[queue] = msgspec.structs.replace(known, end_offset=built.end_offset)
                is_behind = True
        return is_behind

    def _news(self) -> Iterable[tuple[QueueName, QueueMeta]]:
        for key, value in self._built.to_end():
            built = BuiltQueue.decode(value)
            if built is not None and built.state_epoch == self._state_epoch:
                yield queue_of_ops_key(key), built.meta

    def _write(self, records: Iterable[tuple[QueueName, LogRecord]]) -> None:
        """Write records, and wait until Kafka has them."""
        began_ms = _now_ms()
        with kafka_errors(f"{self._log_topic} cannot be written", self._log_topic):
            sent = [
                self._producer.send(
                    self._log_topic,
                    key=(key := ops_key(*queue)),
                    value=encode_log_record(record),
                    partition=partition_of(key, self._partitions),
                )
                for queue, record in records
            ]
            for one in sent:
                written_ms = one.get(_TIMEOUT_S).timestamp
                if self._signs:
                    _require_same_clock(written_ms, began_ms, _now_ms())

    def _forget(self) -> None:
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.unpersist()


def _now_ms() -> int:
    return int(time.time() * 1000)


def _require_same_clock(written_ms: int, began_ms: int, ended_ms: int) -> None:
    """Check the append time of a record against the time in which it was written, by the clock of this machine."""
    ahead_ms, behind_ms = began_ms - written_ms, written_ms - ended_ms
    if ahead_ms > SIGNED_AFTER_MS_MAX // 2 or behind_ms > SIGNED_BEFORE_MS_MAX // 2:
        skew = f"{ahead_ms // 1000} s ahead of" if ahead_ms > 0 else f"{behind_ms // 1000} s behind"
        message = (
            f"the clock of this machine is {skew} that of Kafka's broker, and dispatches that are signed by it would be"
            " refused: set both by NTP, and start again"
        )
        raise Invalid(message, subject="clock")
