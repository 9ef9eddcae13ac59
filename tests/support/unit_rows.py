"""Rows of `consume_queue`, by hand."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import CONSUME_QUEUE, table_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["append_units", "batch_row", "unit_row"]

NOON_MS = 1_795_262_400_000
TODAY = date(2026, 11, 21)


def unit_row(topic: str, queue_offset: int, **changed: Any) -> dict[str, Any]:
    """A unit of a simple queue."""
    known = {
        "topic": topic,
        "queue_id": 0,
        "topic_id": "id",
        "queue_type": "simple",
        "queue_offset": queue_offset,
        "message_base": queue_offset,
        "inner_count": 1,
        "store_time_ms": NOON_MS,
        "size_bytes": 100,
        "tag_hash": 0,
        "key_hash": 0,
        "inner_key_hashes": None,
        "is_readable": True,
        "deliver_at_ms": None,
        "duplicate_of": None,
        "build_seq": 1,
        "state_epoch": "epoch",
        "store_date": TODAY,
    }
    return {**known, **changed}


def batch_row(topic: str, queue_offset: int, base: int, count: int, **changed: Any) -> dict[str, Any]:
    """A unit of a batch queue."""
    return unit_row(topic, queue_offset, queue_type="batch", message_base=base, inner_count=count, **changed)


def append_units(spark: SparkSession, root: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows to the table, which exists."""
    values = [tuple(each.get(column.name) for column in CONSUME_QUEUE.columns) for each in rows]
    frame = spark.createDataFrame(values, spark_schema(CONSUME_QUEUE))
    frame.write.format("delta").mode("append").save(str(table_path(root, CONSUME_QUEUE.name)))
