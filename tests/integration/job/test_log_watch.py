"""Claim: the job says, for as long as it is true, that nothing is decided or that retention will delete what waits.

Method: a topic that keeps its records for a few seconds - Kafka looks every five minutes whether any are to go -, and
a watch on it that is told how far it is decided.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from connectors.kafka.topic_admin import create_message_topic, retention_ms
from pipelines.process.log_watch import LogWatch
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.kafka.topic_admin import TopicFacts

pytestmark = pytest.mark.integration

STALL_S = 5.0


def send(kafka: EmbeddedKafka, ops: TopicFacts, partition: int, count: int) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for _ in range(count):
            producer.send(ops.name, b"", partition=partition)


class Watched:
    """A watch on a topic of two partitions, and how far it believes that these are decided."""

    def __init__(self, kafka: EmbeddedKafka, name: str, keeps_ms: int) -> None:
        configs = {"retention.ms": str(keeps_ms), "message.timestamp.type": "LogAppendTime"}
        self.ops = create_message_topic(kafka.connection, name, 2, configs=configs)
        self.decided: dict[int, int] = {}
        self.failures: list[BaseException] = []
        self.watch = LogWatch(
            kafka.connection,
            self.ops,
            decided=lambda: self.decided,
            stall_s=STALL_S,
            on_failure=self.failures.append,
        )


@pytest.fixture
def keeps_ms(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def watched(
    kafka: EmbeddedKafka, topic_prefix: str, keeps_ms: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    monkeypatch.setattr("pipelines.process.log_watch.INTERVAL_S", 0.1)
    monkeypatch.setattr("pipelines.process.log_watch.TOPIC_INTERVAL_S", 0.1)
    watched = Watched(kafka, f"{topic_prefix}.ops", keeps_ms)
    assert retention_ms(kafka.connection, watched.ops.name) == (None if keeps_ms == -1 else keeps_ms)
    watched.watch.start()
    yield watched
    watched.watch.stop()
    assert watched.failures == []


@pytest.mark.parametrize("keeps_ms", [6_000], indirect=True)
def test_what_waits_for_half_of_the_retention_is_told(kafka: EmbeddedKafka, watched: Watched) -> None:
    send(kafka, watched.ops, 0, 3)
    send(kafka, watched.ops, 1, 2)
    wait_for(lambda: watched.watch.lag == 5)
    wait_for(lambda: watched.watch.overdue == 5)
    send(kafka, watched.ops, 0, 4)
    wait_for(lambda: watched.watch.lag == 9)
    watched.decided = {0: 2, 1: 2}
    wait_for(lambda: watched.watch.lag == 5)
    wait_for(lambda: watched.watch.overdue == 5)  # the last four of them have grown old, too
    watched.decided = {0: 7, 1: 2}
    wait_for(lambda: watched.watch.overdue == 0)
    assert watched.watch.lag == 0


@pytest.mark.parametrize("keeps_ms", [3_600_000, (1 << 63) - 1, -1], indirect=True)
def test_what_waits_for_a_moment_is_not_overdue(kafka: EmbeddedKafka, watched: Watched) -> None:
    send(kafka, watched.ops, 1, 2)
    wait_for(lambda: watched.watch.lag == 2)
    for _ in range(10):
        time.sleep(0.2)  # looks at the topic and at its end in between
        assert (watched.watch.overdue, watched.watch.problem) == (0, None)


@pytest.mark.parametrize("keeps_ms", [-1], indirect=True)
def test_records_that_wait_while_nothing_is_decided_are_a_problem(kafka: EmbeddedKafka, watched: Watched) -> None:
    send(kafka, watched.ops, 1, 2)
    wait_for(lambda: watched.watch.lag == 2)
    problem = wait_for(lambda: watched.watch.problem)
    assert problem.startswith("nothing has been decided for ")
    assert problem.endswith("; records waiting: 2")
    watched.decided = {1: 1}
    wait_for(lambda: watched.watch.problem is None)
    assert watched.watch.lag == 1
