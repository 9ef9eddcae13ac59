"""Starts a query whose rows leave by the Kafka sink: that of the shards, and that of the queues."""

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.spark_source import sink_options
from popstream.kafka_connection import KafkaConnection

__all__ = ["start_outgoing"]


def start_outgoing(outgoing: DataFrame, connection: KafkaConnection, *, name: str, checkpoint: str) -> StreamingQuery:
    """Start the query.

    Args:
        outgoing: Its rows, of `OUTGOING_SCHEMA`.
        connection: The Kafka.
        name: Name of the query.
        checkpoint: Path or URL of its checkpoint.
    """
    return (
        outgoing.writeStream.queryName(name)
        .format("kafka")
        .options(**sink_options(connection))
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )
