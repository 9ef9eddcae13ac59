"""Claim: payloads come from a real Kafka as its log has them, once for all who want them, and with bounded memory.

Method: a broker; logs with every kind of gap; threads that wait until the log changes, never for a time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import msgspec
import pytest
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from connectors.local_servers.loopback import free_port
from popstream.kafka_connection import KafkaConnection
from popstream.payload import kafka_payloads
from popstream.payload.kafka_payloads import KafkaPayloads
from popstream.payload.partition_reader import PartitionReader
from popstream.payload.payloads import FetchCounts, Payload
from popstream.payload.shared_payloads import shared_payloads
from popstream.settings import ClientSettings, FetchClient
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
LONG_S = 200.0


@pytest.fixture
def servers(kafka: EmbeddedKafka) -> str:
    return kafka.bootstrap_servers


@pytest.fixture
def topic(servers: str, topic_prefix: str) -> str:
    return create_message_topic(
        KafkaConnection(servers), topic_prefix, 3, configs={"max.message.bytes": str(8 * MIB)}
    ).name


@pytest.fixture(params=get_args(FetchClient))
def settings(servers: str, request: pytest.FixtureRequest) -> ClientSettings:
    return ClientSettings(bootstrap_servers=servers, client_id="reader", fetch_client=request.param)


@pytest.fixture
def payloads(settings: ClientSettings) -> Iterator[KafkaPayloads]:
    made = KafkaPayloads(settings)
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def fill(servers: str, topic: str, values: list[bytes], partition: int = 0, **options: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, max_request_size=8 * MIB, linger_ms=20, **options)
    for value in values:
        producer.send(topic, value, key=b"key", partition=partition)
    producer.close()


def begin(servers: str, topic: str, values: list[bytes], partition: int = 0) -> Any:
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-{partition}")
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush()
    return producer


def abort(servers: str, topic: str, values: list[bytes]) -> None:
    producer = begin(servers, topic, values)
    producer.abort_transaction()
    producer.close()


def cut(servers: str, topic: str, start: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, 0): start})
    admin.close()


def wait_until_it_rests(payloads: KafkaPayloads) -> None:
    reader: Any = payloads._reader
    while any(getattr(place, "is_assigned", False) for place in reader._places.values()):
        time.sleep(0.05)


def settled_counts(payloads: KafkaPayloads) -> FetchCounts:
    """librdkafka tells how many bytes it has received once a second."""
    if isinstance(payloads._reader, PartitionReader):
        return payloads.counts()
    wait_until_it_rests(payloads)
    while True:
        before = payloads.counts()
        time.sleep(2.5)
        if payloads.counts() == before and before.bytes_read:
            return before


def numbers(count: int, size_bytes: int = 8) -> list[bytes]:
    return [(b"%08d" % number).ljust(size_bytes, b".") for number in range(count)]


def test_an_aborted_transaction_and_control_records_are_gone(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    fill(servers, topic, numbers(2))
    abort(servers, topic, numbers(600))
    fill(servers, topic, numbers(2))
    fetched = payloads.fetch(topic, 0, [(0, 1), (3, 40), (600, 604)], LONG_S)
    assert ([*fetched.payloads], fetched.gone, fetched.late) == ([0, 1, 603, 604], [(3, 40), (600, 602)], [])
    assert [offset for offset, _ in payloads.read(topic, 0, 1, 2, LONG_S)] == [1, 603]


def test_what_compaction_took_is_gone(servers: str, topic_prefix: str, payloads: KafkaPayloads) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "segment.bytes": str(MIB),
    }
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic_prefix, 1, 1, topic_configs=configs)])
    admin.close()

    def offsets_left() -> list[int]:
        consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic_prefix, 0)])
        left: list[int] = []
        while not left or left[-1] < 2_999:
            left += [record.offset for records in consumer.poll(timeout_ms=1_000).values() for record in records]
        consumer.close()
        return left

    # One key, so that of each segment that is not written any more only the last record is left.
    fill(servers, topic_prefix, numbers(3_000, 1_000))
    while True:
        left = offsets_left()
        fetched = payloads.fetch(topic_prefix, 0, [(0, 2_999)], LONG_S)
        # The segments are compacted one after the other: what was fetched is judged if nothing was removed meanwhile.
        if len(left) < 3_000 and left == offsets_left():
            break
        time.sleep(0.5)
    assert [*fetched.payloads] == left
    assert sum(last - first + 1 for first, last in fetched.gone) == 3_000 - len(left)
    assert (fetched.late, fetched.left) == ([], [])


def test_what_retention_took_is_gone(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    fill(servers, topic, numbers(2_000))
    cut(servers, topic, 1_500)
    fetched = payloads.fetch(topic, 0, [(0, 9), (700, 700), (1_400, 1_501)], LONG_S)
    assert ([*fetched.payloads], fetched.gone) == ([1_500, 1_501], [(0, 9), (700, 700), (1_400, 1_499)])
    # The log is cut while the fetcher stands in it.
    assert [*payloads.fetch(topic, 0, [(1_510, 1_511)], LONG_S).payloads] == [1_510, 1_511]
    wait_until_it_rests(payloads)  # librdkafka reads ahead: it would have the record before it is deleted
    fill(servers, topic, numbers(3))
    cut(servers, topic, 2_001)
    assert payloads.fetch(topic, 0, [(2_000, 2_001)], LONG_S).gone == [(2_000, 2_000)]


def test_what_is_not_written_yet_is_late_and_then_there(
    servers: str, topic: str, payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    fill(servers, topic, numbers(2))
    payloads.fetch(topic, 0, [(0, 1)], LONG_S)  # so that it has connected
    assert payloads.fetch(topic, 0, [(1, 2), (30, 31)], 0.3).late == [(2, 2), (30, 31)]
    waiting = pool.submit(payloads.fetch, topic, 0, [(30, 31)], LONG_S)
    fill(servers, topic, numbers(100))
    assert [*waiting.result().payloads] == [30, 31]


def test_a_partition_that_does_not_exist_is_late(topic: str, payloads: KafkaPayloads) -> None:
    assert payloads.fetch(topic, 99, [(0, 1)], 0.3).late == [(0, 1)]
    assert payloads.fetch(f"{topic}-not", 0, [(0, 1)], 0.3).late == [(0, 1)]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_two_threads_that_want_the_same_cost_one_transfer(
    servers: str, topic: str, payloads: KafkaPayloads, pool: ThreadPoolExecutor, codec: str | None
) -> None:
    values = numbers(4_000, 500)
    fill(servers, topic, values, compression_type=codec, batch_size=MIB // 4)

    def drain(_: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        for first in range(0, 4_000, 50):
            fetched = payloads.fetch(topic, 0, [(first, first + 49)], LONG_S)
            found += [fetched.payloads[offset].value for offset in range(first, first + 50)]
        return found

    assert [*pool.map(drain, range(3))] == [values] * 3
    counts = settled_counts(payloads)
    assert counts.records_delivered == 12_000
    assert counts.records_read == 4_000
    assert counts.bytes_delivered == 3 * 4_000 * 503
    # Three transfers are 6 MB. One of them may read a producer's batch twice, where it had caught up with what was
    # wanted, and says more the longer it waits: how much depends on who of the three comes first.
    print("BYTES", counts)
    assert counts.bytes_read < (4_000_000 if codec is None else 500_000)


def test_groups_far_apart_in_one_queue_read_each_part_about_once(
    servers: str, topic: str, payloads: KafkaPayloads
) -> None:
    fill(servers, topic, numbers(20_000, 200), batch_size=MIB // 4)
    for first in range(0, 10_000, 50):
        for start in (0, 10_000):
            fetched = payloads.fetch(topic, 0, [(start + first, start + first + 49)], LONG_S)
            assert [*fetched.payloads] == [*range(start + first, start + first + 50)]
    counts = settled_counts(payloads)
    assert counts.records_read <= 1.1 * 20_000
    # At each of its turns a group makes kafka-python read up to 2 MiB ahead, which the other one's turn throws away.
    print("BYTES", counts)
    assert counts.bytes_read < 30 * counts.bytes_delivered


def test_an_open_transaction_holds_up_only_those_who_want_it(
    servers: str, topic: str, payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    fill(servers, topic, numbers(1_000))
    fill(servers, topic, numbers(1_000), partition=1)
    producer = begin(servers, topic, numbers(3))
    blocked = [pool.submit(payloads.fetch, topic, 0, [(first, 1_001)], LONG_S) for first in (1_000, 1_001)]
    absent = pool.submit(payloads.fetch, topic, 99, [(0, 0)], 1.0)
    for first in range(0, 1_000, 50):
        assert len(payloads.fetch(topic, 1, [(first, first + 49)], LONG_S).payloads) == 50
    # Nor those who want what comes before it in the same queue.
    for first in (0, 700, 200):
        assert len(payloads.fetch(topic, 0, [(first, first + 49)], LONG_S).payloads) == 50
    assert not any(future.done() for future in blocked)
    assert payloads.fetch(topic, 0, [(1_002, 1_002)], 0.3).late == [(1_002, 1_002)]
    producer.commit_transaction()
    producer.close()
    assert [[*future.result().payloads] for future in blocked] == [[1_000, 1_001], [1_001]]
    assert absent.result().late == [(0, 0)]


def test_a_partition_left_in_the_middle_of_a_batch_is_read_on_after_another_has_ended(
    servers: str, topic: str, payloads: KafkaPayloads
) -> None:
    """kafka-python 3.0.12 loses a resumed partition when the one unpacked meanwhile is exhausted."""
    fill(servers, topic, numbers(5_000), batch_size=MIB // 4)
    fill(servers, topic, numbers(100), partition=1)
    for first in range(0, 5_000, 500):
        assert len(payloads.fetch(topic, 0, [(first, first + 499)], LONG_S).payloads) == 500
        # Beyond the end, so that it is read until nothing is left.
        assert payloads.fetch(topic, 1, [(100, 100)], 0.1).late == [(100, 100)]
    assert payloads.counts().records_read == 5_000


def test_a_damaged_batch_fails_only_those_who_want_it(
    kafka: EmbeddedKafka, topic: str, payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    for partition in (0, 1):
        fill(kafka.bootstrap_servers, topic, numbers(100), partition)
        fill(kafka.bootstrap_servers, topic, [b"damaged"], partition)
        fill(kafka.bootstrap_servers, topic, numbers(100), partition)
    (log,) = kafka.folder.glob(f"data/{topic}-0/*0.log")
    stored = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(stored.index(b"damaged"))
        file.write(b"D")
    for _ in range(2):
        wanted = [(0, 99), (100, 100), (90, 110), (101, 200)]
        damaged, good = (
            [pool.submit(payloads.fetch, topic, queue_id, [pair], LONG_S) for pair in wanted] for queue_id in (0, 1)
        )
        assert [len(future.result().payloads) for future in good] == [100, 1, 21, 100]
        assert [type(future.exception()) for future in damaged] == [type(None), Corrupt, Corrupt, type(None)]
    assert len(payloads.fetch(topic, 0, [(0, 99)], LONG_S).payloads) == 100
    assert len(payloads.fetch(topic, 0, [(101, 200)], LONG_S).payloads) == 100


def test_large_records_come_as_far_as_they_fit(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    fill(servers, topic, [bytes([number]) * MIB for number in range(20)])
    fill(servers, topic, [b"x" * 6 * MIB, b"small"])
    todo, brought = [(0, 21)], []
    while todo:
        fetched = payloads.fetch(topic, 0, todo, LONG_S, bytes_max=5 * MIB)
        assert (fetched.gone, fetched.late) == ([], [])
        brought.append([*fetched.payloads])
        todo = fetched.left
    # The keys make five of them too many.
    assert brought == [*([first, first + 1, first + 2, first + 3] for first in range(0, 20, 4)), [20], [21]]
    counts = settled_counts(payloads)
    assert counts.bytes_delivered == 26 * MIB + 5 + 22 * 3
    print("BYTES", counts)
    assert counts.bytes_read < 28 * MIB
    assert payloads._planner._cache.size_bytes <= kafka_payloads.CACHE_BYTES_MAX


def test_peeking_begins_at_the_start_and_ends_at_the_end(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    def peek(queue_offset: int, count: int, queue_id: int = 0) -> list[int]:
        return [offset for offset, _ in payloads.read(topic, queue_id, queue_offset, count, 10_000)]

    assert peek(0, 5) == []
    fill(servers, topic, numbers(10))
    assert peek(0, 3) == [0, 1, 2]
    assert peek(8, 5) == [8, 9]
    assert peek(10, 5) == peek(500, 5) == peek(0, 0) == peek(0, 5, queue_id=1) == []
    producer = begin(servers, topic, numbers(2))
    assert peek(7, 9) == [7, 8, 9]
    assert peek(10, 1) == []
    producer.commit_transaction()
    producer.close()
    # Kafka confirms a commit before it writes the marker.
    while not peek(10, 1):
        time.sleep(0.01)
    assert peek(9, 9) == [9, 10, 11]
    cut(servers, topic, 4)
    assert peek(-5, 2) == peek(1, 2) == [4, 5]
    ((_, payload),) = payloads.read(topic, 0, 4, 1, 10_000)
    assert (payload.key, payload.value, payload.headers) == (b"key", b"00000004", [])


def test_what_does_not_exist_is_refused(topic: str, payloads: KafkaPayloads) -> None:
    for name, queue_id in ((topic, 99), (f"{topic}-not", 0), (topic, -1), ("no topic's name", 0)):
        with pytest.raises(Invalid, match="does not exist"):
            payloads.read(name, queue_id, 0, 1, LONG_S)
    assert payloads.queue_ids(topic) == [0, 1, 2]
    for name in (f"{topic}-not", "no topic's name"):
        with pytest.raises(Invalid, match="does not exist"):
            payloads.queue_ids(name)


def test_offsets_in_any_order_are_found_in_any_of_the_queues(
    servers: str, topic: str, payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    """A record that is read before a seek must not be taken for one after it: what is between would be gone."""
    for partition in range(3):
        fill(servers, topic, numbers(6_000, 200), partition, batch_size=MIB // 16)

    def read(number: int) -> None:
        chance = random.Random(number)
        for _ in range(40):
            queue_id, first = chance.randrange(3), chance.randrange(5_900)
            wanted = [*range(first, first + chance.choice((1, 40, 100)))]
            fetched = payloads.fetch(topic, queue_id, [(wanted[0], wanted[-1])], LONG_S)
            assert ([*fetched.payloads], fetched.gone, fetched.late) == (wanted, [], [])
            assert [int(found.value[:8]) for found in fetched.payloads.values() if found.value] == wanted

    assert [*pool.map(read, range(3))] == [None] * 3


def test_queues_in_turns_are_read_about_once(servers: str, topic_prefix: str, payloads: KafkaPayloads) -> None:
    topic = create_message_topic(KafkaConnection(servers), topic_prefix, 12).name
    for partition in range(12):
        fill(servers, topic, numbers(4_000, 100), partition, batch_size=MIB // 4)
    for first in range(0, 4_000, 250):
        for partition in range(12):
            fetched = payloads.fetch(topic, partition, [(first, first + 249)], LONG_S)
            assert [*fetched.payloads] == [*range(first, first + 250)]
    counts = settled_counts(payloads)
    assert counts.records_read <= 1.2 * 48_000
    # librdkafka throws away what it has fetched of one when others are wanted.
    assert counts.bytes_read < 4 * counts.bytes_delivered


def test_a_record_arrives_as_it_was_sent(servers: str, topic: str, payloads: KafkaPayloads) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", b""), ("é", b"\xff"), ("", b"2")]
    producer = KafkaProducer(bootstrap_servers=servers)
    producer.send(topic, b"", partition=0, headers=headers, timestamp_ms=1_700_000_000_123)
    producer.send(topic, None, key=b"", partition=0, timestamp_ms=5)
    producer.close()
    other = ConfluentProducer({"bootstrap.servers": servers})
    other.produce(topic, b"v", partition=0, headers=[("none", None)], timestamp=6)
    other.flush()
    assert payloads.fetch(topic, 0, [(0, 2)], LONG_S).payloads == {
        0: Payload(None, b"", headers, 1_700_000_000_123),
        1: Payload(b"", None, [], 5),
        2: Payload(None, b"v", [("none", None)], 6),
    }


def test_without_a_broker_it_is_unavailable(settings: ClientSettings) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    kafka = {"bootstrap_timeout_ms": 300}
    payloads = KafkaPayloads(msgspec.structs.replace(settings, bootstrap_servers=nowhere, kafka=kafka))
    with pytest.raises(Unavailable, match="orders/0 cannot be read"):
        payloads.fetch("orders", 0, [(0, 0)], LONG_S)
    payloads.close()


def test_a_broker_that_comes_back_is_read_from(own_kafka: EmbeddedKafka, settings: ClientSettings) -> None:
    servers = own_kafka.bootstrap_servers
    topic = create_message_topic(KafkaConnection(servers), "orders", 1).name
    fill(servers, topic, numbers(10))
    payloads = KafkaPayloads(msgspec.structs.replace(settings, bootstrap_servers=servers))
    assert len(payloads.fetch(topic, 0, [(0, 9)], LONG_S).payloads) == 10
    own_kafka.stop()
    assert payloads.fetch(topic, 0, [(10, 10)], 0.5).late == [(10, 10)]
    own_kafka.start()
    fill(servers, topic, numbers(10))
    assert [*payloads.fetch(topic, 0, [(10, 19)], LONG_S).payloads] == [*range(10, 20)]
    payloads.close()


FORKS = """
import os, sys
from kafka import TopicPartition
from popstream.payload.payload_reader import make_reader
from popstream.settings import ClientSettings
servers, topic, fetch_client = sys.argv[1:]
reader = make_reader(ClientSettings(bootstrap_servers=servers, client_id="reader", fetch_client=fetch_client))
while not reader.read({TopicPartition(topic, 0): 0}):
    pass
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.close()
else:
    del reader
"""


def test_a_child_process_may_forget_what_its_parent_reads_with(
    servers: str, topic: str, settings: ClientSettings
) -> None:
    """librdkafka would abort the child, as the threads of the consumer are not there."""
    fill(servers, topic, numbers(10))
    subprocess.run([sys.executable, "-c", FORKS, servers, topic, settings.fetch_client], check=True, timeout=100)


class NotUtf8(str):
    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff"


def test_a_record_whose_header_has_no_name_fails_only_those_who_want_it(
    servers: str, topic: str, payloads: KafkaPayloads
) -> None:
    producer = KafkaProducer(bootstrap_servers=servers)
    for name in ("good", NotUtf8("bad"), "good"):
        producer.send(topic, b"", partition=0, headers=[(name, b"")]).get()
    producer.close()
    for first, last in ((0, 0), (2, 2)):
        assert [*payloads.fetch(topic, 0, [(first, last)], LONG_S).payloads] == [first]
    for first in (0, 1, 0):
        with pytest.raises(Corrupt):
            payloads.fetch(topic, 0, [(first, 2)], LONG_S)


def test_a_child_process_reads_beside_its_parent(servers: str, topic: str, settings: ClientSettings) -> None:
    fill(servers, topic, numbers(2_000, 1_000))
    share = shared_payloads(settings)
    assert len(share.fetch(topic, 0, [(0, 9)], LONG_S).payloads) == 10
    child = os.fork()
    if not child:
        code = 1
        try:
            found = share.fetch(topic, 0, [(0, 1_999)], LONG_S).payloads
            share.close()
            code = 0 if len(found) == 2_000 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(share.fetch(topic, 0, [(0, 1_999)], LONG_S).payloads) == 2_000
    share.close()
