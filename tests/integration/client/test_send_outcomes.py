"""Claim: each message's future tells its own story, whatever happens to the broker. Method: real ones, broken for real.

What is in a topic is read back and held against what the futures said: a success is there once, at the place it names;
a message that is `NotWritten` or refused is not there; one of unknown outcome is there once or not at all.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from popstream import NotWritten, OutcomeUnknown, OutgoingMessage, Producer
from popstream.payload.payloads import Payload
from popstream.payload.unwrapped_records import records_of
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from popstream import Record, SendResult

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[3]
Story = tuple[bytes, "Future[SendResult]"]


@pytest.fixture(autouse=True)
def no_sockets_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Its log records hold exceptions, these hold the sockets, and pytest would hold the records to the end."""
    caplog.set_level(logging.CRITICAL, logger="kafka")
    yield
    gc.collect()


def contents(servers: str, topic: str) -> list[Record]:
    """Every message of a topic, out of plain records and units, in the order of each queue."""
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", group_id=None)
    places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    found: list[Record] = []
    while any(consumer.position(place) < ends[place] for place in places):
        for place, records in consumer.poll(timeout_ms=500).items():
            for record in records:
                payload = Payload(record.key, record.value, list(record.headers), record.timestamp)
                found += records_of(topic, place.partition, record.offset, payload, lambda _: None)
    consumer.close(autocommit=False)
    return found


def check(stories: Sequence[Story], found: Sequence[Record]) -> Counter[str]:
    """Hold what the futures said against what is there; how many ended how."""
    there = Counter(record.value for record in found)
    place_of = {record.value: (record.queue_id, record.queue_offset, record.inner_index) for record in found}
    ends: Counter[str] = Counter()
    for value, future in stories:
        assert future.done(), "a message without an end"
        error = future.exception(0)
        if error is None:
            result = future.result(0)
            assert there[value] == 1, (value, there[value])
            assert place_of[value] == (result.queue_id, result.queue_offset, result.inner_index)
        elif isinstance(error, NotWritten | Invalid):
            assert there[value] == 0, (value, error)
        else:
            assert isinstance(error, OutcomeUnknown), error
            assert there[value] <= 1, (value, there[value])
        ends[type(error).__name__ if error is not None else "success"] += 1
    assert there.keys() <= {value for value, _ in stories}
    return ends


def in_order_of_each_key(found: Sequence[Record]) -> bool:
    """Values are `<number>`, sent in their order."""
    last: dict[bytes | None, int] = {}
    for record in found:
        number = int(record.value or b"0")
        if last.get(record.key, -1) >= number:
            return False
        last[record.key] = number
    return True


@pytest.mark.parametrize(
    ("queue_type", "count"),
    [
        ("batch", 40_000),
        pytest.param("batch", 200_000, marks=pytest.mark.long),
        pytest.param("simple", 200_000, marks=pytest.mark.long),
    ],
)
def test_a_broker_killed_amid_many_sends(own_kafka: EmbeddedKafka, queue_type: Any, count: int) -> None:
    """By SIGKILL, and started again: every success is there exactly once, every other message has an exception."""
    create_message_topic(own_kafka.connection, "orders", 2)
    stories: list[Story] = []
    with Producer(own_kafka.bootstrap_servers, queue_types={"orders": queue_type}) as producer:
        producer.send("orders", b"0", key=b"0").result(30)

        def break_it() -> None:
            while len(stories) < count // 2:
                time.sleep(0.001)
            own_kafka.kill()
            time.sleep(2)
            own_kafka.start()

        breaking = threading.Thread(target=break_it)
        breaking.start()
        for number in range(1, count):
            value = b"%d" % number
            stories += [(value, producer.send("orders", value, key=b"%d" % (number % 50)))]
        breaking.join()
        producer.flush()
    found = [record for record in contents(own_kafka.bootstrap_servers, "orders") if record.value != b"0"]
    ends = check(stories, found)
    assert ends["success"] > count // 2
    assert in_order_of_each_key(found)
    print(queue_type, dict(ends))


@pytest.mark.long
def test_a_broker_that_is_away_for_30_seconds_and_comes_back(own_kafka: EmbeddedKafka) -> None:
    create_message_topic(own_kafka.connection, "orders", 1)
    stories: list[Story] = []

    def send(producer: Producer, number: int, **options: Any) -> None:
        stories.append((b"%d" % number, producer.send("orders", b"%d" % number, key=b"k", **options)))

    with Producer(own_kafka.bootstrap_servers, queue_types={"orders": "batch"}, delivery_timeout_ms=20_000) as producer:
        for number in range(100):
            send(producer, number)
        producer.flush()
        own_kafka.kill()
        back_s = time.monotonic() + 30
        for number in range(100, 400):
            send(producer, number)
            time.sleep(max(0.0, back_s - time.monotonic()) / (400 - number))
        own_kafka.start()
        for number in range(400, 500):
            send(producer, number)
        producer.flush()
    found = contents(own_kafka.bootstrap_servers, "orders")
    ends = check(stories, found)
    assert in_order_of_each_key(found)
    assert all(future.exception(0) is None for _, future in stories[:100])
    assert stories[-1][1].exception(0) is None
    assert ends["NotWritten"] > 0
    print(dict(ends))


def test_a_broker_whose_disk_is_full(own_kafka: EmbeddedKafka) -> None:
    """No file of its may grow beyond 1 MiB any more: the write fails, and the broker gives up its log directory."""
    create_message_topic(own_kafka.connection, "orders", 1)
    stories: list[Story] = []
    with Producer(own_kafka.bootstrap_servers, queue_types={"orders": "batch"}, delivery_timeout_ms=5_000) as producer:
        producer.send("orders", b"first", queue_id=0).result(30)
        stories.append((b"first", producer.send("orders", b"first", queue_id=0)))
        stories.clear()
        limits = resource.prlimit(own_kafka.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(own_kafka.pid, resource.RLIMIT_FSIZE, (1024 * 1024, limits[1]))
        for number in range(300):
            value = b"%d " % number + b"x" * 8_192
            stories.append((value, producer.send("orders", value, queue_id=0)))
        producer.flush()
        own_kafka.kill()
        own_kafka.start()
        last = producer.send("orders", b"last", queue_id=0)
        stories.append((b"last", last))
        producer.flush()
        assert last.result(0).queue_offset > 0
    found = [record for record in contents(own_kafka.bootstrap_servers, "orders") if record.value != b"first"]
    ends = check(stories, found)
    assert ends["success"] > 50
    assert ends["success"] < len(stories)
    print(dict(ends))


@pytest.mark.parametrize("queue_type", ["batch", "simple"])
def test_a_message_over_the_brokers_limit_fails_alone(kafka: EmbeddedKafka, topic_prefix: str, queue_type: Any) -> None:
    create_message_topic(kafka.connection, topic_prefix, 1, configs={"max.message.bytes": "50000"})
    stories: list[Story] = []
    with Producer(kafka.bootstrap_servers, queue_types={topic_prefix: queue_type}) as producer:
        for number in range(200):
            value = b"%d" % number + (b" " * 60_000 if number in {50, 150} else b"")
            stories.append((value, producer.send(topic_prefix, value, key=b"k")))
        producer.flush()
        stories.append((b"999", producer.send(topic_prefix, b"999", key=b"k")))
    found = contents(kafka.bootstrap_servers, topic_prefix)
    assert check(stories, found) == {"success": 199, "Invalid": 2}
    assert in_order_of_each_key(found)


def test_a_unit_over_the_brokers_limit_is_split(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    create_message_topic(kafka.connection, topic_prefix, 1, configs={"max.message.bytes": "5000"})
    with Producer(kafka.bootstrap_servers, queue_types={topic_prefix: "batch"}) as producer:
        messages = [OutgoingMessage(topic=topic_prefix, value=b"%d" % number + b" " * 1_000) for number in range(10)]
        futures = producer.send_many(messages)
        producer.flush()
    found = contents(kafka.bootstrap_servers, topic_prefix)
    assert check(
        [(message.value or b"", future) for message, future in zip(messages, futures, strict=True)], found
    ) == {"success": 10}
    assert {record.inner_count for record in found} == {1}


def test_one_message_without_a_key_spoils_no_batch_of_a_compacted_topic(
    kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    """Nobody has told the producer that Kafka compacts it: the broker refuses the whole batch for one record."""
    create_message_topic(kafka.connection, topic_prefix, 1, configs={"cleanup.policy": "compact"})
    stories: list[Story] = []
    with Producer(kafka.bootstrap_servers, delivery_timeout_ms=10_000) as producer:
        for number in range(20):
            key = None if number == 10 else b"%d" % number
            stories.append((b"%d" % number, producer.send(topic_prefix, b"%d" % number, key=key, queue_id=0)))
        producer.flush()
        stories.append((b"99", producer.send(topic_prefix, b"99", key=b"99", queue_id=0)))
    ends = check(stories, contents(kafka.bootstrap_servers, topic_prefix))
    assert ends == {"success": 20, "Invalid": 1}
    assert stories[10][1].exception(0)


def test_a_topic_that_does_not_exist_is_told_soon_and_may_come(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    with Producer(kafka.bootstrap_servers) as producer:
        began_s = time.monotonic()
        with pytest.raises(Invalid, match="does not exist"):
            producer.send(topic_prefix, b"v").result(0)
        assert time.monotonic() - began_s < producer.settings.delivery_timeout_ms / 1000
        create_message_topic(kafka.connection, topic_prefix, 1)
        assert producer.send(topic_prefix, b"v").result(30).queue_offset == 0


def test_what_need_not_wait_for_the_store_is_written_too(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    create_message_topic(kafka.connection, topic_prefix, 1)
    stories: list[Story] = []
    with Producer(kafka.bootstrap_servers, queue_types={topic_prefix: "batch"}, compression_type="gzip") as producer:
        for number in range(100):
            waits = number % 2 == 0
            future = producer.send(topic_prefix, b"%d" % number, key=b"k", wait_for_store=waits)
            stories.append((b"%d" % number, future))
    found = contents(kafka.bootstrap_servers, topic_prefix)
    assert check(stories, found) == {"success": 100}
    assert in_order_of_each_key(found)


def test_a_process_that_ends_without_closing_loses_nothing(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    create_message_topic(kafka.connection, topic_prefix, 1)
    script = (
        "import sys; from popstream import Producer\n"
        "producer = Producer(sys.argv[1], batch_max_delay_ms=30_000, queue_types={sys.argv[2]: 'batch'})\n"
        "for number in range(100): producer.send(sys.argv[2], b'%d' % number, wait_for_store=number % 2 == 0)\n"
    )
    command = [sys.executable, "-c", script, kafka.bootstrap_servers, topic_prefix]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert len(contents(kafka.bootstrap_servers, topic_prefix)) == 100


def test_many_threads_that_wait_share_batches(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    create_message_topic(kafka.connection, topic_prefix, 1)
    with Producer(kafka.bootstrap_servers, queue_types={topic_prefix: "batch"}) as producer:
        results: list[SendResult] = []

        def send() -> None:
            results.extend(producer.send_and_wait(topic_prefix, b"v") for _ in range(20))

        threads = [threading.Thread(target=send) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({(result.queue_offset, result.inner_index) for result in results}) == 640
    assert len({result.queue_offset for result in results}) < 320
