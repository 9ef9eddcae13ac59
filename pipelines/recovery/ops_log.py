"""Topics read without Spark: the first and last offsets of the ops topic, and the records of a partition."""

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError

from broker_state.audit import REJECTED_HEAD_BYTES
from checkpoints.reconcile import LogFound
from connectors.kafka.kafka_errors import kafka_errors
from connectors.kafka.topic_admin import TopicFacts
from pipelines.decide_ops.decode import KafkaRecord
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Unavailable
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["LostRecords", "OpsPartitionReader", "offsets_at", "ops_record", "read_log_bounds"]

_FETCH_BYTES = 4 * 1024 * 1024
"""A longer record comes alone (KIP-74)."""

_POLL_MS = 1000
_POLL_RECORDS = 10_000
_EMPTY_POLLS_MAX = 30


def read_log_bounds(connection: KafkaConnection, topic: TopicFacts) -> LogFound:
    """Return the first and last offsets of each partition; aborted records at the end count.

    Raises:
        Unavailable: Kafka does not answer.
    """
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partition_count)]
    with _offsets_reader(connection, topic.name) as consumer:
        first = consumer.beginning_offsets(partitions)
        end = consumer.end_offsets(partitions)
    return LogFound(
        topic=topic.name,
        topic_id=topic.topic_id,
        first_offset={at.partition: offset for at, offset in first.items()},
        end_offset={at.partition: offset for at, offset in end.items()},
    )


def offsets_at(connection: KafkaConnection, log: LogFound, at_ms: int) -> dict[int, int]:
    """Return, by partition, the offset of the first record of a time or later; the end where there is none.

    Raises:
        Unavailable: Kafka does not answer.
    """
    with _offsets_reader(connection, log.topic) as consumer:
        found = consumer.offsets_for_times({TopicPartition(log.topic, number): at_ms for number in log.end_offset})
    known = {at.partition: offset.offset for at, offset in found.items() if offset is not None and offset.offset >= 0}
    return {partition: known.get(partition, end) for partition, end in log.end_offset.items()}


@contextlib.contextmanager
def _offsets_reader(connection: KafkaConnection, topic: str) -> Iterator[Any]:
    with (
        kafka_errors(f"Kafka does not return the offsets of {topic}", topic),
        contextlib.closing(KafkaConsumer(**connection.for_kafka_python(), enable_auto_commit=False)) as consumer,
    ):
        yield consumer


class LostRecords(Corrupt):
    """Records that are to be read have left the log."""


class OpsPartitionReader:
    """Reads the committed records of one partition, stretch by stretch. Has a connection of its own.

    Args:
        connection: The Kafka.
        topic: A topic.
        partition: A partition of it.
    """

    def __init__(self, connection: KafkaConnection, topic: str, partition: int) -> None:
        self._connection = connection
        self._partition = TopicPartition(topic, partition)
        self._consumer: Any = None
        self._at = -1
        self._fetched: deque[Any] = deque()

    def between(self, first_offset: int, end_offset: int) -> Iterator[Any]:
        """Yield the records of [first, end), in order. A stretch that follows the last one is read on.

        Raises:
            Unavailable: Kafka does not answer.
            LostRecords: The log begins after `first_offset`.
            Corrupt: Kafka returns damaged records.
        """
        if first_offset >= end_offset:
            return
        try:
            yield from self._between(first_offset, end_offset)
        except OffsetOutOfRangeError as error:
            message = (
                f"{self._partition.topic} no longer has the records from {self._at} on of partition"
                f" {self._partition.partition}: retention has removed them, or the topic was made again"
            )
            raise LostRecords(message, subject=self._partition.topic) from error
        except CorruptRecordError as error:
            message = f"Kafka returns damaged records of {self._partition.topic}: {error}"
            raise Corrupt(message, subject=self._partition.topic) from error
        except (KafkaError, OSError) as error:
            message = f"Kafka does not return the records of {self._partition.topic}: {type(error).__name__}: {error}"
            raise Unavailable(message, subject=self._partition.topic) from error

    def close(self) -> None:
        """End the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _between(self, first_offset: int, end_offset: int) -> Iterator[Any]:
        if self._consumer is None:
            self._consumer = KafkaConsumer(
                **self._connection.for_kafka_python(),
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
                fetch_max_bytes=_FETCH_BYTES,
                max_partition_fetch_bytes=_FETCH_BYTES,
                max_poll_records=_POLL_RECORDS,
            )
            self._consumer.assign([self._partition])
        if first_offset != self._at:
            self._fetched.clear()
            self._consumer.seek(self._partition, first_offset)
            self._at = first_offset
        empty_polls = 0
        while self._at < end_offset:
            if not self._fetched:
                self._fetched.extend(self._consumer.poll(timeout_ms=_POLL_MS).get(self._partition, []))
            if not self._fetched:
                at = self._consumer.position(self._partition)  # beyond records without content, such as aborted ones
                empty_polls = 0 if at > self._at else empty_polls + 1
                self._at = max(self._at, min(at, end_offset))
                if empty_polls > _EMPTY_POLLS_MAX:
                    message = (
                        f"Kafka returns no records of {self._partition.topic} partition {self._partition.partition}"
                        f" before offset {end_offset}"
                    )
                    raise Unavailable(message, subject=self._partition.topic)
                continue
            if self._fetched[0].offset >= end_offset:
                self._at = end_offset
                return
            record = self._fetched.popleft()
            self._at = record.offset + 1
            empty_polls = 0
            yield record


def ops_record(record: Any) -> KafkaRecord:  # noqa: ANN401 - kafka-python has no types
    """Return a record of the ops topic as Spark would provide it."""
    value: bytes | None = record.value
    size = len(value or b"")
    if value is None or size <= RECORD_BYTES_MAX:
        return KafkaRecord(record.partition, record.offset, record.timestamp, record.key, value, size)
    head, digest = value[:REJECTED_HEAD_BYTES], hashlib.sha256(value).hexdigest()
    return KafkaRecord(record.partition, record.offset, record.timestamp, record.key, head, size, digest)
