"""The query that decides: the ops topic through one shard for each of its partitions, to the Kafka sink."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.session import join_pool
from connectors.kafka.own_topics import Topics
from connectors.kafka.record_columns import record_columns
from connectors.kafka.spark_source import source_options, starting_offsets
from pipelines.cluster.checkpoint_layout import DECIDE_OPS
from pipelines.cluster.decide.outgoing import OUTGOING_SCHEMA
from pipelines.cluster.decide.outgoing_query import start_outgoing
from pipelines.cluster.decide.packed_records import PACKED_SCHEMA, pack
from pipelines.cluster.decide.shard import ShardSettings
from pipelines.cluster.decide.shard_keys import shard_keys
from pipelines.cluster.decide.shard_processor import ShardProcessor
from popstream.kafka_connection import KafkaConnection
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["Beginning", "start_decide_query"]


class Beginning(NamedTuple):
    """Where a state goes on that came from elsewhere.

    Attributes:
        rows: Columns shard, map, key, value: what the maps of shards hold (shard_rows.py).
        first_offset: The first Kafka offset to decide, by partition of the ops topic.
    """

    rows: DataFrame
    first_offset: Mapping[int, int]


def start_decide_query(
    spark: SparkSession,
    connection: KafkaConnection,
    settings: ShardSettings,
    *,
    prefix: str,
    audit_partitions: int,
    state_epoch: str,
    records_per_micro_batch_max: int,
    tasks: int,
    checkpoint: str,
    beginning: Beginning | None = None,
) -> StreamingQuery:
    """Start the query.

    Args:
        spark: The session.
        connection: The Kafka.
        settings: What all shards decide by.
        prefix: Prefix of the job's topics.
        audit_partitions: Partitions of the audit topic.
        state_epoch: Identity of the state.
        records_per_micro_batch_max: Records of a micro-batch at most.
        tasks: Tasks that read the log.
        checkpoint: Path or URL of the query's checkpoint.
        beginning: Of a state that came from elsewhere; None: the state begins empty, with the log.
    """
    join_pool(spark, DECIDE_OPS)
    packed = _packed(_records(spark, connection, prefix, records_per_micro_batch_max, beginning), tasks)
    keys = f.array(*(f.lit(key).cast("int") for key in shard_keys(spark, settings.ops_partitions)))
    keyed = packed.select(_element(keys, f.col("ops_partition")).alias("shard"), *packed.columns)
    outgoing = keyed.groupBy("shard").transformWithState(
        ShardProcessor(settings, connection, prefix, audit_partitions, state_epoch),
        OUTGOING_SCHEMA,
        "append",
        "none",
        None if beginning is None else beginning.rows.groupBy("shard"),
    )
    return start_outgoing(outgoing, connection, name=DECIDE_OPS, checkpoint=checkpoint)


def _records(
    spark: SparkSession,
    connection: KafkaConnection,
    prefix: str,
    records_per_micro_batch_max: int,
    beginning: Beginning | None,
) -> DataFrame:
    ops = Topics.of(prefix).ops
    frame = (
        spark.readStream.format("kafka")
        .options(**source_options(connection))
        .option("subscribe", ops)
        .option("startingOffsets", starting_offsets(ops, {} if beginning is None else beginning.first_offset))
        .option("maxOffsetsPerTrigger", records_per_micro_batch_max)
        .load()
    )
    return record_columns(frame, RECORD_BYTES_MAX)


def _packed(records: DataFrame, tasks: int) -> DataFrame:
    return records.coalesce(tasks).mapInArrow(pack, PACKED_SCHEMA)


def _element(array: Column, index: Column) -> Column:
    return f.element_at(array, index + 1)
