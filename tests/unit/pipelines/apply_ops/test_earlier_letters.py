"""Claim: a letter that is in the topic is not sent again, and no other letter is left out.

Method: topics in memory, with letters as `copy_of` makes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka import TopicPartition

from pipelines.apply_ops.dead_letters import dead_letter_reader
from pipelines.apply_ops.dead_letters.dead_letter_reader import KafkaDeadLetterReader
from pipelines.apply_ops.dead_letters.earlier_letters import MARGIN_MS, EarlierLetters
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from popstream.wire.dead_letter_record import headers_of, identity_of
from tests.support.letter_topics import HOUR_MS, LETTER, NOW_MS, Consumer, Topics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popstream.wire.dead_letter import DeadLetter


def loaded(topics: Topics, next_offset: dict[int, int], undelivered: Iterable[DeadLetter] = ()) -> EarlierLetters:
    earlier = EarlierLetters("dead", "ops", next_offset, undelivered)
    earlier.load(Consumer(topics))
    return earlier


def test_a_letter_in_the_outbox_that_was_sent_is_recognised_once() -> None:
    topics = Topics()
    topics.letter(LETTER, 10, partition=1)
    earlier = loaded(topics, {0: 0}, [LETTER])
    assert not earlier.take(headers_of(LETTER, 11))
    assert earlier.take(headers_of(LETTER, 10))
    assert not earlier.take(headers_of(LETTER, 10))


@pytest.mark.parametrize(
    "other",
    [
        {"topic": "parcels"},
        {"queue_id": 1},
        {"group": "h"},
        {"kafka_offset": 100},
        {"partition": 1},
        {"epoch": 2},
    ],
    ids=str,
)
def test_another_letter_is_sent(other: dict[str, Any]) -> None:
    """As in an orderly lane, where a member that was rejected may be rejected again."""
    topics = Topics()
    topics.letter(LETTER, 10)
    earlier = loaded(topics, {0: 0}, [LETTER])
    assert not earlier.take(headers_of(msgspec.structs.replace(LETTER, **other), 10))


def test_a_restored_state_recognises_the_letters_of_all_that_it_decides_again() -> None:
    topics = Topics()
    for hours in range(10):
        topics.add("ops", hours * HOUR_MS)
        topics.letter(LETTER, hours, hours * HOUR_MS)
    earlier = loaded(topics, {0: 4})
    assert [earlier.take(headers_of(LETTER, hours)) for hours in range(10)] == [False] * 4 + [True] * 6


def test_clocks_of_host_and_broker_may_differ() -> None:
    topics = Topics()
    topics.add("ops", NOW_MS)
    topics.letter(LETTER, 10, NOW_MS - MARGIN_MS)
    assert loaded(topics, {0: 0}).take(headers_of(LETTER, 10))


def test_without_anything_to_send_again_no_letter_is_read() -> None:
    topics = Topics()
    topics.add("ops", NOW_MS)
    topics.letter(LETTER, 10)
    consumer = Consumer(topics)
    earlier = EarlierLetters("dead", "ops", {0: 1, 1: 0}, [])
    earlier.load(consumer)
    assert consumer.read == []
    assert not earlier.take(headers_of(LETTER, 10))


@pytest.mark.parametrize(
    "silent",
    [TopicPartition("ops", 1), TopicPartition("dead", 0)],
    ids=["without the time of an operation, later letters alone would be known", "a letter would be sent twice"],
)
def test_what_kafka_does_not_hand_out_is_an_error(silent: TopicPartition) -> None:
    """Which restarts the job; before it, nothing is sent."""
    topics = Topics()
    topics.add("ops", NOW_MS)
    topics.add("ops", NOW_MS - HOUR_MS, partition=1)
    topics.letter(LETTER, 10, NOW_MS - HOUR_MS)
    consumer = Consumer(topics)
    consumer.silent.add(silent)
    earlier = EarlierLetters("dead", "ops", {0: 0, 1: 0}, [])
    with pytest.raises(Unavailable, match=f"Kafka hands out no more records of {silent.topic}"):
        earlier.load(consumer)
    consumer.silent.clear()
    earlier.load(consumer)
    assert earlier.take(headers_of(LETTER, 10))


def test_a_topic_whose_partitions_are_not_known_is_an_error() -> None:
    topics = Topics()
    topics.add("ops", NOW_MS)
    with pytest.raises(Unavailable, match="Kafka does not say which partitions dead has"):
        loaded(topics, {0: 0})


def test_the_headers_of_the_message_do_not_count() -> None:
    assert identity_of([("popstream.group", b"x"), ("h", b"1"), *headers_of(LETTER, 3)]) == identity_of(
        headers_of(LETTER, 3)
    )


def test_the_reader_leaves_out_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And loads the earlier letters once, before the first letter."""
    topics = Topics()
    for _ in range(13):
        topics.add("orders", NOW_MS)
    topics.letter(LETTER, 11)
    monkeypatch.setattr(dead_letter_reader, "KafkaConsumer", lambda **_: Consumer(topics))
    reader = KafkaDeadLetterReader(KafkaConnection("kafka:9092"), EarlierLetters("dead", "ops", {}, [LETTER]))
    read: list[list[int]] = []
    failures: list[Exception] = []
    reader.start(lambda *given: read.append([queue_offset for queue_offset, _ in given[2]]), failures.append)
    for number in range(2):
        reader.read(Entry(EntryKind.DEAD_LETTER, 1, number, b""), LETTER)
    reader.close()
    assert (read, failures) == ([[10, 12], [10, 11, 12]], [])
