"""Claim: the clients do over a real Kafka what they do in memory. Method: a broker, and the kernel as a small job."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, ensure_topics
from connectors.kafka.topic_admin import create_message_topic
from popstream import (
    AnswerTimeout,
    ClientSettings,
    Consumer,
    Producer,
    Transport,
    all_applied,
    dispatch_existing,
)
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from popstream.payload.kafka_payloads import KafkaPayloads
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command, Dispatch
from popstream.wire.reason import Reason
from tests.support.left_behind import end_offsets
from tests.support.wire import wait_for

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
_decode = msgspec.json.Decoder(Command).decode


class SmallJob:
    """Reads the ops topic, decides with the kernel, answers; forgets everything when it ends."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.servers = bootstrap_servers
        self.topics = Topics.of(prefix)
        self.partition_count = ensure_topics(KafkaConnection(bootstrap_servers), self.topics)[
            self.topics.ops
        ].partition_count
        self.commands: list[Command] = []
        self.is_paused = threading.Event()
        self._is_ending = threading.Event()
        self._kv = MemoryKv()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign([TopicPartition(self.topics.ops, number) for number in range(self.partition_count)])
        producer = KafkaProducer(bootstrap_servers=self.servers)
        while not self._is_ending.is_set():
            if self.is_paused.is_set():
                time.sleep(0.01)
                continue
            overlay, decision = Overlay(self._kv), Decision()
            for records in consumer.poll(timeout_ms=50).values():
                fold(overlay, [self._record(record) for record in records], decision)
            self._kv.write(overlay)
            for reply_to, answer in decision.answers:
                frame = b'{"v":1,"answers":[' + answer + b"]}"
                producer.send(self.topics.results, frame, partition=reply_to)
        producer.close()
        consumer.close()

    def _record(self, record: Any) -> OpRecord:
        command = _decode(record.value)
        self.commands.append(command)
        key = ops_key(command.topic, command.queue_id)
        misrouted = (
            "elsewhere" if key != record.key or record.partition != partition_of(key, self.partition_count) else ""
        )
        digest = hashlib.blake2b(record.value, digest_size=16).digest()
        return OpRecord(record.partition, record.offset, record.timestamp, command, digest, misrouted)


@pytest.fixture
def job(kafka: EmbeddedKafka, topic_prefix: str) -> Iterator[SmallJob]:
    with SmallJob(kafka.bootstrap_servers, topic_prefix) as running:
        yield running


@pytest.fixture
def servers(kafka: EmbeddedKafka) -> str:
    return kafka.bootstrap_servers


@pytest.fixture
def topic(servers: str, topic_prefix: str) -> str:
    configs = {"max.message.bytes": str(4 * MIB)}
    return create_message_topic(KafkaConnection(servers), f"{topic_prefix}-messages", 2, configs=configs).name


@pytest.fixture
def payloads(servers: str) -> Iterator[KafkaPayloads]:
    made = KafkaPayloads(ClientSettings(bootstrap_servers=servers, client_id="reader"))
    yield made
    made.close()


def fill(servers: str, topic: str, values: list[bytes | None], partition: int = 0, **options: Any) -> None:
    producer = KafkaProducer(
        bootstrap_servers=servers, max_request_size=8 * MIB, linger_ms=20, batch_size=MIB // 4, **options
    )
    for number, value in enumerate(values):
        producer.send(topic, value, key=b"%d" % number, partition=partition)
    producer.close()


def transaction(servers: str, topic: str, values: list[bytes], *, commit: bool) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-tx")
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()
    (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close()


def test_ranges_of_compressed_batches_are_read_bit_by_bit(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    values: list[bytes | None] = [b"%d" % number * 50 for number in range(5_000)]
    fill(servers, topic, values, compression_type="gzip")
    fill(servers, topic, values[:100], partition=1)
    wanted = [(0, 31), (32, 63), (100, 110), (64, 99), (3_000, 3_999), (0, 0), (4_999, 4_999), (4_000, 4_998)]
    for first, last in wanted:
        fetched = payloads.fetch(topic, 0, [(first, last)], 10)
        assert {offset: found.value for offset, found in fetched.payloads.items()} == {
            offset: values[offset] for offset in range(first, last + 1)
        }
        other = payloads.fetch(topic, 1, [(first % 90, first % 90 + 2)], 10)
        assert sorted(other.payloads) == [first % 90, first % 90 + 1, first % 90 + 2]
    scattered = payloads.fetch(topic, 0, [(7, 7), (500, 520), (8, 9), (4_000, 4_000)], 10)
    assert sorted(scattered.payloads) == [7, 8, 9, *range(500, 521), 4_000]
    assert (scattered.gone, scattered.late) == ([], [])


def test_large_empty_and_absent_values_arrive_as_sent(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    values = [b"", None, b"x" * MIB, b"y" * (3 * MIB), b"small"]
    fill(servers, topic, values)
    found = payloads.fetch(topic, 0, [(0, 4)], 20).payloads
    assert [found[offset].value for offset in range(5)] == values
    assert [found[offset].key for offset in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_what_no_record_has_is_gone_and_what_is_not_there_yet_is_late(
    servers: str, topic: str, payloads: KafkaPayloads
) -> None:
    fill(servers, topic, [b"0", b"1"])
    transaction(servers, topic, [b"2", b"3"], commit=False)
    transaction(servers, topic, [b"5"], commit=True)
    fill(servers, topic, [b"7"])
    fetched = payloads.fetch(topic, 0, [(0, 7)], 10)
    assert {offset: found.value for offset, found in fetched.payloads.items()} == {0: b"0", 1: b"1", 5: b"5", 7: b"7"}
    assert fetched.gone == [(2, 4), (6, 6)]
    beyond = payloads.fetch(topic, 0, [(7, 9)], 0.5)
    assert (sorted(beyond.payloads), beyond.gone, beyond.late) == ([7], [], [(8, 9)])
    assert payloads.fetch(topic, 0, [(50, 51)], 0.5).late == [(50, 51)]


def test_an_open_transaction_is_late_and_then_there(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"0", partition=0)
    producer.flush()
    assert payloads.fetch(topic, 0, [(0, 0)], 0.5).late == [(0, 0)]
    producer.commit_transaction()
    producer.close()
    assert payloads.fetch(topic, 0, [(0, 0)], 10).payloads[0].value == b"0"


def test_what_retention_took_is_gone(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    fill(servers, topic, [b"%d" % number for number in range(10)])
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, 0): 6})
    admin.close()
    fetched = payloads.fetch(topic, 0, [(2, 7)], 10)
    assert (sorted(fetched.payloads), fetched.gone, fetched.late) == ([6, 7], [(2, 5)], [])


def test_from_sending_to_the_last_ack(servers: str, job: SmallJob, topic: str, topic_prefix: str) -> None:
    values = [b"%d" % number for number in range(500)]
    with (
        Producer(servers, prefix=topic_prefix, compression_type="gzip", dispatch=True) as producer,
        Consumer(servers, group="g", prefix=topic_prefix) as consumer,
    ):
        sent = [producer.send(topic, value, queue_id=0, tag="t", headers=[("n", value)]) for value in values]
        producer.send(topic, b"x" * MIB, queue_id=1)
        producer.flush()
        assert [future.result().queue_offset for future in sent] == list(range(500))
        first = consumer.pop(topic, 0, max_messages=400)
        assert [message.value for message in first] == values[:400]
        assert first.messages[7].tag == "t"
        assert first.messages[7].headers[0] == ("n", b"7")
        assert all_applied(consumer.ack(first))
        second = consumer.pop(topic, 0, max_messages=400)
        assert all_applied(consumer.ack(second.messages[:50]))
        assert all_applied(consumer.change_invisible(second.messages[50:], 0))
        third = consumer.pop(topic, 0, max_messages=400, poll_time_ms=5_000)
        assert [(message.value, message.attempt) for message in third] == [(value, 2) for value in values[450:]]
        assert all_applied(consumer.ack(third))
        assert consumer.pop(topic, 0).reason is Reason.NO_MESSAGE
        (large,) = consumer.pop(topic, 1).messages
        assert large.value == b"x" * MIB
    dispatches = [command for command in job.commands if isinstance(command, Dispatch) and command.queue_id == 0]
    assert sum(len(dispatch.ranges) for dispatch in dispatches) < 50
    with Consumer(servers, group="g", prefix=topic_prefix) as other:
        assert [message.attempt for message in other.pop(topic, 1)] == [2]


def test_a_topic_of_plain_producers_becomes_poppable(
    servers: str, job: SmallJob, topic: str, topic_prefix: str
) -> None:
    fill(servers, topic, [b"0", b"1", b"2"])
    transaction(servers, topic, [b"3"], commit=False)
    transaction(servers, topic, [b"5"], commit=True)
    for _ in range(2):
        zero, one = dispatch_existing(servers, topic, prefix=topic_prefix)
        assert (zero.first, zero.end, zero.written_count, zero.hole_count, zero.commit_position) == (0, 7, 4, 3, 7)
        assert (one.end, one.written_count) == (0, 0)
    assert job.commands
    with Consumer(servers, group="g", prefix=topic_prefix) as consumer:
        result = consumer.pop(topic, 0)
        assert [(message.queue_offset, message.value) for message in result] == [
            (0, b"0"), (1, b"1"), (2, b"2"), (5, b"5"),
        ]  # fmt: skip
        assert result.gone_count == 0


def test_an_answer_that_comes_late_is_asked_for_again_and_decided_once(
    servers: str, job: SmallJob, topic: str, topic_prefix: str
) -> None:
    fill(servers, topic, [b"0"])
    dispatch_existing(servers, topic, queue_ids=[0], prefix=topic_prefix)
    job.is_paused.set()
    before = sum(end_offsets(servers, job.topics.ops).values())

    def go_on_after_three() -> None:
        wait_for(lambda: sum(end_offsets(servers, job.topics.ops).values()) >= before + 3)
        job.is_paused.clear()

    with (
        Consumer(servers, group="g", prefix=topic_prefix, resend_after_ms=200) as consumer,
        ThreadPoolExecutor(1) as waiting,
    ):
        waiting.submit(go_on_after_three)
        (message,) = consumer.pop(topic, 0).messages
        assert (message.attempt, all_applied(consumer.ack([message]))) == (1, True)
    pops = [command for command in job.commands if command.op_id and getattr(command, "group", "") == "g"]
    assert len(pops) >= 3
    assert len({msgspec.json.encode(pop) for pop in pops}) == 1


def test_without_a_job_the_outcome_is_unknown_but_in_the_log(
    servers: str, job: SmallJob, topic: str, topic_prefix: str
) -> None:
    job.is_paused.set()
    with (
        Consumer(servers, group="g", prefix=topic_prefix, answer_timeout_ms=1_500) as consumer,
        pytest.raises(AnswerTimeout) as raised,
    ):
        consumer.pop(topic, 0)
    assert raised.value.in_log


def test_a_prefix_nobody_uses_is_named(servers: str) -> None:
    with pytest.raises(Invalid, match=r"nobody\.ops does not exist"):
        Transport(ClientSettings(bootstrap_servers=servers, client_id="c", prefix="nobody"))
