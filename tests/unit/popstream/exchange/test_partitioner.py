"""Claim: a key lands where Kafka's Java clients put it. Method: the vectors of Kafka's own UtilsTest.testMurmur2."""

from __future__ import annotations

import pytest
from kafka.partitioner import murmur2

from popstream.exchange.partitioner import ops_key, partition_of

JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java_hash"), JAVA_VECTORS.items())
@pytest.mark.parametrize("partition_count", [1, 2, 3, 4, 32, 1000])
def test_partition_is_javas(key: bytes, java_hash: int, partition_count: int) -> None:
    """Utils.toPositive(murmur2(key)) % count."""
    assert murmur2(key) == java_hash & 0xFFFF_FFFF
    assert partition_of(key, partition_count) == (java_hash & 0x7FFF_FFFF) % partition_count


def test_key_is_topic_nul_decimal() -> None:
    """The bytes are a contract with every other client."""
    assert ops_key("orders", 0) == b"orders\x000"
    assert ops_key("orders", 1234567) == b"orders\x001234567"


def test_queues_spread_over_partitions() -> None:
    """64 queues leave none of 4 partitions empty."""
    assert {partition_of(ops_key("orders", queue_id), 4) for queue_id in range(64)} == {0, 1, 2, 3}


@pytest.mark.parametrize(("topic", "queue_id"), [("", 0), ("a\x00b", 0), ("orders", -1)])
def test_ambiguous_keys_are_refused(topic: str, queue_id: int) -> None:
    """A NUL inside a topic could name another queue."""
    with pytest.raises(ValueError, match="not"):
        ops_key(topic, queue_id)


def test_no_partitions_are_refused() -> None:
    """A topic without partitions is a topic we know nothing of."""
    with pytest.raises(ValueError, match="at least 1"):
        partition_of(b"key", 0)
