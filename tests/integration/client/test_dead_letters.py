"""Claim: whenever a redrive is killed, the next one goes on, and each message is sent once; none is lost.

Method: a broker, letters as the job writes them, answers as it sends them, redrives that kill themselves at a point,
and others that refuse or interrupt them. What is committed to the message topic is compared with the letters.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from connectors.kafka.own_topics import Topics, ensure_topics
from connectors.kafka.topic_admin import create_message_topic, describe
from popstream import DeadLetters, Fenced, Invalid, LetterSelection
from popstream.dead_letters.handling_run import TRANSACTION_LETTERS_MAX
from popstream.dead_letters.kafka_letter_writer import CHUNK_LETTERS
from popstream.kafka_connection import KafkaConnection
from popstream.payload.redelivery import Redelivery
from popstream.send.backfill import COMMITTED_S_MAX
from popstream.topics.message_topics import TopicReader
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of
from popstream.wire.letter_handling import LetterHandling
from tests.support.left_behind import end_offsets
from tests.support.redrive_answers import RedriveAnswers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connectors.kafka.embedded import EmbeddedKafka
    from popstream import LettersReport
    from tests.support.processes.killed_redrive import Point

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

GROUP = "baristas"
QUEUES = 3


class Message:
    """A message that was given up."""

    def __init__(self, value: bytes) -> None:
        self.key = value
        self.value = value
        self.headers: list[tuple[str, bytes | None]] = [("trace", value)]


class Scene:
    """The topics of a job, with a message topic that it builds."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers, self.prefix = servers, prefix
        self.topics = Topics.of(prefix)
        ensure_topics(KafkaConnection(servers), self.topics)
        self.orders = f"{prefix}-orders"
        facts = create_message_topic(
            KafkaConnection(servers), self.orders, QUEUES, configs={"max.message.bytes": "100000"}
        )
        publisher = QueueTypesPublisher(KafkaConnection(servers), self.topics.queue_types)
        publisher.publish({(self.orders, facts.topic_id, "simple")})
        publisher.close()

    def give_up(self, values: Iterable[bytes]) -> None:
        """Write letters."""
        producer = KafkaProducer(bootstrap_servers=self.servers)
        sent = []
        for number, value in enumerate(values):
            letter = DeadLetter(self.orders, number % QUEUES, GROUP, number, number, "rejected", 1, 1, 5, 6, 0, number)
            copied = copy_of(letter, number, Message(value))
            sent.append(producer.send(self.topics.dead_letters, copied.value, copied.key, list(copied.headers)))
        producer.flush()
        assert all(future.succeeded() for future in sent)
        producer.close()

    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.servers, prefix=self.prefix)

    def redrive(self) -> LettersReport:
        with self.dead_letters() as dead_letters:
            return dead_letters.redrive()

    def kill_redrive(self, point: Point, number: int) -> None:
        arguments = [self.servers, self.prefix, point, str(number)]
        command = [sys.executable, "-m", "tests.support.processes.killed_redrive", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def sent(self) -> Counter[bytes]:
        """The values that are committed to the message topic."""
        return Counter(value for value, _ in self.records())

    def records(self) -> list[tuple[bytes, list[tuple[str, bytes]]]]:
        places = [TopicPartition(self.orders, number) for number in range(QUEUES)]
        consumer = KafkaConsumer(
            bootstrap_servers=self.servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        consumer.assign(places)
        end = consumer.end_offsets(places)
        found = []
        while any(consumer.position(place) < end[place] for place in places):
            for records in consumer.poll(timeout_ms=500).values():
                found += [(record.value, record.headers) for record in records]
        consumer.close()
        return found


@pytest.fixture
def scene(kafka: EmbeddedKafka, topic_prefix: str) -> Iterator[Scene]:
    scene = Scene(kafka.bootstrap_servers, topic_prefix)
    with RedriveAnswers(kafka.bootstrap_servers, topic_prefix):
        yield scene


def test_killed_at_every_kind_of_moment_it_goes_on_and_sends_each_message_once(scene: Scene) -> None:
    """The same letters all the way: each kill leaves what the one before it has left."""
    count, left = 4 * TRANSACTION_LETTERS_MAX - 100, TRANSACTION_LETTERS_MAX - 100
    values = [b"%04d" % number for number in range(count)]
    scene.give_up(values)
    done = 0
    kills: list[tuple[Point, int, int]] = [
        ("send", CHUNK_LETTERS // 2, 0),  # the first messages of a transaction
        ("send", 2 * CHUNK_LETTERS + 50, 0),  # records that say so, while other messages are in flight
        ("send", QUEUES + 2 * TRANSACTION_LETTERS_MAX, 0),  # the last of these records; before, each queue is announced
        ("commit", 1, 0),
        ("commit", 2, 1),
        ("committed", 1, 1),
        ("send", 2 * TRANSACTION_LETTERS_MAX + CHUNK_LETTERS + 50, 1),
    ]
    for point, number, transactions in kills:
        scene.kill_redrive(point, number)
        done += transactions * TRANSACTION_LETTERS_MAX
        # What was not committed is aborted now.
        with scene.dead_letters() as dead_letters:
            assert dead_letters.redrive(LetterSelection(group="nobody")).letters == 0
            assert sum(letter.handling is not None for letter in dead_letters.list(handled=True)) == done
        assert sum(scene.sent().values()) == done
    report = scene.redrive()
    assert (report.letters, report.duplicates, report.unredriven_count) == (left, 0, 0)
    assert scene.sent() == Counter(values)
    written = sum(end_offsets(scene.servers, scene.orders).values())
    assert written > count + 4 * CHUNK_LETTERS // 2  # also what was aborted
    assert scene.redrive().letters == 0


def test_a_redriven_message_is_for_its_group_in_its_queue_and_says_which_letter_it_was(scene: Scene) -> None:
    scene.give_up([b"mocha", b"latte"])
    with scene.dead_letters() as dead_letters:
        letters = {letter.value: letter for letter in dead_letters.list()}
        dead_letters.redrive(comment="the milk is back")
        handled = [*dead_letters.list(handled=True)]
    for value, headers in scene.records():
        found = dict(headers)
        assert found["trace"] == value
        assert Redelivery.parse(headers) == Redelivery(GROUP)
        assert json.loads(found["popstream-redriven"]) == {"letter": letters[value].letter_id, "count": 1}
        assert not any(name.startswith("popstream.") for name in found)
    assert len(handled) == 2
    for letter in handled:
        assert letter.handling is not None
        assert (letter.handling.sent, letter.handling.comment) == ([(0, 0)], "the milk is back")


def test_a_second_redrive_stops_the_first_and_nothing_is_sent_twice(scene: Scene) -> None:
    values = [b"%04d" % number for number in range(TRANSACTION_LETTERS_MAX + 600)]
    scene.give_up(values)
    with scene.dead_letters() as first:

        def interfere(_: LettersReport) -> None:
            assert scene.redrive().letters == 600

        with pytest.raises(Fenced, match="another redrive or purge"):
            first.redrive(on_progress=interfere)
    assert scene.sent() == Counter(values)


@pytest.mark.parametrize("count", [40, 3 * CHUNK_LETTERS])
def test_what_kafka_refuses_is_left_and_keeps_no_other_back(scene: Scene, count: int) -> None:
    """The topic takes records of 100,000 bytes. If it refuses one, others behind it are being sent."""
    values = [b"%04d" % number for number in range(count)]
    large = b"x" * 200_000
    scene.give_up([*values[:17], large, *values[17:]])
    report = scene.redrive()
    assert (report.letters, report.unredriven_count) == (count, 1)
    assert "MessageSizeTooLarge" in report.unredriven[0].why
    assert scene.sent() == Counter(values)
    with scene.dead_letters() as dead_letters:
        assert [letter.value for letter in dead_letters.list()] == [large]


def test_what_an_earlier_redrive_sent_to_a_topic_that_is_gone_keeps_no_other_back(scene: Scene) -> None:
    """One was deleted, and one was made again, without records. Nobody answers a dispatch."""
    empty = f"{scene.prefix}-empty"
    create_message_topic(KafkaConnection(scene.servers), empty, 1)
    fields: dict[str, Any] = {"v": 1, "action": "redriven", "at_ms": 1, "by": "anna", "call": "c", "group": GROUP}
    producer = KafkaProducer(bootstrap_servers=scene.servers)
    for number, topic in enumerate((f"{scene.prefix}-deleted", empty)):
        place: dict[str, Any] = {"partition": 0, "kafka_offset": number, "queue_id": 0, "queue_offset": 0}
        handling = LetterHandling(**fields, **place, topic=topic, to="group", sent=[(1, 2)])
        producer.send(scene.topics.dead_letters_handled, msgspec.json.encode(handling), b"%032x" % number, partition=0)
    producer.close()
    scene.give_up([b"mocha"])
    began_s = time.monotonic()
    assert scene.redrive().letters == 1
    assert scene.sent() == {b"mocha": 1}
    assert time.monotonic() - began_s < COMMITTED_S_MAX


def test_the_end_of_a_log_is_behind_what_is_not_committed(scene: Scene) -> None:
    producer = KafkaProducer(bootstrap_servers=scene.servers, transactional_id=scene.prefix)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(scene.orders, b"mocha", partition=0).get(60)
    with TopicReader(KafkaConnection(scene.servers), client_id="test") as reader:
        assert reader.read([scene.orders])[scene.orders].bounds([0]) == {0: (0, 0)}
        assert reader.written_end(scene.orders, 0) == 1
    producer.abort_transaction()
    producer.close()


def test_erased_letters_are_gone_and_others_are_not(scene: Scene) -> None:
    scene.give_up([b"1", b"2", b"3", b"4", b"5"])
    with scene.dead_letters() as dead_letters:
        letters = [*dead_letters.list()]
        kept = letters[-1]
        place = kept.partition, kept.kafka_offset
        others = frozenset((one.partition, one.kafka_offset) for one in letters) - {place}
        dead_letters.purge(LetterSelection(places=others))
        dead_letters.erase()
        assert [letter.value for letter in dead_letters.list(handled=True)] == [kept.value]
        assert dead_letters.erase() == {}
        dead_letters.purge()
        dead_letters.erase()
        assert [*dead_letters.list(handled=True)] == []


def test_topics_that_do_not_exist_are_named(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    """No job was ever started; and one of an older version, which has no topic for what is handled."""
    topics = Topics.of(topic_prefix)
    with DeadLetters(kafka.bootstrap_servers, prefix=topic_prefix) as dead_letters:
        with pytest.raises(Invalid, match=f"there is no topic {topics.dead_letters}: is the prefix right"):
            next(dead_letters.list())
        create_message_topic(kafka.connection, topics.dead_letters, 1)
        assert [*dead_letters.list()] == []
        with pytest.raises(Invalid, match=f"there is no topic {topics.dead_letters_handled}: a job of this version"):
            dead_letters.redrive()
        assert describe(kafka.connection, [topics.dead_letters_handled]) == {}
