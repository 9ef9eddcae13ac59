"""Claim: the table says where the messages of a queue are counted on. Method: units by hand in a Delta table."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.covered import message_base_in_units, unit_ends
from connectors.delta.store import ensure_table
from connectors.delta.tables import CONSUME_QUEUE, spark_schema, table_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

UNIT: dict[str, Any] = {
    "topic": "orders",
    "queue_id": 0,
    "topic_id": "id",
    "queue_type": "batch",
    "store_time_ms": 1_795_262_400_000,
    "size_bytes": 100,
    "tag_hash": 0,
    "key_hash": 0,
    "inner_key_hashes": None,
    "is_readable": True,
    "build_seq": 1,
    "state_epoch": "epoch",
    "store_date": date(2026, 11, 21),
}


def test_the_base_is_that_of_the_next_unit_or_the_end_of_the_last(spark: SparkSession, tmp_path: Path) -> None:
    assert message_base_in_units(spark, tmp_path, "orders", 0, "id", 0) is None
    ensure_table(spark, tmp_path, CONSUME_QUEUE)
    units = [
        UNIT | {"queue_offset": at, "message_base": base, "inner_count": 10} for at, base in ((3, 0), (4, 10), (7, 20))
    ]
    units += [UNIT | {"queue_id": 1, "queue_offset": 2, "message_base": 900, "inner_count": 5}]
    units += [UNIT | {"topic_id": "deleted", "queue_offset": 9, "message_base": 700, "inner_count": 5}]
    rows = [tuple(unit[column.name] for column in CONSUME_QUEUE.columns) for unit in units]
    frame = spark.createDataFrame(rows, spark_schema(CONSUME_QUEUE))
    frame.write.format("delta").mode("append").save(str(table_path(tmp_path, CONSUME_QUEUE.name)))
    found = [message_base_in_units(spark, tmp_path, "orders", 0, "id", at) for at in (0, 3, 4, 5, 7, 8, 99)]
    assert found == [0, 0, 10, 20, 20, 30, 30]
    assert message_base_in_units(spark, tmp_path, "orders", 0, "recreated", 0) is None
    assert unit_ends(spark, tmp_path)["orders", 0, "id"] == 8
