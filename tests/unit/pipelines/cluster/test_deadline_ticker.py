"""What the ticker of a cluster is told of deadlines, and which ticks it sends (deadline_ticker.py)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from connectors.kafka.cluster_topics import ClusterTopics
from pipelines.cluster import deadline_ticker
from pipelines.cluster.deadline_ticker import DeadlineTicker, newest_deadlines, publish_deadlines
from pipelines.cluster.decide.outgoing import Deadlines
from pipelines.cluster.decide.shard import QueueDeadline
from pipelines.cluster.decide.shard_rows import DEADLINES_MAP, ShardRow, deadlines_of
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable
from tests.support.in_process.memory_maps import memory_maps
from tests.unit.pipelines.cluster.decide.test_shard import NOW_MS, declared, pop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KAFKA = KafkaConnection("kafka:9092")
INTERNAL = ClusterTopics.of("p")


class Producer:
    """In place of one of Kafka."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_away = False

    def send(self, topic: str, **fields: Any) -> Producer:
        self.sent.append({"topic": topic, **fields})
        return self

    def get(self, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.is_away:
            raise KafkaTimeoutError


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()
    monkeypatch.setattr(deadline_ticker, "KafkaProducer", lambda **_: made)
    monkeypatch.setattr(deadline_ticker, "close_producer", lambda *_: None)
    return made


def test_a_state_that_was_migrated_tells_of_its_deadlines_without_a_record(producer: Producer) -> None:
    maps = memory_maps()
    shard = declared(maps)
    shard.apply([pop(2)])
    rows = [ShardRow(3, DEADLINES_MAP, key, value) for key, value in maps.deadlines.items()]
    assert deadlines_of(rows) == {3: shard.earliest_deadlines()}
    assert shard.earliest_deadlines() == [(NOW_MS + 2 + 60_000, "t", 0)]
    publish_deadlines(KAFKA, INTERNAL, deadlines_of(rows), NOW_MS)
    (sent,) = producer.sent
    assert (sent["topic"], sent["key"], sent["partition"]) == ("p.cluster_deadlines", b"3", 0)
    told = msgspec.msgpack.decode(sent["value"], type=Deadlines)
    assert (told.newest_ms, told.queues) == (NOW_MS, shard.earliest_deadlines())
    producer.is_away = True
    with pytest.raises(Unavailable, match="cluster_deadlines cannot be written"):
        publish_deadlines(KAFKA, INTERNAL, deadlines_of(rows), NOW_MS)


def fail(error: BaseException) -> None:
    raise error


class Ticking:
    """A ticker whose ticks go to a list; the broker has accepted them when it is told so."""

    def __init__(self) -> None:
        self.behind: set[int] = set()
        self.sent: list[tuple[str, int]] = []
        self.answered: list[Callable[[int | None], None]] = []
        self.ticker = DeadlineTicker(KAFKA, "deadlines", "ops", 2, lambda: self.behind, fail)
        self.ticker._ticker._send = self._send
        self.ticker._ticker.start()

    def _send(self, queue: tuple[str, int], _: bytes, answered: Callable[[int | None], None]) -> None:
        self.sent.append(queue)
        self.answered.append(answered)

    def learn(self, newest_ms: int, *deadlines: tuple[int, str], shard: bytes = b"0") -> None:
        self.ticker.learn(shard, Deadlines(newest_ms, [QueueDeadline(ms, name, 0) for ms, name in deadlines]))

    def wait_for(self, count: int) -> list[tuple[str, int]]:
        end_s = time.monotonic() + 5
        while len(self.sent) < count and time.monotonic() < end_s:
            time.sleep(0.01)
        time.sleep(0.05)
        return self.sent


@pytest.fixture
def ticking() -> Iterator[Ticking]:
    made = Ticking()
    yield made
    made.ticker._ticker.stop()


def test_while_a_backlog_passes_a_queue_gets_one_tick(ticking: Ticking) -> None:
    ticking.learn(NOW_MS, (NOW_MS - 5_000, "t"))
    assert ticking.wait_for(1) == [("t", 0)]
    tick_ms = NOW_MS + 60_000  # it is behind a minute of records
    ticking.answered[0](tick_ms)
    for at in range(10):
        ticking.learn(NOW_MS + at * 1_000, (NOW_MS - 5_000, "t"))
    assert ticking.wait_for(2) == [("t", 0)]
    ticking.learn(tick_ms, (tick_ms - 1, "t"))
    assert ticking.wait_for(2) == [("t", 0)] * 2, "it was answered, and the next deadline is due"


def test_an_answer_that_overtakes_the_append_time_counts(ticking: Ticking) -> None:
    ticking.learn(NOW_MS, (NOW_MS - 1, "t"))
    ticking.wait_for(1)
    ticking.learn(NOW_MS + 10, (NOW_MS + 1, "t"))
    ticking.answered[0](NOW_MS + 10)
    assert len(ticking.wait_for(2)) == 2
    ticking.answered[1](None)
    assert len(ticking.wait_for(3)) == 3, "Kafka did not take it"


def test_a_shard_that_is_behind_gets_no_ticks_and_the_others_do(ticking: Ticking) -> None:
    ticking.behind = {1}
    ticking.learn(NOW_MS, (NOW_MS - 1, "busy"), shard=b"1")
    ticking.learn(NOW_MS, (NOW_MS - 1, "quiet"), shard=b"0")
    ticking.ticker.look_again()
    assert ticking.wait_for(2) == [("quiet", 0)]
    ticking.behind = set()
    ticking.ticker.look_again()
    assert ticking.wait_for(2) == [("quiet", 0), ("busy", 0)]


def test_many_queues_are_ticked_in_the_order_of_their_deadlines(ticking: Ticking) -> None:
    names = [f"q{at:03}" for at in range(200)]
    ticking.learn(NOW_MS, *((NOW_MS - 1_000 + at, name) for at, name in enumerate(names)))
    assert ticking.wait_for(200) == [(name, 0) for name in names]


def test_of_several_records_of_a_shard_the_last_deadlines_and_the_newest_time_count() -> None:
    given = [(b"0", 30, "a"), (b"1", 5, "b"), (b"0", 20, "c")]
    records = [
        (key, msgspec.msgpack.encode(Deadlines(newest_ms, [QueueDeadline(7, name, 0)])))
        for key, newest_ms, name in given
    ]
    found = {key: (each.newest_ms, [queue.topic for queue in each.queues]) for key, each in newest_deadlines(records)}
    assert found == {b"0": (30, ["c"]), b"1": (5, ["b"])}
