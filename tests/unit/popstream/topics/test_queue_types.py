"""Claim: producers know the types that the job has published last. Method: a KafkaProducer and records that we make."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from popstream.kafka_connection import KafkaConnection
from popstream.settings import ClientSettings
from popstream.topics import queue_types
from popstream.topics.queue_types import QueueTypes, QueueTypesPublisher
from popstream.wire.base_errors import Unavailable


class Kafka:
    made: ClassVar[list[Kafka]] = []
    is_away: ClassVar[bool] = False

    def __init__(self, **_options: Any) -> None:
        self.sent: list[tuple[bytes, bytes | None]] = []
        self.is_closed = False
        Kafka.made.append(self)

    def send(self, _topic: str, key: bytes, value: bytes | None) -> Any:
        if Kafka.is_away:
            raise KafkaTimeoutError("away")
        self.sent.append((key, value))
        return SimpleNamespace(get=lambda _timeout: None)

    def flush(self, timeout: float) -> None:
        assert timeout

    def close(self, timeout: float) -> None:
        assert timeout
        self.is_closed = True


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    Kafka.made, Kafka.is_away = [], False
    monkeypatch.setattr(queue_types, "KafkaProducer", Kafka)


def read(sent: list[tuple[bytes, bytes | None]]) -> QueueTypes:
    types = QueueTypes(ClientSettings(bootstrap_servers="nowhere:9092", client_id="c"))
    for key, value in sent:
        types._take(key, value)
    return types


def test_what_is_new_is_published_and_nothing_twice() -> None:
    publisher = QueueTypesPublisher(KafkaConnection("nowhere"), "t")
    publisher.publish(set())
    assert Kafka.made == []
    publisher.publish({("orders", "id-1", "batch"), ("bills", "id-2", "simple")})
    publisher.publish({("orders", "id-1", "batch"), ("bills", "id-2", "simple")})
    (made,) = Kafka.made
    assert sorted(key for key, _ in made.sent) == [b"bills", b"orders"]
    assert read(made.sent)._types == {"orders": "batch", "bills": "simple"}


def test_a_topic_that_is_made_again_or_built_no_more_is_told() -> None:
    publisher = QueueTypesPublisher(KafkaConnection("nowhere"), "t")
    publisher.publish({("orders", "id-1", "batch"), ("bills", "id-2", "simple")})
    publisher.publish({("orders", "id-3", "sparse")})
    (made,) = Kafka.made
    assert made.sent[-2:] in ([(b"bills", None), made.sent[-1]], [made.sent[-2], (b"bills", None)])
    assert read(made.sent)._types == {"orders": "sparse"}


def test_after_a_failure_another_connection_publishes_it() -> None:
    publisher = QueueTypesPublisher(KafkaConnection("nowhere"), "t")
    Kafka.is_away = True
    with pytest.raises(Unavailable, match="away"):
        publisher.publish({("orders", "id-1", "batch")})
    Kafka.is_away = False
    publisher.publish({("orders", "id-1", "batch")})
    first, second = Kafka.made
    assert first.is_closed
    assert [key for key, _ in second.sent] == [b"orders"]
    publisher.close()
    assert second.is_closed


@pytest.mark.parametrize(
    "value", [b"{", b'"text"', b'{"topic":"orders","topic_id":"1","queue_type":"heap"}', b'{"topic":"\xff"}', b""]
)
def test_a_type_that_cannot_be_read_leaves_the_others(value: bytes) -> None:
    good = msgspec.json.encode({"topic": "orders", "topic_id": "1", "queue_type": "batch"})
    assert read([(b"orders", good), (b"orders", value), (b"\xff", value)])._types == {"orders": "batch"}
