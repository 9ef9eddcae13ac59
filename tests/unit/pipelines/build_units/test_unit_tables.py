"""Claim: only records of batch topics are inner batches. Method: the columns that Spark computes, by hand."""

from __future__ import annotations

import pyarrow as pa

from pipelines.build_units.unit_tables import UNIT_SCHEMA, table_of, units_by_queue

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
    "deliver_at_ms": None,
    "dedup_hash": None,
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


def test_units_at_once_have_no_time_of_delivery() -> None:
    times = [None, 1_790_000_000_000, None]
    rows = [
        {"topic": "t", **UNIT, "queue_offset": at, "inner_count": 1, "deliver_at_ms": time}
        for at, time in enumerate(times)
    ]
    ((queue, units),) = units_by_queue(pa.Table.from_pylist(rows, UNIT_SCHEMA))
    assert units.deliver_at_ms.tolist() == [0, 1_790_000_000_000, 0]
    assert units.is_whole
    assert table_of(queue, units).to_pylist() == rows


def test_units_have_the_hash_of_their_id_in_two_halves() -> None:
    hashes = [None, bytes(range(16)), b"\xff" * 16]
    rows = [
        {"topic": "t", **UNIT, "queue_offset": at, "inner_count": 1, "dedup_hash": hashed}
        for at, hashed in enumerate(hashes)
    ]
    ((queue, units),) = units_by_queue(pa.Table.from_pylist(rows, UNIT_SCHEMA))
    assert [units.dedup_hash(row) for row in range(3)] == [bytes(16), *hashes[1:]]
    assert units.duplicate_of.tolist() == [-1, -1, -1]
    assert units.is_whole
    assert table_of(queue, units).to_pylist() == rows
