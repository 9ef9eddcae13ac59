"""Claim: the job's topics are right, or refused as a whole. Method: a real broker, a race, topics made wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from connectors.kafka import topic_admin as admin_module
from connectors.kafka.own_topics import DAY_MS, Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import create_message_topic, describe
from connectors.local_servers.loopback import free_port
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


def test_created_once_by_four_at_a_time(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    """All four see the same ids; once more changes nothing; the check that follows a start passes."""
    topics = Topics.of(topic_prefix)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: ensure_topics(kafka.connection, topics), range(4)))
    facts = results[0]
    assert all(result == facts for result in results)
    assert {name: one.partition_count for name, one in facts.items()} == {
        topics.ops: 4,
        topics.results: 32,
        topics.notifications: 4,
        topics.dead_letters: 4,
        topics.dead_letters_handled: 1,
        topics.queue_types: 1,
        topics.owner: 1,
    }
    again = ensure_topics(kafka.connection, topics, oldest_snapshot_age_ms=7 * DAY_MS)
    assert again == facts == describe(kafka.connection, topics.names)
    with pytest.raises(Invalid, match="1 settings of our own topics") as caught:
        ensure_topics(kafka.connection, topics, oldest_snapshot_age_ms=7 * DAY_MS + 1)
    assert "retention.ms" in caught.value.details[0]


def test_every_deviation_is_listed(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    """Topics that somebody made by hand with everything wrong: one error names all of it."""
    topics = Topics.of(topic_prefix)
    wrong = {
        "cleanup.policy": "compact",
        "compression.type": "gzip",
        "max.message.bytes": "1000",
        "retention.ms": "60000",
        "unclean.leader.election.enable": "true",
    }
    create_message_topic(kafka.connection, topics.ops, 3, configs=wrong)
    create_message_topic(kafka.connection, topics.results, 1, configs=wrong)
    create_message_topic(kafka.connection, topics.notifications, 1, configs=wrong)
    settings = TopicSettings(ops_partitions=4)
    with pytest.raises(Invalid) as caught:
        ensure_topics(kafka.connection, topics, settings, oldest_snapshot_age_ms=DAY_MS)
    assert [line.split(" is ")[0] for line in caught.value.details] == [
        f"{topics.ops}: cleanup.policy",
        f"{topics.ops}: message.timestamp.type",
        f"{topics.ops}: compression.type",
        f"{topics.ops}: unclean.leader.election.enable",
        f"{topics.ops}: max.message.bytes",
        f"{topics.ops}: retention.ms",
        f"{topics.results}: cleanup.policy",
        f"{topics.results}: max.message.bytes",
        f"{topics.notifications}: cleanup.policy",
    ]


def test_refused_creation_is_invalid(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    """Three copies on one broker: Kafka's reason reaches the operator."""
    with pytest.raises(Invalid, match="refuses to create 7 of 7 topics") as caught:
        ensure_topics(kafka.connection, Topics.of(topic_prefix), TopicSettings(replication_factor=3))
    assert all("InvalidReplicationFactorError" in line for line in caught.value.details)


def test_no_broker_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is in the error, and the client's thread is gone."""
    monkeypatch.setattr(admin_module, "TIMEOUT_S", 1.0)
    address = f"127.0.0.1:{free_port()}"
    threads = threading.active_count()
    with pytest.raises(Unavailable, match=address):
        describe(KafkaConnection(address), ["any"])
    assert threading.active_count() == threads
