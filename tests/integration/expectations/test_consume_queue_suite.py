"""Claim: the suite of `consume_queue` finds nothing in good rows, and each rule finds the one fault made for it.

Method: rows by hand in the real table, the faults each in a topic of its own; the other tables are empty.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.store import ensure_table
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, spark_schema, table_path
from expectations.consume_queue_suite import consume_queue_suite
from expectations.validate import validate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TODAY = date(2026, 11, 21)
NOON_MS = 1_795_262_400_000


def row(topic: str, queue_offset: int, **changed: Any) -> dict[str, Any]:
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
        "build_seq": 1,
        "state_epoch": "epoch",
        "store_date": TODAY,
    }
    return {**known, **changed}


def batch(topic: str, queue_offset: int, base: int, count: int, **changed: Any) -> dict[str, Any]:
    return row(topic, queue_offset, queue_type="batch", message_base=base, inner_count=count, **changed)


GOOD = [
    row("simple", 3),
    row("simple", 7, build_seq=2),
    row("simple", 3, topic_id="made again", build_seq=5),
    batch("batch", 0, 0, 10),
    batch("batch", 1, 10, 1, is_readable=False),
    batch("batch", 5, 11, 3),
]
FAULTS = {
    "expect_units_to_be_unique": [row("f1", 1), row("f1", 1)],
    "expect_units_to_have_values": [row("f2", 1, key_hash=None)],
    "expect_messages_to_be_counted_in_order": [batch("f3", 0, 0, 10), batch("f3", 1, 9, 2)],
    "expect_date_to_be_that_of_the_store_time": [row("f4", 1, store_date=date(2026, 11, 20))],
    "expect_units_in_log_order": [row("f5", 1, build_seq=2), row("f5", 2, build_seq=1)],
}


def test_each_rule_finds_its_fault_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    for table in (*AUDIT_TABLES.values(), CONSUME_QUEUE):
        ensure_table(spark, tmp_path, table)

    def write(rows: list[dict[str, Any]]) -> None:
        values = [tuple(each[column.name] for column in CONSUME_QUEUE.columns) for each in rows]
        frame = spark.createDataFrame(values, spark_schema(CONSUME_QUEUE))
        frame.write.format("delta").mode("append").save(str(table_path(tmp_path, CONSUME_QUEUE.name)))

    write([*GOOD, *(each for rows in FAULTS.values() for each in rows)])
    failures = validate(spark, tmp_path, results=False).failures
    assert {outcome.expectation for outcome in failures} == FAULTS.keys()
    assert FAULTS.keys() == {each.expectation_type for each in consume_queue_suite().expectations}
    for outcome in failures:
        assert {found["topic"] for found in outcome.sample} == {FAULTS[outcome.expectation][0]["topic"]}, outcome
        assert outcome.unexpected_count == len(outcome.sample), "more was found than is shown"
