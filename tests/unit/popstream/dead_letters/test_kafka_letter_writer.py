"""Claim: messages are in flight while others are sent, and what Kafka refuses is found also when a later call says so.

Method: a producer in memory that takes what is sent when somebody waits for it, or fails as kafka-python does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from popstream.dead_letters import kafka_letter_writer
from popstream.dead_letters.handling_run import HandlingCall
from popstream.dead_letters.kafka_letter_writer import KafkaLetterWriter
from popstream.dead_letters.letter import Letter
from popstream.dead_letters.letter_topics import HandledLetter, LetterRefusedError
from popstream.dead_letters.redrive_plan import RedrivenRecord
from popstream.settings import ClientSettings
from popstream.wire.base_errors import Fenced, Invalid, Unavailable
from popstream.wire.letter_handling import LetterHandling

HANDLED = "popstream.dead_letters_handled"


class Sent:
    """The future of a record."""

    def __init__(self, offset: int) -> None:
        self.value = SimpleNamespace(offset=offset)
        self.is_waited_for = False

    def succeeded(self) -> bool:
        return self.is_waited_for

    def get(self, _timeout_s: float) -> object:
        self.is_waited_for = True
        return self.value


class Manager:
    """Of transactions: an abort forgets the error."""

    def __init__(self) -> None:
        self.last_error: Exception | None = None
        self.ends: list[str] = []

    def begin_commit(self) -> object:
        return self._end("commit")

    def begin_abort(self) -> object:
        self.last_error = None
        return self._end("abort")

    def _end(self, how: str) -> object:
        self.ends.append(how)
        return SimpleNamespace(wait=lambda timeout_ms: timeout_ms > 0)


class MemoryProducer:
    """Records what is sent; `fail_at` is the call of `send` that fails because of `error`, which came before."""

    def __init__(self, fail_at: int = -1, error: Exception | None = None) -> None:
        self.sent: list[tuple[str, bytes, Sent]] = []
        self.waited: list[int] = []
        self._fail_at, self._error = fail_at, error
        self._transaction_manager = Manager()
        self._sender = SimpleNamespace(wakeup=lambda: None)

    def begin_transaction(self) -> None:
        """Nothing to do."""

    def send(self, topic: str, *, value: bytes, **_: object) -> Sent:
        if len(self.sent) == self._fail_at:
            self._transaction_manager.last_error = self._error
            raise KafkaError("Cannot perform send because at least one previous request has failed with errors.")
        future = Sent(len(self.sent))
        self.waited.append(sum(future.is_waited_for for _, _, future in self.sent))
        self.sent.append((topic, value, future))
        return future


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_letter_writer, "CHUNK_LETTERS", 2)


def writer_of(producer: MemoryProducer) -> KafkaLetterWriter:
    writer = KafkaLetterWriter(ClientSettings(bootstrap_servers="memory", client_id="c"), HANDLED)
    writer._producer = producer
    return writer


def batch(count: int) -> list[HandledLetter]:
    call = HandlingCall("redriven", "me@host", "", "group")
    letters = [_letter(number) for number in range(count)]
    return [
        HandledLetter(letter, [RedrivenRecord(None, letter.value, [])], call.handling_of(letter)) for letter in letters
    ]


def _letter(number: int) -> Letter:
    fields: dict[str, Any] = dict.fromkeys(Letter.__struct_fields__, 0)
    texts = {"topic": "orders", "group": "g", "reason": "rejected", "letter_id": f"id-{number}", "cannot_redrive": ""}
    more: dict[str, Any] = {"cause": None, "history": None, "key": None, "headers": [], "handling": None}
    return Letter(**{**fields, **texts, **more, "value": b"%d" % number})


def test_the_next_messages_are_sent_before_anybody_waits_and_every_record_has_its_offset() -> None:
    producer = MemoryProducer()
    handlings = writer_of(producer).write(batch(5))
    topics = [topic for topic, _, _ in producer.sent]
    messages, records = ["orders", "orders"], [HANDLED, HANDLED]
    assert topics == [*messages, *messages, *records, "orders", *records, HANDLED]
    assert producer.waited[:4] == [0, 0, 0, 0]
    assert producer.waited[4] == 2  # those of the first chunk, whose offsets are recorded now
    offset_of = {value: future.value.offset for topic, value, future in producer.sent if topic == "orders"}
    assert [handling.sent for handling in handlings] == [[(offset_of[b"%d" % n],) * 2] for n in range(5)]
    recorded = [
        msgspec.json.decode(value, type=LetterHandling) for topic, value, _ in producer.sent if topic == HANDLED
    ]
    assert recorded == handlings
    assert all(future.is_waited_for for _, _, future in producer.sent)
    assert producer._transaction_manager.ends == ["commit"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(MessageSizeTooLargeError(), LetterRefusedError), (ProducerFencedError(), Fenced), (None, Unavailable)],
)
def test_why_an_earlier_record_has_failed_is_known_when_a_later_one_cannot_be_sent(
    error: Exception | None, raised: type[Exception]
) -> None:
    producer = MemoryProducer(fail_at=3, error=error)
    with pytest.raises(raised):
        writer_of(producer).write(batch(4))
    assert producer._transaction_manager.ends == ["abort"]


@pytest.mark.parametrize(
    ("error", "granted"),
    [
        (TopicAuthorizationFailedError({"orders", "bills"}), "Write on topic bills, orders"),
        (TransactionalIdAuthorizationFailedError(), f"Write on transactional id {HANDLED}"),
    ],
)
def test_a_right_that_is_missing_is_named(error: Exception, granted: str) -> None:
    producer = MemoryProducer(fail_at=0, error=error)
    with pytest.raises(Invalid, match=f"^Kafka does not allow .* what is needed: grant {granted}$"):
        writer_of(producer).write(batch(1))
    assert producer._transaction_manager.ends == ["abort"]
