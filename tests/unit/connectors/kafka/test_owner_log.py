"""Claim: the last committed record is found among control records and holes; a fenced producer is not an outage.

Method: kafka-python's classes replaced by a log in memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError, ProducerFencedError, TransactionalIdAuthorizationFailedError

from connectors.kafka import owner_log
from connectors.kafka.owner_log import OwnerLog, SupersededError
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable


class Value(msgspec.Struct, frozen=True):
    """A value of the topic."""

    name: str


class Consumer:
    """Reads `log`: values by offset; the other offsets up to `end` are control records, or compacted away."""

    log: ClassVar[dict[int, bytes]] = {}
    beginning = 0
    end = 0
    opened: ClassVar[list[Consumer]] = []

    def __init__(self, **_: Any) -> None:
        self.opened.append(self)
        self.is_closed = False
        self._position = 0
        self.sought: list[int] = []

    def assign(self, _: Any) -> None:
        """There is one partition."""

    def end_offsets(self, places: list[Any], timeout_ms: int) -> dict[Any, int]:
        assert timeout_ms
        return dict.fromkeys(places, self.end)

    def beginning_offsets(self, places: list[Any], timeout_ms: int) -> dict[Any, int]:
        assert timeout_ms
        return dict.fromkeys(places, self.beginning)

    def seek(self, _: Any, offset: int) -> None:
        self._position = offset
        self.sought.append(offset)

    def position(self, _: Any) -> int:
        return self._position

    def poll(self, timeout_ms: int) -> Any:
        """Ten offsets at a time."""
        assert timeout_ms
        first, self._position = self._position, min(self._position + 10, self.end)
        records = [SimpleNamespace(offset=at, value=self.log[at]) for at in range(first, first + 10) if at in self.log]
        return SimpleNamespace(get=lambda *_: records)

    def close(self, *, autocommit: bool) -> None:
        assert not autocommit
        self.is_closed = True


class Producer:
    """Fails where `error` says."""

    init_error: Exception | None = None
    error: Exception | None = None
    last_error: Exception | None = None
    answers = True
    closed: ClassVar[list[Producer]] = []

    def __init__(self, **settings: Any) -> None:
        assert settings["transactional_id"] == "shop.owner"
        self._transaction_manager = SimpleNamespace(
            begin_commit=lambda: SimpleNamespace(wait=self._wait), begin_abort=None, last_error=None
        )
        self._sender = SimpleNamespace(wakeup=lambda: None, force_close=lambda: None, join=lambda _: None)
        self.config = {"client_id": "c"}

    def init_transactions(self) -> None:
        if self.init_error is not None:
            raise self.init_error

    def begin_transaction(self) -> None:
        self._transaction_manager.last_error = self.last_error

    def send(self, topic: str, *, key: bytes, value: bytes, partition: int) -> Any:
        assert (topic, key, partition) == ("shop.owner", b"owner", 0)
        Consumer.log = {0: value}
        Consumer.end = 2
        return SimpleNamespace(get=lambda _: None)

    def close(self, timeout: float) -> None:
        assert timeout
        self.closed.append(self)

    def _wait(self, timeout_ms: int) -> bool:
        assert timeout_ms
        if self.error is not None:
            raise self.error
        return self.answers


@pytest.fixture(autouse=True)
def _kafka_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"log": {}, "beginning": 0, "end": 0, "opened": []}.items():
        monkeypatch.setattr(Consumer, name, value)
    for name, value in {"init_error": None, "error": None, "last_error": None, "answers": True, "closed": []}.items():
        monkeypatch.setattr(Producer, name, value)
    monkeypatch.setattr(owner_log, "KafkaConsumer", Consumer)
    monkeypatch.setattr(owner_log, "KafkaProducer", Producer)


def made() -> OwnerLog[Value]:
    return OwnerLog(KafkaConnection("127.0.0.1:1"), "shop.owner", Value)


@pytest.mark.parametrize(
    ("offsets", "beginning", "end", "found"),
    [
        pytest.param([], 0, 0, None, id="new"),
        pytest.param([], 0, 4, None, id="all aborted"),
        pytest.param([0, 2, 4], 0, 6, 4, id="short"),
        pytest.param(range(0, 1000, 2), 0, 1001, 998, id="long"),
        pytest.param([7], 5, 300, 7, id="far behind the end"),
        pytest.param([20_000], 0, 90_000, 20_000, id="very far behind the end"),
        pytest.param([0, 2, 4], 0, 4, 2, id="an open transaction at the end"),
    ],
)
def test_the_last_committed_record_is_found(offsets: Any, beginning: int, end: int, found: int | None) -> None:
    Consumer.log = {at: msgspec.json.encode(Value(f"v{at}")) for at in offsets}
    Consumer.beginning, Consumer.end = beginning, end
    last = made().last()
    assert last == (None if found is None else (found, Value(f"v{found}")))
    (consumer,) = Consumer.opened
    assert consumer.is_closed
    assert all(at >= beginning for at in consumer.sought)


def test_a_record_of_a_newer_version_is_refused() -> None:
    Consumer.log, Consumer.end = {0: b"?"}, 1
    with pytest.raises(Invalid, match=r"the last record of shop\.owner cannot be decoded"):
        made().last()


def test_what_is_written_is_read() -> None:
    assert not made().is_open
    log = made()
    log.open_for_writing()
    log.write(Value("me"))
    assert log.is_open
    assert log.last() == (0, Value("me"))
    log.close()
    assert len(Producer.closed) == 1


def no_answer() -> None:
    Producer.answers = False


def fails_with(error: Exception) -> Callable[[], None]:
    return lambda: setattr(Producer, "error", error)


def fails_later() -> None:
    """The network thread has met the error; the call says only that there was one."""
    Producer.error, Producer.last_error = KafkaTimeoutError("in an error state"), ProducerFencedError()


@pytest.mark.parametrize(
    ("harm", "raised"),
    [
        pytest.param(no_answer, Unavailable, id="no answer"),
        pytest.param(fails_with(KafkaTimeoutError("late")), Unavailable, id="time-out"),
        pytest.param(fails_with(ProducerFencedError()), SupersededError, id="fenced"),
        pytest.param(fails_later, SupersededError, id="fenced before"),
    ],
)
def test_a_write_that_fails_closes_the_producer(harm: Callable[[], None], raised: type[Exception]) -> None:
    log = made()
    log.open_for_writing()
    harm()
    with pytest.raises(raised):
        log.write(Value("me"))
    assert not log.is_open
    assert len(Producer.closed) == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TransactionalIdAuthorizationFailedError(), Invalid), (KafkaTimeoutError("late"), Unavailable)],
)
def test_a_topic_that_cannot_be_opened_for_writing(error: Exception, raised: type[Exception]) -> None:
    Producer.init_error = error
    log = made()
    with pytest.raises(raised):
        log.open_for_writing()
    assert not log.is_open
