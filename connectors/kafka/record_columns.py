"""The columns of records of the ops topic, as they leave Spark: a bounded part of each value."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from broker_state.audit import REJECTED_HEAD_BYTES
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["record_columns"]


def record_columns(frame: DataFrame, value_bytes_max: int) -> DataFrame:
    """Return the columns of KafkaRecord, in their order.

    Args:
        frame: Of Spark's Kafka source.
        value_bytes_max: Longer values are null, or cut to their head if they are over the cap of the ops topic.
    """
    size = f.coalesce(f.length("value"), f.lit(0))
    is_over = size > RECORD_BYTES_MAX
    return frame.select(
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        f.when(is_over, f.substring("value", 1, REJECTED_HEAD_BYTES))
        .when(size <= value_bytes_max, f.col("value"))
        .alias("value"),
        size.alias("value_bytes"),
        f.when(is_over, f.sha2("value", 256)).alias("value_sha256"),
    )
