"""Which units the table has: for a builder whose store does not know it."""

from pathlib import Path

from pyspark.sql import SparkSession

from connectors.delta.covered import unit_ends
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.builder import Audited

__all__ = ["audited_queues"]


def audited_queues(spark: SparkSession, delta: Path, bootstrap_servers: str) -> Audited:
    """The rows of all topics that there are or were, and which there are.

    Raises:
        Unavailable: Kafka does not answer.
        Corrupt: The table's log cannot be read.
    """
    ends = unit_ends(spark, delta)
    topics = describe(bootstrap_servers, sorted({topic for topic, _, _ in ends})) if ends else {}
    return Audited(ends, {name: facts.topic_id for name, facts in topics.items()})
