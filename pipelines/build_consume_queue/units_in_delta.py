"""Which units the Delta table has, for a builder whose own store does not know it."""

from pathlib import Path

from pyspark.sql import SparkSession

from connectors.delta.restore_queries import unit_ends
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.builder_records import UnitsInDelta
from popstream.kafka_connection import KafkaConnection

__all__ = ["units_in_delta"]


def units_in_delta(spark: SparkSession, delta: Path, connection: KafkaConnection) -> UnitsInDelta:
    """Return the ends of all queues in the table, and the ids of those of their topics that still exist.

    Raises:
        Unavailable: Kafka does not answer.
        Corrupt: The table's log cannot be read.
    """
    ends = unit_ends(spark, delta)
    topics = describe(connection, sorted({topic for topic, _, _ in ends})) if ends else {}
    return UnitsInDelta(ends, {name: facts.topic_id for name, facts in topics.items()})
