"""What the tests of this folder share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED, EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from tests.support.job_process import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that outlives the jobs that are killed, with messages for their dead letters."""
    with EmbeddedKafka(
        tmp_path_factory.mktemp("kafka"), jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED
    ) as running:
        # The other queues that clients use have no Kafka topic: their dead letters can only be coordinates.
        create_message_topic(running.bootstrap_servers, "orders", 2)
        producer = KafkaProducer(bootstrap_servers=running.bootstrap_servers)
        for number in range(400):
            producer.send("orders", b"message %d" % number, b"key", partition=number % 2, headers=[("h", b"v")])
        producer.close()
        yield running
