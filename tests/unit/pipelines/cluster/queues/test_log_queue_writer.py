"""What the driver writes to the log of queues, and what it learns of them (log_queue_writer.py); Kafka is a list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from broker_state.consume_queue import ConsumeQueue
from connectors.kafka.cluster_topics import ClusterTopics
from pipelines.cluster.queues import log_queue_writer
from pipelines.cluster.queues.log_queue_writer import LogQueueWriter
from pipelines.cluster.queues.queue_log import Began, LogRecord, Truncated, decode_log_record
from pipelines.cluster.queues.queue_shard import BuiltQueue, QueueMeta
from popstream.exchange.partitioner import ops_key, queue_of_ops_key
from popstream.kafka_connection import KafkaConnection
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterator


QUEUE = ("orders", 0)


class Kafka:
    """In the place of a producer, and of the topic with what is built."""

    def __init__(self) -> None:
        self.written: list[tuple[QueueName, LogRecord]] = []
        self.news: list[tuple[bytes, bytes]] = []
        self.is_away = False
        self.ahead_s = 0.0

    @property
    def timestamp(self) -> int:
        return int((time.time() + self.ahead_s) * 1000)

    def send(self, topic: str, *, key: bytes, value: bytes, partition: int) -> Kafka:
        assert topic == "p.cluster_queue_log"
        assert 0 <= partition < 3
        self.written.append((queue_of_ops_key(key), decode_log_record(value)))
        return self

    def get(self, timeout_s: float) -> Kafka:
        assert timeout_s > 0
        if self.is_away:
            raise KafkaTimeoutError
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def to_end(self) -> Iterator[tuple[bytes, bytes]]:
        news, self.news = self.news, []
        return iter(news)

    def tell(self, queue: QueueName, record: ConsumeQueue | None, epoch: str = "epoch", **fields: Any) -> None:
        built = BuiltQueue(epoch, QueueMeta(record=record, build_seq=1, **fields))
        self.news.append((ops_key(*queue), built.encode()))

    def take(self) -> list[tuple[QueueName, LogRecord]]:
        written, self.written = self.written, []
        return written


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(log_queue_writer, "KafkaProducer", lambda **_: made)
    monkeypatch.setattr(log_queue_writer, "KeyedLog", lambda *_: made)
    return made


def writer_of(kafka: Kafka) -> LogQueueWriter:
    assert kafka.written == []
    return LogQueueWriter(KafkaConnection("kafka:9092"), ClusterTopics.of("p"), 3, 2, "epoch")


def topics(topic_id: str, start: int = 0) -> dict[str, MessageTopic]:
    return {QUEUE[0]: MessageTopic(QUEUE[0], topic_id, {QUEUE[1]: start}, {QUEUE[1]: 500})}


def test_a_queue_begins_once_moves_its_start_and_begins_again_with_another_topic(kafka: Kafka) -> None:
    writer = writer_of(kafka)
    assert not writer.update_topics(topics("A", 7), {})
    assert kafka.take() == [(QUEUE, Began("A", "simple", 7))]
    assert not writer.update_topics(topics("A", 7), {})
    assert kafka.take() == []
    writer.update_topics(topics("A", 9), {})
    assert kafka.take() == [(QUEUE, Began("A", "simple", 9))]
    assert writer.queues[QUEUE].end_offset == 9
    writer.update_topics(topics("B"), {QUEUE[0]: "batch"})
    assert kafka.take() == [(QUEUE, Began("B", "batch", 0))]
    assert (writer.queues[QUEUE].topic_id, writer.queues[QUEUE].end_offset) == ("B", 0)


def test_a_start_goes_on_where_queues_are_built_to(kafka: Kafka) -> None:
    kafka.tell(QUEUE, ConsumeQueue("A", "sparse", 10, 90, 10, 90))
    writer = writer_of(kafka)
    assert writer.queues[QUEUE].end_offset == 90
    assert not writer.update_topics(topics("A", 10), {QUEUE[0]: "sparse"})
    assert kafka.take() == []
    with pytest.raises(Invalid, match="exists as a sparse queue, and cannot become simple"):
        writer.update_topics(topics("A", 10), {})


def test_what_the_log_has_lost_is_read_again(kafka: Kafka) -> None:
    kafka.tell(QUEUE, ConsumeQueue("A", "simple", 0, 90, 0, 90))
    writer = writer_of(kafka)
    kafka.tell(QUEUE, ConsumeQueue("A", "simple", 0, 60, 0, 60))
    assert not writer.update_topics(topics("A"), {}), "it is only behind"
    assert writer.queues[QUEUE].end_offset == 90
    kafka.tell(QUEUE, ConsumeQueue("older", "simple", 0, 60, 0, 60), is_behind=True)
    assert not writer.update_topics(topics("A"), {}), "of a topic that is gone"
    kafka.tell(QUEUE, ConsumeQueue("A", "simple", 0, 60, 0, 60), is_behind=True)
    assert writer.update_topics(topics("A"), {})
    assert writer.queues[QUEUE].end_offset == 60


def test_what_another_state_has_built_is_built_again(kafka: Kafka) -> None:
    record = ConsumeQueue("A", "simple", 0, 90, 0, 90)
    kafka.tell(QUEUE, record, "another")
    kafka.news.append((ops_key("orders", 1), QueueMeta(record).encode()))  # as the version before told of it
    writer = writer_of(kafka)
    assert writer.queues == {}
    writer.update_topics(topics("A"), {})
    assert kafka.take() == [(QUEUE, Began("A", "simple", 0))]


def test_a_queue_whose_beginning_the_log_has_lost_begins_again(kafka: Kafka) -> None:
    writer = writer_of(kafka)
    writer.update_topics(topics("A", 7), {})
    writer.queues[QUEUE] = msgspec.structs.replace(writer.queues[QUEUE], end_offset=400)
    kafka.take()
    kafka.tell(QUEUE, None, is_behind=True)
    assert writer.update_topics(topics("A", 7), {})
    assert kafka.take() == [(QUEUE, Began("A", "simple", 7))]
    assert writer.queues[QUEUE].end_offset == 7


def test_a_log_that_lost_records_truncates_its_queue(
    kafka: Kafka,
) -> None:
    kafka.tell(QUEUE, ConsumeQueue("A", "simple", 20, 90, 20, 90))
    writer = writer_of(kafka)
    assert writer.truncate(QUEUE, 50, is_same_log=False) == 50
    assert writer.truncate(QUEUE, 70, is_same_log=False) == 50
    assert writer.truncate(QUEUE, 5, is_same_log=False) == 20
    assert kafka.take() == [(QUEUE, Truncated("A", at)) for at in (50, 50, 20)]
    with pytest.raises(Invalid, match="there is no queue orders/1"):
        writer.truncate(("orders", 1), 5, is_same_log=False)
    with pytest.raises(Invalid, match="does not build a queue again"):
        writer.truncate(QUEUE, 5)
    assert kafka.take() == []


def test_without_kafka_nothing_is_taken_for_written(kafka: Kafka) -> None:
    writer = writer_of(kafka)
    kafka.is_away = True
    with pytest.raises(Unavailable, match="cluster_queue_log cannot be written"):
        writer.update_topics(topics("A"), {})
    assert writer.queues == {}
    kafka.is_away = False
    kafka.take()
    writer.update_topics(topics("A"), {})
    assert kafka.take() == [(QUEUE, Began("A", "simple", 0))]


@pytest.mark.parametrize(("ahead_s", "text"), [(-40.0, "(39|40) s ahead of"), (300.0, "(299|300) s behind")])
def test_a_clock_by_which_signatures_would_be_refused_is_an_error(kafka: Kafka, ahead_s: float, text: str) -> None:
    writer = LogQueueWriter(KafkaConnection("kafka:9092"), ClusterTopics.of("p"), 3, 2, "epoch", signs=True)
    kafka.ahead_s = 20.0
    writer.update_topics(topics("A"), {})
    kafka.ahead_s = ahead_s
    with pytest.raises(Invalid, match=text):
        writer.update_topics(topics("B"), {})
    writer_of_unsigned = LogQueueWriter(KafkaConnection("kafka:9092"), ClusterTopics.of("p"), 3, 2, "epoch")
    writer_of_unsigned.update_topics(topics("B"), {})
