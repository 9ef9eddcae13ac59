"""What the ticker of a cluster is told of deadlines, and which ticks it sends (deadline_ticker.py)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from connectors.kafka.cluster_topics import ClusterTopics
from pipelines.cluster import deadline_ticker
from pipelines.cluster.deadline_ticker import publish_deadlines
from pipelines.cluster.migration.shard_rows import DEADLINES_MAP, ShardRow, deadlines_of
from pipelines.cluster.outgoing import Deadlines
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from tests.support.in_process.memory_maps import memory_maps
from tests.unit.pipelines.cluster.test_shard import NOW_MS, declared, pop

KAFKA = KafkaConnection("kafka:9092")
INTERNAL = ClusterTopics.of("p")


class Producer:
    """In place of one of Kafka."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_away = False

    def send(self, topic: str, **fields: Any) -> Producer:
        self.sent.append({"topic": topic, **fields})
        return self

    def get(self, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.is_away:
            raise KafkaTimeoutError


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()
    monkeypatch.setattr(deadline_ticker, "KafkaProducer", lambda **_: made)
    monkeypatch.setattr(deadline_ticker, "close_producer", lambda *_: None)
    return made


def test_a_state_that_was_migrated_tells_of_its_deadlines_without_a_record(producer: Producer) -> None:
    maps = memory_maps()
    shard = declared(maps)
    shard.apply([pop(2)])
    rows = [ShardRow(3, DEADLINES_MAP, key, value) for key, value in maps.deadlines.items()]
    assert deadlines_of(rows) == {3: shard.earliest_deadlines()}
    assert shard.earliest_deadlines() == [(NOW_MS + 2 + 60_000, "t", 0)]
    publish_deadlines(KAFKA, INTERNAL, deadlines_of(rows), NOW_MS)
    (sent,) = producer.sent
    assert (sent["topic"], sent["key"], sent["partition"]) == ("p.cluster_deadlines", b"3", 0)
    told = msgspec.msgpack.decode(sent["value"], type=Deadlines)
    assert (told.newest_ms, told.queues) == (NOW_MS, shard.earliest_deadlines())
    producer.is_away = True
    with pytest.raises(Unavailable, match="cluster_deadlines cannot be written"):
        publish_deadlines(KAFKA, INTERNAL, deadlines_of(rows), NOW_MS)
