"""Claim: a KafkaProducer that owes answers is replaced, once. Method: KafkaProducers that we make, and let fail."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumberError

from popstream.exchange import resilient_producer
from popstream.exchange.resilient_producer import LastingProducer
from popstream.wire.failures import Unavailable
from tests.support.threads import eventually

OPTIONS = {"client_id": "test", "bootstrap_servers": ["nowhere:1"], "delivery_timeout_ms": 1_000}


class Manager:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def classify_batch_error(self, error: Exception, _batch: Any, log_start_offset: int = -1) -> str:
        self.asked.append((type(error), log_start_offset))
        return "class"


class Kafka:
    made: ClassVar[list[Kafka]] = []
    failures: ClassVar[list[KafkaError]] = []

    def __init__(self, **options: Any) -> None:
        if Kafka.failures:
            raise Kafka.failures.pop()
        self.options = options
        self.is_closed = False
        self._transaction_manager = Manager()
        Kafka.made.append(self)

    def close(self, timeout: float) -> None:
        assert timeout
        self.is_closed = True


class Batch:
    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self.told: list[Exception] = []

    def complete_exceptionally(self, _error: Exception, of_record: Any) -> bool:
        self.told.append(of_record(0))
        return True


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    Kafka.made, Kafka.failures = [], []
    monkeypatch.setattr(resilient_producer, "KafkaProducer", Kafka)


def make() -> tuple[LastingProducer, list[None]]:
    connected: list[None] = []
    producer = LastingProducer(
        OPTIONS, refusals=(MessageSizeTooLargeError,), on_connected=lambda: connected.append(None)
    )
    return producer, connected


def test_it_is_made_with_the_first_use() -> None:
    producer, connected = make()
    assert not Kafka.made
    producer.open()
    producer.open()
    assert ([producer.current], len(connected)) == (Kafka.made, 1)
    Kafka.failures = [KafkaTimeoutError("away")]
    with pytest.raises(Unavailable, match="away"):
        make()[0].open()


def test_one_that_owes_an_answer_is_replaced_once_and_closed() -> None:
    producer, connected = make()
    producer.open()
    first = producer.current
    Kafka.failures = [KafkaTimeoutError("still away")]
    for _ in range(3):
        producer.suspect(first)
        producer.suspect(None)
    eventually(lambda: len(Kafka.made) == 2)
    eventually(lambda: first.is_closed)
    producer.suspect(first)
    assert producer.current is Kafka.made[1]
    assert (len(Kafka.made), len(connected)) == (2, 2)
    producer.close(1)
    assert Kafka.made[1].is_closed


def test_closing_ends_the_search_for_another_one() -> None:
    producer, _ = make()
    producer.open()
    first = producer.current
    Kafka.failures = [KafkaTimeoutError("away")] * 1_000
    producer.suspect(first)
    producer.close(5)
    assert first.is_closed
    assert Kafka.made == [first]


def test_a_refused_record_is_a_gap_and_no_end() -> None:
    producer, _ = make()
    producer.open()
    manager = producer.current._transaction_manager
    batch = Batch(attempts=0)
    assert manager.classify_batch_error(MessageSizeTooLargeError(), batch, log_start_offset=7) == "class"
    assert manager.classify_batch_error(KafkaTimeoutError(), batch) == "class"
    assert manager.asked == [(OutOfOrderSequenceNumberError, 7), (KafkaTimeoutError, -1)]
    refusal = MessageSizeTooLargeError()
    batch.complete_exceptionally(refusal, lambda _: refusal)
    assert batch.told == [refusal]


def test_a_refusal_after_another_try_proves_nothing() -> None:
    producer, _ = make()
    producer.open()
    batch = Batch(attempts=1)
    refusal = MessageSizeTooLargeError()
    producer.current._transaction_manager.classify_batch_error(refusal, batch)
    batch.complete_exceptionally(refusal, lambda _: refusal)
    assert type(batch.told[0]) is KafkaError


def test_one_that_is_given_survives_refusals_too_and_is_never_replaced() -> None:
    given = Kafka()
    producer = LastingProducer(
        OPTIONS, refusals=(MessageSizeTooLargeError,), on_connected=lambda: None, kafka_producer=given
    )
    given._transaction_manager.classify_batch_error(MessageSizeTooLargeError(), Batch(attempts=0))
    assert given._transaction_manager.asked == [(OutOfOrderSequenceNumberError, -1)]
    producer.suspect(given)
    assert producer.current is given


def test_without_another_thread_the_old_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    producer, _ = make()
    producer.open()
    monkeypatch.setattr("threading.Thread.start", refuse)
    producer.suspect(producer.current)
    assert [producer.current] == Kafka.made
