"""Claim: who reads a log of the cluster hears in coded words that Kafka does not answer, and does not wait for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from connectors.kafka.cluster_topics import ClusterTopics
from pipelines.cluster import keyed_log
from pipelines.cluster.deadline_ticker import DeadlineTicker
from pipelines.cluster.keyed_log import KeyedLog
from pipelines.cluster.queues import log_queue_writer
from pipelines.cluster.queues.log_queue_writer import LogQueueWriter
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from tests.support.module_time import replace_time

if TYPE_CHECKING:
    from collections.abc import Callable

KAFKA = KafkaConnection("kafka:9092")


class Consumer:
    """In place of one of Kafka: a log of `end` records, of which it returns those before `missing_from`."""

    def __init__(self, end: int = 3, missing_from: int = 3) -> None:
        self.end, self.missing_from = end, missing_from
        self.at = 0
        self.now_s = 0.0
        self.is_closed = False
        self.failure: KafkaError | None = None

    def assign(self, partitions: list[Any]) -> None:
        (self.partition,) = partitions

    def seek_to_beginning(self, _: Any) -> None:
        self.at = 0

    def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        if self.failure is not None:
            raise self.failure
        return dict.fromkeys(partitions, self.end)

    def position(self, _: Any) -> int:
        return self.at

    def poll(self, timeout_ms: int) -> dict[Any, list[Any]]:
        if self.at == self.missing_from:
            self.now_s += timeout_ms / 1000
            return {}
        self.at += 1
        record = SimpleNamespace(key=b"k%d" % self.at, value=None if self.at == 2 else b"v")
        return {self.partition: [record]}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    made = Consumer()
    monkeypatch.setattr(keyed_log, "KafkaConsumer", lambda **_: made)
    replace_time(monkeypatch, "pipelines.cluster.keyed_log", monotonic=lambda: made.now_s)
    return made


def test_a_log_is_read_to_its_end_and_followed(consumer: Consumer) -> None:
    with KeyedLog(KAFKA, "log") as log:
        assert [*log.to_end()] == [(b"k1", b"v"), (b"k3", b"v")], "the second one has no value"
        assert log.next(200) == []
        consumer.missing_from = 9
        assert log.next(200) == [(b"k4", b"v")]
    assert consumer.is_closed


def test_a_record_that_does_not_come_is_not_waited_for_for_ever(consumer: Consumer) -> None:
    consumer.end = 5
    with KeyedLog(KAFKA, "log") as log, pytest.raises(Unavailable, match="log cannot be read: no record within 60 s"):
        list(log.to_end())


def test_records_without_a_value_are_records(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as take longer than the time-out."""
    consumer.end = consumer.missing_from = 100

    def poll(timeout_ms: int) -> dict[Any, list[Any]]:
        consumer.now_s += 5 * timeout_ms / 1000
        consumer.at += 1
        return {consumer.partition: [SimpleNamespace(key=b"k", value=None)]}

    monkeypatch.setattr(consumer, "poll", poll)
    with KeyedLog(KAFKA, "log") as log:
        assert [*log.to_end()] == []
    assert consumer.now_s > 120


def no_brokers(**_: Any) -> Any:
    raise KafkaConnectionError("no brokers")


@pytest.mark.parametrize(
    "connect",
    [
        lambda: KeyedLog(KAFKA, "log"),
        lambda: LogQueueWriter(KAFKA, ClusterTopics.of("p"), 1, 1, "e"),
        lambda: DeadlineTicker(KAFKA, "log", "ops", 1, lambda: (), lambda _: None).start(),
    ],
    ids=["log", "queues", "ticks"],
)
def test_a_client_that_finds_no_broker_is_a_coded_error(
    connect: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_log, "KafkaConsumer", no_brokers)
    monkeypatch.setattr(log_queue_writer, "KafkaProducer", no_brokers)
    monkeypatch.setattr("pipelines.apply_ops.tick_producer.KafkaProducer", no_brokers)
    with pytest.raises(Unavailable, match="no brokers"):
        connect()


def test_a_writer_that_cannot_begin_leaves_no_client_open(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, closed = object(), []
    monkeypatch.setattr(log_queue_writer, "KafkaProducer", lambda **_: producer)
    monkeypatch.setattr(log_queue_writer, "close_producer", lambda made, _: closed.append(made))
    consumer.failure = KafkaTimeoutError("30 s")
    with pytest.raises(Unavailable, match="cluster_queues cannot be read"):
        LogQueueWriter(KAFKA, ClusterTopics.of("p"), 1, 1, "e")
    assert (closed, consumer.is_closed) == ([producer], True)
