"""Claim: only records of batch topics are inner batches. Method: the columns that Spark computes, by hand."""

from __future__ import annotations

import pyarrow as pa

from pipelines.build_consume_queue.unit_columns import UNIT_SCHEMA, units_by_queue

UNIT = {
    "queue_id": 0,
    "queue_offset": 7,
    "store_time_ms": 1_000,
    "size_bytes": 30,
    "tag_hash": 0,
    "key_hash": 0,
    "inner_count": 3,
    "inner_key_hashes": None,
    "is_readable": True,
}


def test_headers_of_an_inner_batch_count_on_batch_topics_only() -> None:
    rows = [
        {"topic": topic, **UNIT, **malformed}
        for topic in ("batched", "plain")
        for malformed in ({}, {"queue_offset": 8, "inner_count": 1, "is_readable": False})
    ]
    table = pa.Table.from_pylist(rows, UNIT_SCHEMA)
    found = {queue[0]: units for queue, units in units_by_queue(table, batch_topics=frozenset({"batched"}))}
    assert found["batched"].inner_count.tolist() == [3, 1]
    assert found["batched"].is_readable.tolist() == [True, False]
    assert found["plain"].inner_count.tolist() == [1, 1]
    assert found["plain"].is_readable.tolist() == [True, True]
