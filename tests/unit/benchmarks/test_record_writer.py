"""What the measurements wait for was taken by Kafka: here a producer that says what became of each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaTimeoutError

from popstream.kafka_connection import KafkaConnection
from tests.benchmarks import record_writer
from tests.benchmarks.record_writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator


class StubFuture:
    """Completes when it is asked for."""

    def __init__(self, producer: StubProducer, number: int) -> None:
        self._producer, self._number = producer, number

    def succeeded(self) -> bool:
        return False

    def get(self, timeout_s: float) -> None:
        assert timeout_s > 120, "it outlasts the time in which a record is delivered"
        self._producer.in_flight -= 1
        if self._number == self._producer.expires:
            raise KafkaTimeoutError(self._number)


class StubProducer:
    """Counts what is in flight; one record may expire."""

    expires = -1

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.sent = self.in_flight = self.in_flight_max = 0
        self.is_closed = False

    def send(self, topic: str, value: bytes, *, partition: int) -> StubFuture:
        assert (topic, value, partition) == ("orders", b"order", 3)
        self.sent += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        return StubFuture(self, self.sent - 1)

    def flush(self) -> None:
        assert not self.is_closed

    def close(self, timeout: float) -> None:
        assert timeout == 0, "nothing is left to be waited for"
        self.is_closed = True


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StubProducer]]:
    made: list[StubProducer] = []

    def make(**settings: Any) -> StubProducer:
        made.append(StubProducer(**settings))
        return made[-1]

    monkeypatch.setattr(record_writer, "KafkaProducer", make)
    monkeypatch.setattr(record_writer, "IN_FLIGHT_MAX", 10)
    monkeypatch.setattr(record_writer, "PROGRESS_EVERY", 40)
    yield made
    assert all(producer.is_closed for producer in made)


def write(records: int, lines: list[str]) -> int:
    with open_writer(KafkaConnection("host:1"), on_progress=lines.append, acks="all") as writer:
        for _ in range(records):
            writer.send("orders", b"order", partition=3)
        return writer.finish()


def test_what_was_confirmed_is_counted_and_little_is_in_flight(producers: list[StubProducer]) -> None:
    lines: list[str] = []
    assert write(100, lines) == 100
    (producer,) = producers
    assert (producer.sent, producer.in_flight, producer.in_flight_max) == (100, 0, 10)
    assert producer.settings["bootstrap_servers"] == ["host:1"]
    assert (producer.settings["acks"], producer.settings["linger_ms"]) == ("all", 50)
    assert lines == ["40 records written to orders", "80 records written to orders"]


@pytest.mark.parametrize(("expires", "sent"), [(5, 15), (98, 100)])
def test_the_first_record_that_expires_ends_the_writing(
    producers: list[StubProducer], monkeypatch: pytest.MonkeyPatch, expires: int, sent: int
) -> None:
    monkeypatch.setattr(StubProducer, "expires", expires)
    with pytest.raises(KafkaTimeoutError, match=f"{expires}"):
        write(100, [])
    assert producers[0].sent == sent
