"""The dead-letter topic, read as anybody could."""

import time

from kafka import KafkaConsumer, TopicPartition

from pipelines.demo.messages import content_hash
from pipelines.demo.verdict import Letter

__all__ = ["count_records", "read_letters"]

TIMEOUT_S = 20.0


def count_records(bootstrap_servers: str, topic: str) -> int:
    """Records that were ever written to a topic."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers.split(","), enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return sum(consumer.end_offsets(partitions).values())
    finally:
        consumer.close(autocommit=False)


def read_letters(bootstrap_servers: str, topic: str, count: int) -> list[Letter]:
    """Dead letters, until there are `count` different ones: they are copied a little after they are decided."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers.split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    letters: dict[tuple[str, int, int], Letter] = {}
    try:
        consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()])
        deadline = time.monotonic() + TIMEOUT_S
        while len(letters) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    letter = _letter(dict(record.headers or ()), record.value)
                    letters[letter[:3]] = letter
    finally:
        consumer.close(autocommit=False)
    return list(letters.values())


def _letter(headers: dict[str, bytes], value: bytes | None) -> Letter:
    content = None if "popstream.gone" in headers else int.from_bytes(content_hash(value or b""), "big")
    return Letter(
        headers["popstream.group"].decode(),
        int(headers["popstream.queue_id"]),
        int(headers["popstream.queue_offset"]),
        content,
    )
