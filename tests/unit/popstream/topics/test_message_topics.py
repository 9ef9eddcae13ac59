"""Claim: a partition without a leader is told from one that is empty and from one that does not exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from popstream.kafka_connection import KafkaConnection
from popstream.send.backfill import dispatch_existing
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.wire.base_errors import Invalid, Unavailable

LEADER_NOT_AVAILABLE = 5


class Admin:
    """A Kafka with the topic `orders`: of its three partitions the second one has no leader."""

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        codes = (0, LEADER_NOT_AVAILABLE, 0)
        partitions = [{"partition_index": number, "error_code": code} for number, code in enumerate(codes)]
        return [{"name": name, "topic_id": "id", "error_code": 0, "partitions": partitions} for name in names]

    def list_partition_offsets(self, specs: dict[Any, Any], *_: object) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=7 if spec.value == -1 else 2) for partition, spec in specs.items()}


def read_orders(monkeypatch: pytest.MonkeyPatch) -> MessageTopic:
    reader = TopicReader(KafkaConnection("kafka:9092"), client_id="test")
    monkeypatch.setattr(reader, "_admin", Admin())
    return reader.read(["orders"])["orders"]


def test_a_partition_without_a_leader_is_named_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = read_orders(monkeypatch)
    assert (topic.starts, topic.ends, topic.leaderless) == ({0: 2, 2: 2}, {0: 7, 2: 7}, frozenset([1]))


def test_the_bounds_of_a_topic_are_those_of_all_its_partitions_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = read_orders(monkeypatch)
    with pytest.raises(Unavailable, match=r"partitions \[1\] of topic orders have no leader"):
        topic.bounds()
    with pytest.raises(Unavailable, match=r"\[1\]"):
        topic.bounds([0, 1])
    assert topic.bounds([0, 3]) == {0: (2, 7)}


def test_a_backfill_says_whether_a_partition_is_not_there_or_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = read_orders(monkeypatch)
    monkeypatch.setattr(TopicReader, "read", lambda *_: {"orders": topic})
    transport: Any = SimpleNamespace(settings=SimpleNamespace(client_id="test"))
    for queue_ids in (None, [1]):
        with pytest.raises(Unavailable, match="have no leader"):
            dispatch_existing("kafka:9092", "orders", queue_ids=queue_ids, transport=transport)
    with pytest.raises(Invalid, match=r"has no partitions \[3\]"):
        dispatch_existing("kafka:9092", "orders", queue_ids=[0, 3], transport=transport)
