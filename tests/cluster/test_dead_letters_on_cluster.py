"""Claim: tasks copy the messages of dead letters, and a new start that names them again sends none twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from kafka import KafkaProducer

from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import create_message_topic
from pipelines.apply_ops.dead_letters.dead_letter_reader import message_consumer
from pipelines.apply_ops.dead_letters.earlier_letters import letters_of
from pipelines.cluster.audit.dead_letter_copies import DeadLetterCopies
from popstream.kafka_connection import KafkaConnection
from popstream.wire.dead_letter_record import headers_of, identity_of
from tests.support.letter_topics import LETTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

MESSAGES = 20


def test_a_letter_that_comes_again_is_not_sent_twice(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    connection, topics = KafkaConnection(kafka.bootstrap_servers), Topics.of(topic_prefix)
    ensure_topics(connection, topics, TopicSettings(ops_partitions=1, results_partitions=1))
    orders = f"{topic_prefix}-orders"
    create_message_topic(connection, orders, 1)
    producer = KafkaProducer(**connection.for_kafka_python())
    for number in range(MESSAGES):
        producer.send(orders, value=b"%d" % number)
    producer.close()
    at_ms = time.time_ns() // 1_000_000
    letters = [
        msgspec.structs.replace(LETTER, topic=orders, first=first, last=first + 4, at_ms=at_ms)
        for first in range(0, MESSAGES, 5)
    ]
    encoded = [msgspec.msgpack.encode(letter) for letter in letters]

    DeadLetterCopies(cluster_spark, connection, topic_prefix).copy(encoded[:2])
    again = DeadLetterCopies(cluster_spark, connection, topic_prefix)
    again.copy(encoded[:3])
    again.copy(encoded[3:])

    consumer = message_consumer(connection)
    known = letters_of(consumer, topics.dead_letters, at_ms)
    copies = sum(consumer.end_offsets(list(consumer.assignment())).values())
    consumer.close()
    assert known == {
        identity_of(headers_of(letter, at)) for letter in letters for at in range(letter.first, letter.last + 1)
    }
    assert copies == MESSAGES
