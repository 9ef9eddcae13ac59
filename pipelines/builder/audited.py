"""Which units the table has of the topics that there are now: for a builder whose store does not know it."""

from pathlib import Path

from pyspark.sql import SparkSession

from connectors.delta.covered import unit_ends
from connectors.kafka.topics import describe
from pipelines.builder.builder import Audited, Queue

__all__ = ["audited_queues"]


def audited_queues(spark: SparkSession, delta: Path, bootstrap_servers: str) -> dict[Queue, Audited]:
    """By queue, the rows of its present topic; what a topic of the same name had before is none of them.

    Raises:
        Unavailable: Kafka does not answer.
        Corrupt: The table's log cannot be read.
    """
    known = unit_ends(spark, delta)
    topics = describe(bootstrap_servers, sorted({topic for topic, _, _ in known})) if known else {}
    return {
        (topic, queue_id): Audited(topic_id, end_offset)
        for (topic, queue_id, topic_id), end_offset in known.items()
        if topic in topics and topics[topic].topic_id == topic_id
    }
