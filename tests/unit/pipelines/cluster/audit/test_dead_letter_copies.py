"""Claim: each dead letter is copied once, and the topic of the copies is read at a start and by repeated tasks alone.

Method: topics in memory, and tasks that run one after the other, here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from pipelines.cluster.audit import dead_letter_copies
from pipelines.cluster.audit.dead_letter_copies import MESSAGES_PER_TASK, DeadLetterCopies, in_tasks
from popstream.kafka_connection import KafkaConnection
from tests.support.letter_topics import HOUR_MS, LETTER, NOW_MS, Consumer, Topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.wire.dead_letter import DeadLetter

DEAD = "p.dead_letters"
LETTERS = [msgspec.structs.replace(LETTER, first=at, last=at, kafka_offset=at) for at in range(30)]


class Cluster:
    """Kafka and Spark: a task is repeated until it succeeds."""

    def __init__(self) -> None:
        self.topics = Topics()
        for _ in LETTERS:
            self.topics.add("orders", NOW_MS)
        self.topics.add(DEAD, 0)
        self.consumers: list[Consumer] = []
        self.attempt = 0
        self.fails_after: int | None = None
        self.sparkContext = self

    def start(self) -> DeadLetterCopies:
        return DeadLetterCopies(cast("Any", self), KafkaConnection("kafka:9092"), "p")

    @property
    def sent(self) -> list[int]:
        """Queue offsets of the copies."""
        copies = (self.topics.records[place] for place in self.topics.records if place.topic == DEAD)
        headers = [dict(record.headers) for records in copies for record in records if record.headers]
        return [int(each["popstream.queue_offset"]) for each in headers]

    @property
    def letters_read(self) -> int:
        return sum(place.topic == DEAD for consumer in self.consumers for place in consumer.read)

    def consumer(self, _: object) -> Consumer:
        self.consumers.append(Consumer(self.topics))
        return self.consumers[-1]

    def producer(self, **_: object) -> Cluster:
        return self

    def send(self, topic: str, *, headers: list[tuple[str, bytes]], **_: object) -> Any:
        if self.fails_after == 0:
            message = "the executor has ended"
            raise OSError(message)
        if self.fails_after is not None:
            self.fails_after -= 1
        self.topics.add(topic, NOW_MS, headers)
        return SimpleNamespace(get=lambda timeout: timeout)

    def broadcast(self, value: object) -> Any:
        return SimpleNamespace(value=value)

    def parallelize(self, tasks: list[Any], count: int) -> Any:
        assert len(tasks) == count

        def run(task: Callable[[list[Any]], None]) -> None:
            for each in tasks:
                for self.attempt in range(4):
                    try:
                        task([each])
                    except OSError:
                        self.fails_after = None
                    else:
                        break

        return SimpleNamespace(foreachPartition=run)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(dead_letter_copies, "message_consumer", made.consumer)
    monkeypatch.setattr(dead_letter_copies, "KafkaProducer", made.producer)
    monkeypatch.setattr(dead_letter_copies, "close_producer", lambda *_: None)
    context = SimpleNamespace(attemptNumber=lambda: made.attempt)
    monkeypatch.setattr(dead_letter_copies, "TaskContext", SimpleNamespace(get=lambda: context))
    return made


def encoded(letters: list[DeadLetter]) -> list[bytes]:
    return [msgspec.msgpack.encode(each) for each in letters]


def test_letters_are_copied_and_the_copies_not_read_again(cluster: Cluster) -> None:
    copies = cluster.start()
    for first in range(0, 30, 10):
        copies.copy(encoded(LETTERS[first : first + 10]))
    assert cluster.sent == list(range(30))
    assert cluster.letters_read == 0


def test_a_micro_batch_that_a_new_start_repeats_sends_what_is_missing(cluster: Cluster) -> None:
    cluster.start().copy(encoded(LETTERS[:7]))
    again = cluster.start()
    again.copy(encoded(LETTERS[:10]))
    again.copy(encoded(LETTERS[10:]))
    assert cluster.sent == list(range(30))
    assert cluster.letters_read == 7


def test_a_repeated_task_sends_what_the_one_before_has_not_sent(cluster: Cluster) -> None:
    cluster.fails_after = 4
    cluster.start().copy(encoded(LETTERS[:10]))
    assert cluster.sent == list(range(10))


def test_letters_of_a_shard_that_is_further_back_are_known(cluster: Cluster) -> None:
    """As where a new checkpoint decides again what another one has decided."""
    older = msgspec.structs.replace(LETTERS[0], at_ms=NOW_MS - HOUR_MS)
    cluster.topics.letter(older, 0, NOW_MS - HOUR_MS, topic=DEAD)
    cluster.topics.letter(LETTERS[1], 1, topic=DEAD)
    copies = cluster.start()
    copies.copy(encoded([LETTERS[1], LETTERS[2]]))
    copies.copy(encoded([older, LETTERS[3]]))
    assert sorted(cluster.sent) == [0, 1, 2, 3]


def test_tasks_have_as_many_letters_as_their_messages_allow() -> None:
    one, many = LETTERS[0], msgspec.structs.replace(LETTER, first=0, last=MESSAGES_PER_TASK - 2)
    assert list(in_tasks([many, one, one, many, many, one])) == [[many, one], [one, many], [many, one]]
    assert list(in_tasks([])) == []
    assert [len(task) for task in in_tasks([one] * (MESSAGES_PER_TASK + 1))] == [MESSAGES_PER_TASK, 1]
