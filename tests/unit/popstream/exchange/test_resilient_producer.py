"""Claim: a KafkaProducer that owes answers is replaced, once. Method: KafkaProducers that we make, and let fail."""

from __future__ import annotations

from inspect import signature
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumberError
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager

from popstream.exchange import resilient_producer
from popstream.exchange.resilient_producer import ResilientProducer
from popstream.wire.base_errors import Invalid, Unavailable
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
        self._transaction_manager: Any = Manager()
        self._sender = SimpleNamespace(force_close=None, join=None)
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


def make() -> tuple[ResilientProducer, list[None]]:
    connected: list[None] = []
    producer = ResilientProducer(
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
        producer.replace(first)
        producer.replace(None)
    eventually(lambda: len(Kafka.made) == 2)
    eventually(lambda: first.is_closed)
    producer.replace(first)
    assert producer.current is Kafka.made[1]
    assert (len(Kafka.made), len(connected)) == (2, 2)
    producer.close(1)
    assert Kafka.made[1].is_closed


def test_closing_ends_the_search_for_another_one() -> None:
    producer, _ = make()
    producer.open()
    first = producer.current
    Kafka.failures = [KafkaTimeoutError("away")] * 1_000
    producer.replace(first)
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
    producer = ResilientProducer(
        OPTIONS, refusals=(MessageSizeTooLargeError,), on_connected=lambda: None, kafka_producer=given
    )
    given._transaction_manager.classify_batch_error(MessageSizeTooLargeError(), Batch(attempts=0))
    assert given._transaction_manager.asked == [(OutOfOrderSequenceNumberError, -1)]
    producer.replace(given)
    assert producer.current is given


@pytest.mark.parametrize("missing", ["_transaction_manager", "_sender"])
def test_another_kafka_python_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    class OtherRelease(Kafka):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            delattr(self, missing)

    monkeypatch.setattr(resilient_producer, "KafkaProducer", OtherRelease)
    refused = rf"kafka-python 3\.0\.\d+ is not supported: OtherRelease has no {missing}"
    producer, connected = make()
    with pytest.raises(Invalid, match=refused):
        producer.open()
    assert (Kafka.made[0].is_closed, connected) == (True, [])
    with pytest.raises(Invalid, match=refused):
        ResilientProducer(OPTIONS, refusals=(), on_connected=lambda: None, kafka_producer=OtherRelease())


@pytest.mark.parametrize("missing", ["attempts", "complete_exceptionally"])
def test_another_kafka_python_is_refused_by_its_batches(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    class OtherBatch(ProducerBatch):  # type: ignore[misc]  # kafka-python has no types
        def __getattribute__(self, name: str) -> Any:
            if name == missing:
                raise AttributeError(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(resilient_producer, "ProducerBatch", OtherBatch)
    producer, connected = make()
    with pytest.raises(Invalid, match=f"OtherBatch has no {missing}"):
        producer.open()
    assert (Kafka.made[0].is_closed, connected) == (True, [])


def test_a_producer_that_is_not_idempotent_needs_no_patch() -> None:
    given = Kafka()
    given._transaction_manager = None
    made = ResilientProducer(OPTIONS, refusals=(), on_connected=lambda: None, kafka_producer=given)
    assert made.current is given


def test_the_installed_kafka_python_has_the_private_members() -> None:
    for owner, names in (
        (KafkaProducer, {"_transaction_manager", "_sender"}),
        (Fetcher, {"_next_partition_records"}),
        (KafkaConsumer, {"_fetcher"}),
    ):
        assert names <= set(owner.__init__.__code__.co_names)
    assert [*signature(TransactionManager.classify_batch_error).parameters] == [
        *("self", "error", "batch", "log_start_offset")
    ]
    assert [*signature(ProducerBatch.complete_exceptionally).parameters] == [
        *("self", "top_level_exception", "record_exceptions_fn")
    ]
    assert issubclass(Sender, Thread)
    assert callable(Sender.force_close)


def test_without_another_thread_the_old_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    producer, _ = make()
    producer.open()
    monkeypatch.setattr("threading.Thread.start", refuse)
    producer.replace(producer.current)
    assert [producer.current] == Kafka.made
