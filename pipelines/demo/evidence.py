"""What a run has left behind: Delta tables, dead letters, and the files of the workers."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from broker_state.audit import DeliveryStep
from connectors.delta.tables import table_path
from pipelines.demo.demo_verdict import GroupCounts, Letter, Refusal
from pipelines.demo.message_source import Position, Sent, content_hash
from pipelines.demo.tasks import Task
from popstream.kafka_connection import KafkaConnection
from popstream.wire.headers import (
    DEAD_LETTER_GROUP_HEADER,
    DEAD_LETTER_QUEUE_ID_HEADER,
    DEAD_LETTER_QUEUE_OFFSET_HEADER,
)
from popstream.wire.reason import Reason

__all__ = ["count_records", "read_counts", "read_letters", "read_processed", "read_refusals", "read_rejected"]

LETTERS_TIMEOUT_S = 20.0
NOTHING_TO_GIVE = (Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.POLLING_FULL, Reason.CANCELLED)
"""A pop that got nothing has a code, and was not refused."""


def read_counts(spark: SparkSession, root: Path) -> dict[str, GroupCounts]:
    """Count, by group, the messages by their steps in `deliveries`."""

    def messages_where(condition: str) -> Any:  # noqa: ANN401 - a Column
        return f.sum(f.expr(f"IF({condition}, last_offset - first_offset + 1, 0)"))

    rows = _table(spark, root, "deliveries").groupBy("group")
    counts = rows.agg(
        messages_where(f"step = '{DeliveryStep.ACKED}'"),
        messages_where(f"step = '{DeliveryStep.DEAD_LETTERED}'"),
        messages_where(f"step = '{DeliveryStep.LEASED}' AND attempt > 1"),
    )
    return {row[0]: GroupCounts(*row[1:]) for row in counts.collect()}


def read_refusals(spark: SparkSession, root: Path) -> list[Refusal]:
    """Read the refused operations."""
    reasons = [reason.value for reason in NOTHING_TO_GIVE]
    rows = _table(spark, root, "operations").where("code <> 0").where(~f.col("reason").isin(reasons))
    return [Refusal(*row) for row in rows.select(*Refusal._fields).collect()]


def read_rejected(spark: SparkSession, root: Path) -> list[tuple[int, int, str]]:
    """Read the rejected records."""
    rows = _table(spark, root, "rejected").select("partition", "kafka_offset", "reason")
    return [(row[0], row[1], row[2]) for row in rows.collect()]


def read_processed(tasks: Iterable[Task], sent: Sent) -> dict[str, set[tuple[Position, str]]]:
    """Read, by group, which messages the workers have processed, with the content that they had."""
    known = {message: message for message in sent.contents.items()}  # the groups share the objects
    processed: dict[str, set[tuple[Position, str]]] = {}
    for task in tasks:
        if task.processed_file.exists():
            contents = processed.setdefault(task.group, set())
            with task.processed_file.open() as lines:
                for line in lines:
                    queue_id, queue_offset, content = line.split()
                    message = (int(queue_id), int(queue_offset)), content
                    contents.add(known.get(message, message))
    return processed


def count_records(connection: KafkaConnection, topic: str) -> int:
    """Return the number of records that were ever written to a topic."""
    with _open_consumer(connection, topic) as consumer:
        return sum(consumer.end_offsets(list(consumer.assignment())).values())


def read_letters(connection: KafkaConnection, topic: str, count: int) -> set[Letter]:
    """Read the dead-letter topic until there are `count` letters: they are copied a little after they are decided."""
    letters: set[Letter] = set()
    with _open_consumer(connection, topic) as consumer:
        deadline_s = time.monotonic() + LETTERS_TIMEOUT_S
        while len(letters) < count and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=500).values():
                letters.update(_letter(dict(record.headers), record.value or b"") for record in records)
    return letters


@contextmanager
def _open_consumer(connection: KafkaConnection, topic: str) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        **connection.for_kafka_python(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()])
        yield consumer
    finally:
        consumer.close(autocommit=False)


def _letter(headers: Mapping[str, bytes], value: bytes) -> Letter:
    position = int(headers[DEAD_LETTER_QUEUE_ID_HEADER]), int(headers[DEAD_LETTER_QUEUE_OFFSET_HEADER])
    return Letter(headers[DEAD_LETTER_GROUP_HEADER].decode(), position, content_hash(value))


def _table(spark: SparkSession, root: Path, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(table_path(root, name)))
