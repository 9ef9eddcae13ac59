"""Publishing from the outbox: dead letters of any number and size, and failures of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from broker_state.store.rocks_store import RocksStore
from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.dead_letters.dead_letter_reader import KafkaDeadLetterReader
from pipelines.apply_ops.dead_letters.earlier_letters import EarlierLetters
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.publish import Publisher
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, PopstreamError, Unavailable
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import COPY_BYTES_MAX, copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPICS = Topics.of("popstream")
LETTER = DeadLetter("orders", 0, "g", 10, 12, "attempt_limit", 16, 1, 7, 8, 0, 99)


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Sent:
    """A future that the test completes."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.on_success: Callable[[Any], object] = print
        self.on_failure: Callable[[Exception], object] = print

    def add_callback(self, callback: Callable[[Any], object]) -> None:
        self.on_success = callback

    def add_errback(self, callback: Callable[[Exception], object]) -> None:
        self.on_failure = callback


class Producer:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.is_closed = False
        self.close_timeout_s = -1.0

    def send(self, topic: str, **record: Any) -> Sent:
        self.sent.append(Sent({"topic": topic, **record}))
        return self.sent[-1]

    def close(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self.is_closed, self.close_timeout_s = True, timeout


class Prefix:
    """Ours, until the test fences it."""

    fenced: Fenced | None = None

    @property
    def is_fenced(self) -> bool:
        return self.fenced is not None

    def require(self) -> None:
        if self.fenced is not None:
            raise self.fenced


class Letters:
    """Reads the given messages one by one, and notes how many were sent before each."""

    def __init__(self, producer: Producer, messages: list[tuple[int, Message | None]]) -> None:
        self._producer = producer
        self._messages = messages
        self.sent_before: list[int] = []

    def start(self, on_read: Callable[..., None], on_failure: Callable[[Exception], None]) -> None:
        self._on_read, self.on_failure = on_read, on_failure

    def read(self, entry: Entry, letter: DeadLetter) -> None:
        self._on_read(entry, letter, self._one_by_one())

    def _one_by_one(self) -> Iterator[tuple[int, Message | None]]:
        for message in self._messages:
            self.sent_before.append(len(self._producer.sent))
            yield message

    def close(self) -> None:
        """Nothing is in flight."""


class Scene:
    def __init__(self, store: RocksStore, *messages: tuple[int, Message | None]) -> None:
        self.outbox = Outbox(store)
        entry = Entry(EntryKind.DEAD_LETTER, 1, 0, msgspec.msgpack.encode(LETTER))
        store.write_changes(self.outbox.changes([entry]))
        self.outbox.written([entry])
        self.producer = Producer()
        self.letters = Letters(self.producer, list(messages))
        self.failures: list[PopstreamError] = []
        self.prefix = Prefix()
        self.publisher = Publisher(TOPICS, self.outbox, self.producer, self.letters, self.prefix, self.failures.append)
        self.publisher.start()

    def headers(self, number: int) -> dict[str, bytes]:
        return dict(self.producer.sent[number].record["headers"])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    with RocksStore(tmp_path / "state") as store:
        yield store


def test_a_dead_letter_says_what_its_handler_raised_if_that_is_why() -> None:
    failed = msgspec.structs.replace(LETTER, cause="handler: KeyError: 'milk'")
    assert dict(copy_of(failed, 10, None).headers)["popstream.cause"] == b"handler: KeyError: 'milk'"
    assert "popstream.cause" not in dict(copy_of(LETTER, 10, None).headers)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failed), type=DeadLetter) == failed


def test_a_header_without_a_value_is_copied_as_an_empty_one() -> None:
    """kafka-python refuses to send it, and the job would stop at every start."""
    assert copy_of(LETTER, 10, Message(b"k", b"v", [("trace", None)])).headers[0] == ("trace", b"")


def test_a_dead_letter_is_sent_message_by_message_and_delivered_with_the_last_one(store: RocksStore) -> None:
    message = Message(b"k", b"v", [("h", b"1")])
    scene = Scene(store, (10, message), (11, None), (12, Message(None, None, [])))
    assert scene.letters.sent_before == [0, 1, 2]
    first, gone, empty = (sent.record for sent in scene.producer.sent)
    assert (first["topic"], first["key"], first["value"]) == ("popstream.dead_letters", b"k", b"v")
    assert scene.headers(0) | {"h": b"1", "popstream.queue_offset": b"10"} == scene.headers(0)
    assert (gone["value"], b"popstream.gone" in {name.encode() for name in scene.headers(1)}) == (b"", True)
    assert (empty["key"], empty["value"]) == (None, b"")
    for sent in scene.producer.sent[1:]:
        sent.on_success(None)
        assert len(scene.outbox) == 1
    scene.producer.sent[0].on_success(None)
    assert len(scene.outbox) == 0


@pytest.mark.parametrize(
    "message",
    [
        Message(b"k", b"v" * COPY_BYTES_MAX, [("h", b"1")]),
        Message(b"k" * (COPY_BYTES_MAX + 1), None, []),
        Message(None, b"v", [("h", b"1" * COPY_BYTES_MAX)]),
    ],
    ids=["value", "key", "headers"],
)
def test_a_message_too_long_for_a_dead_letter_is_named_and_the_others_follow(
    store: RocksStore, message: Message
) -> None:
    """A message topic may allow longer messages than the dead-letter topic."""
    scene = Scene(store, (10, message), (11, Message(b"k", b"v", [])), (12, None))
    record = scene.producer.sent[0].record
    assert (record["key"], record["value"]) == (None, b"")
    assert b"more than a dead letter may" in scene.headers(0)["popstream.too_large"]
    assert (scene.headers(0)["popstream.queue_offset"], "h" in scene.headers(0)) == (b"10", False)
    assert scene.producer.sent[1].record["value"] == b"v"


def test_a_failure_is_reported_at_once_and_raised_by_the_next_publish(store: RocksStore) -> None:
    scene = Scene(store, (10, None))
    refused = ValueError("the broker says no")
    scene.producer.sent[0].on_failure(refused)
    (reported,) = scene.failures
    assert reported.__cause__ is refused
    with pytest.raises(Unavailable, match="the job stops deciding: the broker says no"):
        scene.publisher.publish([])
    assert len(scene.outbox) == 1
    scene.publisher.stop()
    assert scene.producer.is_closed
    assert scene.producer.close_timeout_s > 0


def test_a_fenced_job_publishes_nothing_and_abandons_what_was_not_sent(store: RocksStore) -> None:
    scene = Scene(store, (10, None))
    scene.prefix.fenced = Fenced("another job has taken the prefix")
    (entry,) = scene.outbox.undelivered(EntryKind.DEAD_LETTER)
    with pytest.raises(Fenced):
        scene.publisher.publish([entry])
    assert len(scene.producer.sent) == 1
    scene.publisher.stop()
    assert (scene.producer.is_closed, scene.producer.close_timeout_s) == (True, 0)


def test_a_job_that_is_fenced_within_a_letter_does_not_send_the_rest_of_it(store: RocksStore) -> None:
    """A letter may name ten thousand messages, and the process may be frozen between two of them."""
    scene = Scene(store, (10, None))
    (entry,) = scene.outbox.undelivered(EntryKind.DEAD_LETTER)
    scene.producer.sent.clear()

    def messages() -> Iterator[tuple[int, None]]:
        yield 10, None
        scene.prefix.fenced = Fenced("another job has taken the prefix")
        yield 11, None

    with pytest.raises(Fenced):
        scene.publisher._send_dead_letter(entry, LETTER, messages())
    assert len(scene.producer.sent) == 1
    scene.producer.sent[-1].on_success(None)
    assert [each.key for each in scene.outbox.undelivered(EntryKind.DEAD_LETTER)] == [entry.key]


def test_a_fenced_job_fails_as_fenced_also_where_dead_letters_are_read(store: RocksStore) -> None:
    scene = Scene(store, (10, None))
    fenced = Fenced("another job has taken the prefix")
    scene.letters.on_failure(fenced)
    assert scene.failures == [fenced]
    with pytest.raises(Fenced):
        scene.publisher.check()


def test_a_publisher_does_nothing_before_its_start_and_can_be_stopped_without_it(store: RocksStore) -> None:
    producer = Producer()
    reader = KafkaDeadLetterReader(KafkaConnection("kafka:9092"), EarlierLetters("d", "o", {}))
    failures: list[PopstreamError] = []
    publisher = Publisher(TOPICS, Outbox(store), producer, reader, Prefix(), failures.append)
    publisher.stop()
    assert (producer.sent, failures, producer.is_closed) == ([], [], True)
