"""The ops topic, read without Spark: its first and last offsets, and its records."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from broker_state.audit import REJECTED_HEAD_BYTES
from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.apply_ops.decode import KafkaRecord
from popstream.wire.base_errors import Unavailable
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["found_log", "read_records"]

_FETCH_BYTES = 17 * 1024 * 1024
_POLL_MS = 1000
_EMPTY_POLLS_MAX = 30


def found_log(bootstrap_servers: str, topic: TopicFacts) -> LogFound:
    """Return the first and last offsets of each partition; aborted records at the end count.

    Raises:
        Unavailable: Kafka does not answer.
    """
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partition_count)]
        first = consumer.beginning_offsets(partitions)
        end = consumer.end_offsets(partitions)
    except KafkaError as error:
        message = f"Kafka does not return the offsets of {topic.name}: {error}"
        raise Unavailable(message, subject=topic.name) from error
    finally:
        consumer.close()
    return LogFound(
        topic=topic.name,
        topic_id=topic.topic_id,
        first_offset={at.partition: offset for at, offset in first.items()},
        end_offset={at.partition: offset for at, offset in end.items()},
    )


def read_records(
    bootstrap_servers: str, topic: str, first_offset: Mapping[int, int], end_offset: Mapping[int, int]
) -> Iterator[KafkaRecord]:
    """Yield the committed records of [first, end) of each partition, in order, as Spark would provide them.

    Raises:
        Unavailable: Kafka stops answering.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    try:
        for number, end in sorted(end_offset.items()):
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek(partition, first_offset.get(number, 0))
            empty_polls = 0
            while consumer.position(partition) < end:
                records = consumer.poll(timeout_ms=_POLL_MS).get(partition, [])
                empty_polls = 0 if records else empty_polls + 1
                if empty_polls > _EMPTY_POLLS_MAX:
                    message = f"Kafka returns no records of {topic} partition {number} before offset {end}"
                    raise Unavailable(message, subject=topic)
                for record in records:
                    if record.offset < end:
                        yield _to_record(record)
    finally:
        consumer.close()


def _to_record(record: Any) -> KafkaRecord:  # noqa: ANN401 - kafka-python has no types
    value: bytes | None = record.value
    size = len(value or b"")
    if value is None or size <= RECORD_BYTES_MAX:
        return KafkaRecord(record.partition, record.offset, record.timestamp, record.key, value, size)
    head, digest = value[:REJECTED_HEAD_BYTES], hashlib.sha256(value).hexdigest()
    return KafkaRecord(record.partition, record.offset, record.timestamp, record.key, head, size, digest)
