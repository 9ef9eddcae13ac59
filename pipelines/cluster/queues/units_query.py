"""The query that builds consume queues: the log of queues through one shard for each of them, to the Kafka sink."""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.session import join_pool
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.spark_source import source_options, starting_offsets
from pipelines.cluster.checkpoint_layout import BUILD_UNITS
from pipelines.cluster.decide.outgoing import OUTGOING_SCHEMA
from pipelines.cluster.decide.outgoing_query import start_outgoing
from pipelines.cluster.queues.queue_processor import QueueProcessor, UnitSettings
from popstream.kafka_connection import KafkaConnection

__all__ = ["start_units_query"]

RECORDS_PER_MICRO_BATCH_MAX = 1_000


def start_units_query(
    spark: SparkSession,
    connection: KafkaConnection,
    settings: UnitSettings,
    *,
    prefix: str,
    begins: Mapping[int, int],
    checkpoint: str,
) -> StreamingQuery:
    """Start the query.

    Args:
        spark: The session.
        connection: The Kafka.
        settings: What all queues are built by.
        prefix: Prefix of the job's topics.
        begins: Where a new checkpoint begins, by partition of the log of queues; empty: at its first record.
        checkpoint: Path or URL of the query's checkpoint.
    """
    join_pool(spark, BUILD_UNITS)
    topic = ClusterTopics.of(prefix).queue_log
    frame = (
        spark.readStream.format("kafka")
        .options(**source_options(connection))
        .option("subscribe", topic)
        .option("startingOffsets", starting_offsets(topic, begins))
        .option("maxOffsetsPerTrigger", RECORDS_PER_MICRO_BATCH_MAX)
        # What is lost of this log is read again from the message topics (`QueueMeta.is_behind`).
        .option("failOnDataLoss", "false")
        .load()
        .select(
            f.col("key").cast("string").alias("queue"),
            f.col("offset").alias("log_offset"),
            "value",
            # Of a micro-batch that is repeated it is the same: Spark keeps it with the offsets.
            f.unix_millis(f.current_timestamp()).alias("planned_ms"),
        )
    )
    outgoing = frame.groupBy("queue").transformWithState(
        QueueProcessor(settings, prefix), OUTGOING_SCHEMA, "append", "none"
    )
    return start_outgoing(outgoing, connection, name=BUILD_UNITS, checkpoint=checkpoint)
